"""The distance at which an extinction is reached, against the closed form."""

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves
from pipelines.formats.zarr import write_zarr
from pipelines.query import open_map

COORDS = SkyCoord(
    l=np.random.default_rng(2).uniform(0, 360, 300) * u.deg,
    b=np.degrees(np.arcsin(np.random.default_rng(3).uniform(-1, 1, 300))) * u.deg,
    frame="galactic",
)


@pytest.fixture(scope="module")
def dust(store):
    return open_map(store)


def reached(value):
    """Where the median is ``value`` [mag], and where the box ends [pc]."""
    directions = unit_vectors(COORDS.l.deg, COORDS.b.deg)
    low = ray_field.density(np.zeros(3))
    slope = (ray_field.density(directions) - low) / 2
    distance = 2 * value / (low + np.sqrt(low**2 + 4 * slope * value))
    return distance, 1 / (np.abs(directions) / ray_field.HALF).max(axis=1)


def test_distance_and_interval_are_where_the_curves_cross(dust):
    crossing, flags = dust.distance_at(COORDS, 0.3 * u.mag, return_flags=True)
    scale = np.exp(ray_field.SCATTER)
    for part, value in zip(crossing, (0.3, 0.3 / scale, 0.3 * scale)):
        true, end = reached(value)
        # Within a step of the face the last slope is followed.
        sure = np.abs(true - end) > ray_field.STEP
        beyond = true > end
        assert part.unit == u.pc and (beyond & sure).sum() < len(true)
        if part is crossing.lower:
            np.testing.assert_allclose(part.value[beyond], end[beyond], rtol=0.02)
        else:
            np.testing.assert_array_equal(np.isnan(part.value[sure]), beyond[sure])
        near = sure & ~beyond
        np.testing.assert_allclose(part.value[near], true[near], rtol=2e-3)
    np.testing.assert_array_equal(flags["not_reached"], np.isnan(crossing.distance))
    np.testing.assert_array_equal(flags["bounded"], np.isfinite(crossing.upper))
    assert not (crossing.lower > crossing.distance).any()
    assert not (crossing.distance > crossing.upper).any()
    crossing, flags = dust.distance_at(COORDS, 0.61, return_flags=True)
    expected = ~flags["not_reached"] & (crossing.distance > ray_field.SEEN * u.pc)
    assert 0 < expected.sum() < len(COORDS)
    np.testing.assert_array_equal(flags["extrapolated"], expected)
    # An extinction that the map never reaches lies beyond its end.
    crossing, flags = dust.distance_at(COORDS[:5], 50 * u.mag, return_flags=True)
    assert np.isnan(crossing.distance).all() and np.isnan(crossing.upper).all()
    np.testing.assert_allclose(crossing.lower.value, end[:5], rtol=0.02)
    assert flags["not_reached"].all() and flags["inside"].all()


def test_it_is_the_inverse_of_the_query(dust):
    found = dust.distance_at(COORDS, 0.25).distance
    there = SkyCoord(COORDS.l, COORDS.b, distance=found, frame="galactic")
    kept = np.isfinite(found)
    assert kept.sum() > 100
    back = dust.query(there[kept], integrated=True, mode="median")
    np.testing.assert_allclose(back.value, 0.25, rtol=1e-9)


def test_one_extinction_for_each_coordinate_and_any_shape(dust):
    coords = COORDS[:6].reshape(2, 3)
    values = np.linspace(0.1, 0.3, 6).reshape(2, 3)
    crossing = dust.distance_at(coords, values * u.mag)
    assert crossing.distance.shape == (2, 3)
    for i in np.ndindex(2, 3):
        one = dust.distance_at(coords[i], values[i])
        assert one.distance == crossing.distance[i] and one.distance.isscalar


@pytest.mark.parametrize("value", [0, -1, np.nan, [0.1, 0.2], 3 * u.pc])
def test_an_extinction_that_cannot_be_reached_is_refused(dust, value):
    with pytest.raises(InputError, match="extinction"):
        dust.distance_at(COORDS[:3], value)


def test_a_curve_that_falls_is_crossed_first_where_it_first_gets_there(tmp_path):
    """A density that may be negative: mean and std give the interval."""
    distance = np.array([100.0, 200.0, 300.0, 400.0])
    curve = np.array([1.0, 0.5, 1.0, 2.0], dtype=np.float32)
    mean = np.tile(curve[:, None], (1, 12))
    axis = np.array([-1000.0, 1000.0])
    fields = dict.fromkeys(("mean", "std", "support"), np.ones((2, 2, 2), np.float32))
    write_zarr(
        tmp_path / "g.zarr",
        Cube(x=axis, y=axis, z=axis, arrays=fields),
        Curves(
            distances=distance,
            nodes=np.arange(4),
            arrays={"mean": mean.T, "std": np.full_like(mean.T, 0.25)},
            last_star=np.full(12, 400.0, np.float32),
        ),
    )
    crossing = open_map(tmp_path / "g.zarr").distance_at(COORDS[:20], 0.75)
    np.testing.assert_allclose(crossing.distance.value, 75.0)
    np.testing.assert_allclose(crossing.lower.value, 60.0)
    np.testing.assert_allclose(crossing.upper.value, 100.0)
