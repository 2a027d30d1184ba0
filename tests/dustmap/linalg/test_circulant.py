"""Circulant matrices against their dense selves."""

from __future__ import annotations

import itertools

import pytest
import torch
from linear_operators import check_linear_operator

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern32, SquaredExponential
from dustmap.linalg.circulant import Circulant

SHAPES = [(8,), (7,), (4, 6), (6, 5), (3, 4, 5), (4, 2, 6)]


def column_on(shape, kernel=None):
    d = len(shape)
    kernel = Matern32(lengthscale=1.2) if kernel is None else kernel
    grid = Grid(shape=(2,) * d, spacing=(1.0,) * d, origin=(0.0,) * d)
    torus = Torus(grid=grid, shape=shape)
    return kernel.periodised(torus.periods)(torus.lags())


def dense(column):
    """``C_ij = c[(i − j) mod n]`` written out index by index."""
    index = list(itertools.product(*(range(n) for n in column.shape)))
    rows = [
        [
            float(column[tuple((a - b) % n for a, b, n in zip(i, j, column.shape))])
            for j in index
        ]
        for i in index
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_dense_matrix(shape, generator):
    column = column_on(shape)
    circulant = Circulant.from_first_column(column)
    check_linear_operator(circulant, generator=generator)
    assert torch.allclose(circulant.to_dense(), dense(column), atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_powers_are_those_of_the_dense_matrix(shape, generator):
    column = column_on(shape)
    circulant = Circulant.from_first_column(column)
    C, root = dense(column), circulant.power(0.5).to_dense()
    assert torch.allclose(root @ root, C, atol=1e-13)
    assert torch.allclose(root, root.mT, atol=1e-14)
    inverse = circulant.power(-1.0).to_dense()
    assert torch.allclose(inverse @ C, torch.eye(len(C)).double(), atol=1e-10)
    check_linear_operator(circulant.power(-0.5), generator=generator)


@pytest.mark.parametrize(("lengthscale", "lost"), [(2.0, 0), (3.0, 9), (4.0, 23)])
def test_modes_that_rounding_swallows_are_dropped_and_counted(lengthscale, lost):
    # D_k / D_0 = exp(−(2π k ℓ / 64)² / 2) falls to 1e-14 at k ℓ = 81.8.
    kernel = SquaredExponential(lengthscale=lengthscale)
    circulant = Circulant.from_first_column(column_on((64,), kernel))
    assert circulant.dropped_modes() == lost
    inverse = circulant.power(-1.0)
    assert inverse.dropped_modes() == lost
    kept = inverse.spectrum > 0
    unit = (circulant.spectrum * inverse.spectrum)[kept]
    assert torch.allclose(unit, torch.ones_like(unit))
    assert bool((circulant.power(1.0).spectrum >= 0).all())


def test_dropped_modes_of_two_axes_are_those_of_the_full_spectrum():
    column = column_on((20, 18), SquaredExponential(lengthscale=[3.0, 2.5]))
    full = torch.fft.fftn(column).real
    lost = int((full <= 1e-14 * full.max()).sum())
    assert lost > 50
    assert Circulant.from_first_column(column).dropped_modes() == lost
