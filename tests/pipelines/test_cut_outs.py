"""Cut-outs keep every value at its place."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube, cut_box, cut_sphere, reach_of_cube
from pipelines.cubes.sky import Curves


def place(x, y, z):
    """A number that tells where it is."""
    return x + 1e3 * y + 1e6 * z


@pytest.fixture(scope="module")
def cube():
    x, y, z = (
        10.0 * np.arange(-12, 9),
        15.0 * np.arange(-7, 10),
        20.0 * np.arange(-3, 6),
    )
    Z, Y, X = np.meshgrid(z, y, x, indexing="ij")
    arrays = {"mean": place(X, Y, Z), "support": np.ones_like(X, dtype=np.float32)}
    return Cube(x=x, y=y, z=z, arrays=arrays, meta={"run": "r"})


def assert_in_place(cube):
    Z, Y, X = np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")
    mean = cube.arrays["mean"]
    kept = np.isfinite(mean)
    np.testing.assert_array_equal(mean[kept], place(X, Y, Z)[kept])
    return np.sqrt(X**2 + Y**2 + Z**2), kept


@settings(max_examples=30, deadline=None)
@given(low=st.integers(-2000, 500), width=st.integers(310, 3000))
def test_a_box_has_all_cells_with_a_centre_in_it_and_no_other(cube, low, width):
    low, high = low / 10, (low + width) / 10
    if ((cube.y >= low) & (cube.y <= high)).sum() < 2:
        return
    cut = cut_box(cube, y=(low, high))
    assert_in_place(cut)
    np.testing.assert_array_equal(cut.y, cube.y[(cube.y >= low) & (cube.y <= high)])
    np.testing.assert_array_equal(cut.x, cube.x)
    np.testing.assert_array_equal(cut.z, cube.z)


def test_bounds_on_centres_are_included_and_noted(cube):
    cut = cut_box(cube, x=(-30.0, 20.0), z=(0.0, 40.0))
    assert (cut.x[0], cut.x[-1], cut.z[0], cut.z[-1]) == (-30.0, 20.0, 0.0, 40.0)
    assert cut.meta["cut"]["box"] == {"x": [-30.0, 20.0], "z": [0.0, 40.0]}
    assert cut.meta["run"] == "r" and "cut" not in cube.meta
    half = cut_box(cube, x=(0.0, np.inf))
    assert half.x[0] == 0.0 and half.x[-1] == cube.x[-1]
    assert json.loads(json.dumps(half.meta, allow_nan=False)) == half.meta
    assert half.meta["cut"]["box"] == {"x": [0.0, None]}


def test_a_sphere_is_cropped_and_empty_outside(cube):
    cut = cut_sphere(cube, 60.0)
    away, kept = assert_in_place(cut)
    np.testing.assert_array_equal(kept, away <= 60.0)
    np.testing.assert_array_equal(np.isfinite(cut.arrays["support"]), kept)
    assert (cut.x[0], cut.x[-1], cut.y[0], cut.z[-1]) == (-60.0, 60.0, -60.0, 60.0)
    assert cut.arrays["support"].dtype == np.float32
    assert cut.meta["cut"] == {"sphere": 60.0, "centre": [0.0] * 3, "unit": "pc"}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"x": (20.0, -20.0)}, "from low to high"),
        ({"x": (np.nan, 20.0)}, "from low to high"),
        ({"z": (500.0, 600.0)}, "z from 500 to 600 pc holds 0 cells"),
        ({"y": (-5.0, 5.0)}, "holds 1 cells of the map.*every 15"),
    ],
)
def test_an_empty_box_is_refused(cube, bounds, message):
    with pytest.raises(InputError, match=message):
        cut_box(cube, **bounds)


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf, 4.0])
def test_an_empty_sphere_is_refused(cube, radius):
    with pytest.raises(InputError, match=r"positive radius|holds 1 cells"):
        cut_sphere(cube, radius)


def test_curves_are_cut_at_the_next_node(cube):
    means = np.arange(72.0).reshape(12, 6)
    whole = Curves(
        distances=np.array([25.0, 50.0, 75.0, 100.0, 125.0, 150.0]),
        nodes=np.array([1, 3, 5]),
        arrays={"mean": means, "std": means[:, 1::2] / 10},
        last_star=np.full(12, 120.0),
    )
    for reach, nodes in ((100.0, 2), (101.0, 3), (10.0, 1), (999.0, 3)):
        cut = whole.out_to(reach)
        np.testing.assert_array_equal(cut.distances, whole.distances[: 2 * nodes])
        np.testing.assert_array_equal(cut.arrays["mean"], means[:, : 2 * nodes])
        np.testing.assert_array_equal(cut.arrays["std"], means[:, 1::2][:, :nodes] / 10)
        np.testing.assert_array_equal(cut.last_star, whole.last_star)
    small = cut_box(cube, x=(-30.0, 20.0), y=(-45.0, 30.0), z=(0.0, 40.0))
    assert reach_of_cube(small) == pytest.approx(np.hypot(np.hypot(35, 52.5), 50))
