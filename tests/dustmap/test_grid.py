"""Regular grids and the torus around them."""

from __future__ import annotations

import math

import pytest
import torch

from dustmap.grid import Grid, Torus, smooth_size

GRID = Grid(shape=(4, 3, 2), spacing=(1.0, 2.0, 0.5), origin=(-1.0, -2.0, 3.0))


def test_points_are_in_C_order_with_the_last_axis_fastest():
    points = GRID.points()
    assert points.shape == (GRID.size, 3) and points.dtype == torch.float64
    for n, (i, j, k) in enumerate(
        (i, j, k) for i in range(4) for j in range(3) for k in range(2)
    ):
        assert points[n].tolist() == [-1.0 + i, -2.0 + 2 * j, 3.0 + 0.5 * k]
    assert GRID.lower == (-1.0, -2.0, 3.0) and GRID.upper == (2.0, 2.0, 3.5)


def test_the_box_is_closed():
    inside = torch.tensor([GRID.lower, GRID.upper, (0.0, 0.0, 3.2)])
    assert GRID.contains(inside.to(torch.float64)).all()
    for axis in range(3):
        for corner, sign in ((GRID.lower, -1), (GRID.upper, 1)):
            outside = torch.tensor([corner], dtype=torch.float64)
            outside[0, axis] += sign * 1e-6
            assert not GRID.contains(outside).any()
    assert not GRID.contains(torch.tensor([[0.0, math.nan, 3.2]])).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (4, 3, 1)}, "at least 2"),
        ({"shape": (4, 3)}, "axes"),
        ({"spacing": (1.0, 0.0, 1.0)}, "spacing"),
        ({"spacing": (1.0, math.nan, 1.0)}, "spacing"),
        ({"origin": (0.0, math.nan, 1.0)}, "origin"),
    ],
)
def test_a_grid_that_is_none_is_refused(change, message):
    right = {"shape": (4, 3, 2), "spacing": (1.0,) * 3, "origin": (0.0,) * 3}
    with pytest.raises(ValueError, match=message):
        Grid(**{**right, **change})
    with pytest.raises(ValueError, match="1 to 3 axes"):
        Grid(shape=(2,) * 4, spacing=(1.0,) * 4, origin=(0.0,) * 4)


def test_sizes_for_the_FFT_are_even_products_of_small_primes():
    smooth = {
        2**a * 3**b * 5**c * 7**d
        for a in range(1, 9)
        for b in range(6)
        for c in range(4)
        for d in range(4)
    }
    for n in range(1, 300):
        assert smooth_size(n) == min(s for s in smooth if s >= n)


@pytest.mark.parametrize("shape", [(6,), (7,), (5, 6), (4, 5, 3)])
def test_lags_are_the_shortest_ways_around_the_torus(shape):
    d = len(shape)
    grid = Grid(shape=(3,) * d, spacing=(0.5, 2.0, 1.0)[:d], origin=(0.0,) * d)
    torus = Torus(grid=grid, shape=shape)
    lags = torus.lags()
    assert lags.shape == (*shape, d)
    for axis, (n, h, period) in enumerate(
        zip(shape, grid.spacing, torus.periods, strict=True)
    ):
        assert period == n * h
        place = torch.arange(n, dtype=torch.float64) * h
        view = [1] * d
        view[axis] = -1
        along = lags[..., axis]
        apart = (along - place.reshape(view)) / period
        assert torch.allclose(apart, apart.round(), atol=1e-12)
        assert float(along.abs().max()) <= period / 2 * (1 + 1e-14)
