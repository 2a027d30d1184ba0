"""Nested grids: look-ups against slow loops, faces, positions outside."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

import dustmap
from dustmap.grid import Grid
from dustmap.nested_grids import NestedGrids

# Boxes with sides of different lengths, not in each other's middle.
THREE = NestedGrids(
    grids=(
        Grid(shape=(9, 8, 6), spacing=(4.0, 2.0, 1.0), origin=(-16.0, -6.0, -2.0)),
        Grid(shape=(7, 5, 5), spacing=(2.0, 1.0, 0.5), origin=(-8.0, -2.0, 0.0)),
        Grid(shape=(4, 3, 2), spacing=(1.0, 0.5, 0.25), origin=(-6.0, 0.0, 1.0)),
    )
)
ONE_AXIS = NestedGrids(grids=(Grid(shape=(5,), spacing=(0.3,), origin=(-0.1,)),))


def arrays(grids: NestedGrids) -> list[np.ndarray]:
    """Other values on every grid: what a level knows, no other one does."""
    rng = np.random.default_rng(3)
    return [rng.normal(size=grid.shape) + 10 * n for n, grid in enumerate(grids)]


def positions(grids: NestedGrids, count: int = 300) -> np.ndarray:
    """Random ones in every box and beyond the coarsest, and all corners."""
    rng, found = np.random.default_rng(4), []
    for grid in grids:
        lower, upper = np.array(grid.lower), np.array(grid.upper)
        unit = rng.uniform(-0.2, 1.2, size=(count, grid.dimension))
        found += [lower + unit * (upper - lower)]
        found += [np.array(list(itertools.product(*zip(lower, upper))))]
    return np.concatenate(found)


def level_at(grids: NestedGrids, point: np.ndarray) -> int:
    for level in range(len(grids) - 1, -1, -1):
        if bool(grids[level].contains(point)):
            return level
    return -1


def sampled_at(grids: NestedGrids, values: list[np.ndarray], point) -> float:
    """The sum over all points of a grid of values times hat functions."""
    level = level_at(grids, point)
    if level < 0:
        return np.nan
    grid, total = grids[level], 0.0
    for index in np.ndindex(grid.shape):
        weight = 1.0
        for axis, i in enumerate(index):
            place = (point[axis] - grid.origin[axis]) / grid.spacing[axis]
            weight *= max(0.0, 1.0 - abs(place - i))
        total += weight * values[level][index]
    return total


@pytest.mark.parametrize("grids", [THREE, ONE_AXIS])
def test_values_are_those_of_hat_functions_on_the_finest_grid(grids):
    values, x = arrays(grids), positions(grids, 40)
    expected = [sampled_at(grids, values, point) for point in x]
    np.testing.assert_allclose(grids.sample(values, x), expected, rtol=1e-12)
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_array_equal(
        grids.level_of(x), [level_at(grids, point) for point in x]
    )


@pytest.mark.parametrize("grids", [THREE, ONE_AXIS])
def test_corners_and_their_weights_make_the_same_values(grids):
    values, x = arrays(grids), positions(grids)
    found = np.full(len(x), np.nan)
    for level, rows, index, weight in grids.corners(x):
        assert index.shape == (2**grids.dimension, len(rows), grids.dimension)
        np.testing.assert_allclose(weight.sum(axis=0), 1.0, rtol=1e-14)
        assert (weight >= 0).all()
        corner = values[level][tuple(np.moveaxis(index, -1, 0))]
        found[rows] = (weight * corner).sum(axis=0)
    np.testing.assert_allclose(found, grids.sample(values, x), rtol=1e-12)


@pytest.mark.parametrize("grids", [THREE, ONE_AXIS])
def test_the_nearest_point_is_nearer_than_all_others(grids):
    x = positions(grids)
    seen = np.zeros(len(x), dtype=int)
    for level, rows, index in grids.nearest(x):
        grid = grids[level]
        points = grid.points().numpy()
        steps = np.array(grid.spacing)
        apart = np.abs((x[rows, None] - points) / steps).max(axis=-1)
        found = np.ravel_multi_index(tuple(index.T), grid.shape)
        np.testing.assert_allclose(
            apart[np.arange(len(rows)), found], apart.min(axis=1), atol=1e-9
        )
        seen[rows] += 1
        assert (grids.level_of(x[rows]) == level).all()
    np.testing.assert_array_equal(seen, grids.level_of(x) >= 0)


def test_rounding_beyond_a_face_counts_as_on_it():
    values = arrays(THREE)
    for level, grid in enumerate(THREE):
        upper, step = np.array([grid.upper]), np.array(grid.spacing)
        on = THREE.sample(values, upper)
        np.testing.assert_allclose(on, values[level][-1, -1, -1], rtol=1e-14)
        np.testing.assert_array_equal(THREE.sample(values, upper + 1e-9 * step), on)
        assert THREE.level_of(upper + 1e-4 * step)[0] == level - 1
    nowhere = np.array([[np.nan, 0.0, 0.0], [np.inf, 0.0, 0.0]])
    assert (THREE.level_of(nowhere) == -1).all()
    assert np.isnan(THREE.sample(values, nowhere)).all()


def test_single_precision_values_give_double_precision():
    values, x = arrays(THREE), positions(THREE, 20)
    single = [array.astype(np.float32) for array in values]
    found = THREE.sample(single, x)
    assert found.dtype == np.float64
    exact = THREE.sample([array.astype(np.float64) for array in single], x)
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize(
    ("spacing", "origin", "shape", "match"),
    [
        ((0.4, 0.4), (-4.0, -4.0), (9, 9), "halved"),
        ((0.5, 0.5), (-4.25, -4.0), (9, 9), "corner"),
        ((0.5, 0.5), (-4.0, -4.0), (33, 9), "corner"),
        ((0.5,), (-4.0,), (9,), "axes"),
    ],
)
def test_grids_that_are_not_nested_are_refused(spacing, origin, shape, match):
    coarse = Grid(shape=(17, 17), spacing=(1.0, 1.0), origin=(-8.0, -8.0))
    fine = Grid(shape=shape, spacing=spacing, origin=origin)
    with pytest.raises(ValueError, match=match):
        NestedGrids(grids=(coarse, fine)).require_shared_points()
    with pytest.raises(ValueError, match="at least one"):
        NestedGrids(grids=())


def test_the_mathematics_is_reached_by_name_and_loaded_when_it_is_used():
    assert {"Grid", "NestedGrids", "Matern32", "LogNormal", "infer"} <= set(
        dir(dustmap)
    )
    assert dustmap.Grid is Grid and dustmap.NestedGrids is NestedGrids
    assert all(getattr(dustmap, name) is not None for name in dustmap.__all__)
    with pytest.raises(AttributeError, match="Gird"):
        dustmap.Gird  # noqa: B018  # pyright: ignore
    program = (
        "import dustmap, sys; assert not {'torch', 'pipelines'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
