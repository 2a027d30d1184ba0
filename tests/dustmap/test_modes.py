"""Fourier modes in place of white noise: the same fields and inner products."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12
from dustmap.whitening import (
    LevelWhitening,
    ModeWhitening,
    SpectralWhitening,
    TorusWhitening,
    nested_tori,
)

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
def _whitening(request) -> SpectralWhitening:
    if request.param == "levels":
        return on_levels()
    shapes = {"1-D": (15,), "odd": (6, 8, 7), "even": (9, 10), "refined": (6, 5)}
    return on_torus(shapes[request.param], 2 if request.param == "refined" else 1)


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_modes_are_an_isometry(whitening: SpectralWhitening) -> None:
    modes, eps = ModeWhitening(whitening), normal(3, whitening.size)
    x = modes.modes(eps)
    assert x.shape == (3, modes.size) and modes.white_size == whitening.size
    torch.testing.assert_close(x @ x.mT, eps @ eps.mT)
    torch.testing.assert_close(modes.white(x), eps)


def test_fields_of_modes_are_those_of_their_noise(whitening: SpectralWhitening) -> None:
    modes, eps = ModeWhitening(whitening), normal(2, whitening.size)
    torch.testing.assert_close(modes.colour(modes.modes(eps)), whitening.colour(eps))
    field = normal(2, whitening.fine_size)
    expected = modes.modes(whitening.colour_transpose(field))
    torch.testing.assert_close(modes.colour_transpose(field), expected)


def test_products_are_adjoint_for_vectors_that_are_no_modes(
    whitening: SpectralWhitening,
) -> None:
    modes = ModeWhitening(whitening)
    x, field = normal(2, modes.size), normal(3, whitening.fine_size)
    here = modes.colour(x) @ field.mT
    torch.testing.assert_close(here, x @ modes.colour_transpose(field).mT)


def test_the_longest_modes_are_those_of_a_smooth_field() -> None:
    whitening = on_torus((12, 16))
    modes = ModeWhitening(whitening)
    waves = [
        torch.cos(2 * math.pi * k * torch.arange(n, dtype=torch.float64) / n)
        for k, n in ((2, 12), (3, 16))
    ]
    x = modes.modes((waves[0][:, None] * waves[1]).flatten())
    for fraction, kept in ((0.4, True), (0.3, False)):
        found = modes.longest(fraction)
        assert len(found) == len(found.unique())
        rest = x.clone()
        rest[found] = 0.0
        assert (float(rest.norm()) < 1e-12 * float(x.norm())) == kept


def test_a_field_has_the_modes_of_its_noise() -> None:
    whitening = on_torus((8, 9))
    modes, eps = ModeWhitening(whitening), normal(2, whitening.size)
    x = modes.whiten(whitening.colour(eps))
    torch.testing.assert_close(x, modes.modes(eps))
