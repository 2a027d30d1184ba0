"""Fourier modes of white noise: the same fields and inner products."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12
from dustmap.whitening import GridWhitening, LevelWhitening, TorusWhitening, nested_tori

KERNEL = Matern12(lengthscale=3.0)


def on_torus(shape: tuple[int, ...], refinement: int = 1) -> TorusWhitening:
    d = len(shape)
    grid = Grid(shape=(4,) * d, spacing=(1.0,) * d, origin=(0.0,) * d)
    torus = Torus(grid=grid, shape=shape)
    return TorusWhitening(KERNEL, torus, refinement=refinement)


def on_levels() -> LevelWhitening:
    grids = [
        Grid(shape=(9, 9), spacing=(h, h), origin=(-4 * h, -4 * h)) for h in (1.0, 0.5)
    ]
    return LevelWhitening(KERNEL, nested_tori(grids, KERNEL, 0.01))


@pytest.fixture(
    params=["1-D", "odd", "even", "refined", "levels"], name="whitening", scope="module"
)
def _whitening(request) -> GridWhitening:
    if request.param == "levels":
        return on_levels()
    shapes = {"1-D": (15,), "odd": (6, 8, 7), "even": (9, 10), "refined": (6, 5)}
    return on_torus(shapes[request.param], 2 if request.param == "refined" else 1)


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def basis(whitening: GridWhitening) -> Tensor:
    """T, one column for each point of the tori."""
    count = sum(part.torus.size for part in whitening.modes.parts)
    return whitening.modes.of(torch.eye(count, dtype=torch.float64)).mT


def test_modes_are_an_isometry(whitening: GridWhitening) -> None:
    T = basis(whitening)
    assert len(T) == whitening.size
    eye = torch.eye(T.shape[1], dtype=torch.float64)
    torch.testing.assert_close(T.mT @ T, eye, rtol=0.0, atol=1e-14)
    found, before = [], 0
    for part, x in zip(whitening.modes.parts, whitening.modes.spectra(T.mT)):
        size = part.torus.size
        white = part.flat(part.inverse(x / part.pairs.sqrt()))
        found.append(white[before : before + size])
        before += size
    white = torch.block_diag(*[torch.eye(len(part)).double() for part in found])
    torch.testing.assert_close(torch.block_diag(*found), white)


def test_no_field_depends_on_what_is_no_mode_of_any_noise(
    whitening: GridWhitening,
) -> None:
    T, eps = basis(whitening), normal(2, whitening.size)
    within = eps @ T @ T.mT
    assert float((within - eps).norm()) > 0.1
    torch.testing.assert_close(whitening.colour(within), whitening.colour(eps))


def test_white_noise_is_that_of_the_points(whitening: GridWhitening) -> None:
    found = whitening.modes.white_noise(np.random.default_rng(2))
    T = basis(whitening)
    white = torch.from_numpy(np.random.default_rng(2).standard_normal(T.shape[1]))
    torch.testing.assert_close(found, T @ white)


def test_the_longest_modes_are_those_of_a_smooth_field() -> None:
    modes = on_torus((12, 16)).modes
    waves = [
        torch.cos(2 * math.pi * k * torch.arange(n, dtype=torch.float64) / n)
        for k, n in ((2, 12), (3, 16))
    ]
    x = modes.of((waves[0][:, None] * waves[1]).flatten())
    for fraction, kept in ((0.4, True), (0.3, False)):
        found = modes.longest(fraction)
        assert len(found) == len(found.unique())
        rest = x.clone()
        rest[found] = 0.0
        assert (float(rest.norm()) < 1e-12 * float(x.norm())) == kept
