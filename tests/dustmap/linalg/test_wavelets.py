"""Wavelets of fields of any size."""

from __future__ import annotations

import pytest
import torch

from dustmap.linalg.wavelets import analyse, bands, halvings, synthesise

SHAPES = [(40,), (25,), (9, 8, 15), (30, 7, 16), (5, 3), (1, 21)]


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_field_comes_back(shape):
    field = torch.randn(shape, generator=rng(), dtype=torch.float64)
    torch.testing.assert_close(synthesise(analyse(field)), field, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_bands_hold_every_coefficient_once(shape):
    times = torch.zeros(shape)
    for band in bands(shape):
        times[band] += 1
    assert bool((times == 1).all())
    assert times[bands(shape)[0]].shape == halvings(shape)[-1]


@pytest.mark.parametrize("size", [64, 61])
def test_cubic_polynomials_have_no_details_but_at_the_ends(size):
    x = torch.linspace(-1, 1, size, dtype=torch.float64)
    details = analyse(1 + x - 2 * x**2 + 3 * x**3)[(size + 1) // 2 :]
    assert float(details[2:-2].abs().max()) < 1e-13
    quartic = analyse(x**4)[(size + 1) // 2 :]
    assert float(quartic[2:-2].abs().max()) > 1e-8


def test_an_error_of_the_coefficients_is_one_of_the_field():
    noise = torch.randn(40, 36, 50, generator=rng(), dtype=torch.float64)
    assert float(synthesise(noise).std()) == pytest.approx(1, abs=0.08)


def test_a_jump_is_a_matter_of_the_coefficients_beside_it():
    field = torch.zeros(128, dtype=torch.float64)
    field[51:] = 1
    details = analyse(field)[64:]
    assert float(details[24:27].abs().max()) > 0.1
    details[22:30] = 0
    assert float(details.abs().max()) < 1e-13
