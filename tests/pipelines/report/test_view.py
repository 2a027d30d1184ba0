"""What the 3-D view draws is the cube, thinned as it says."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from pipelines.cubes.cube import Cube
from pipelines.report.view import iso_levels, thinned_mean, view


def cube(shape=(3, 4, 5)):
    """Every value tells its place; one corner is seen by nobody."""
    z, y, x = (10.0 * np.arange(n) for n in shape)
    values = 0.001 * (1 + z[:, None, None] + 0.1 * y[:, None] + 0.01 * x)
    support = np.ones(shape)
    support[0, 0, 0] = 0.0
    arrays = {"mean": values, "p50": values / 5, "std": values, "support": support}
    return Cube(x=x, y=y, z=z, arrays=arrays)


def decoded(text, kind):
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def test_a_small_cube_is_kept_as_it_is():
    whole = cube()
    found = thinned_mean(whole)
    assert found.factor == 1
    np.testing.assert_allclose(found.arrays["mean"], 1000 * whole.arrays["mean"])
    assert not found.seen[0, 0, 0]
    assert found.seen.sum() == 59


def test_blocks_are_means_at_the_centre_of_their_cells():
    whole = cube()
    found = thinned_mean(whole, points=12)
    assert found.factor == 2
    assert found.arrays["mean"].shape == (2, 2, 3)
    np.testing.assert_allclose(found.x, [5.0, 25.0, 40.0])
    np.testing.assert_allclose(found.z, [5.0, 20.0])
    inner = whole.arrays["mean"][:2, 2:4, 4:5].mean()
    assert found.arrays["mean"][0, 1, 2] == pytest.approx(1000 * inner)
    assert found.seen.all()


def test_levels_are_positive_and_of_seen_cells():
    whole = cube()
    whole.arrays["mean"][0, 0, 0] = 1e6
    levels = iso_levels(thinned_mean(whole))
    assert levels == sorted(levels)
    assert levels[0] > 0 and levels[-1] < 30
    dark = cube()
    dark.arrays["mean"][:] = 0.0
    assert iso_levels(thinned_mean(dark)) == [1.0]


def test_what_the_page_reads_is_what_was_thinned():
    drawn = view(cube())
    (data,) = json.loads(drawn.data)
    found = thinned_mean(cube())
    density = decoded(data["density"], "<f4").reshape(3, 4, 5)
    np.testing.assert_allclose(density, found.arrays["mean"], rtol=1e-6)
    bits = np.unpackbits(decoded(data["seen"], np.uint8), bitorder="little")
    np.testing.assert_array_equal(bits[:60].reshape(3, 4, 5), found.seen)
    (box,) = drawn.boxes.values()
    assert (box.factor, box.step) == (1, (10.0, 10.0, 10.0))


def test_nested_cubes_are_shown_whole_and_near_the_sun():
    whole = Cube(
        x=np.arange(-400.0, 401, 100),
        y=np.arange(-400.0, 401, 100),
        z=np.array([-100.0, 0.0, 100.0]),
        arrays={"mean": np.ones((3, 9, 9)), "support": np.ones((3, 9, 9))},
    )
    axis = np.arange(-50.0, 51, 25)
    inner = {"mean": np.full((5, 5, 5), 2.0), "support": np.ones((5, 5, 5))}
    near = Cube(x=axis, y=axis, z=axis, arrays=inner)
    drawn = view(replace(whole, finer=(near,)))
    first, second = json.loads(drawn.data)
    assert (first["x"][0], second["x"][0]) == (-400.0, -50.0)
    np.testing.assert_allclose(decoded(second["density"], "<f4"), 2000.0)
    assert list(drawn.boxes) == ["Whole box", "Near the Sun"]
