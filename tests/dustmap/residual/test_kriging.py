"""Kriging from neighbours against dense Gaussian processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad

from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import krige, vecchia_log_likelihood
from dustmap.residual.neighbours import earlier, nearest
from dustmap.residual.ray_table import ray_table
from dustmap.residual.rays import Rays


def rays(count: int, generator: torch.Generator) -> Rays:
    """Rays in a field of some degrees."""
    directions = torch.tensor([1.0, 0, 0], dtype=torch.float64) + 0.1 * torch.randn(
        count, 3, generator=generator, dtype=torch.float64
    )
    uniform = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return Rays(
        directions=torch.nn.functional.normalize(directions, dim=-1),
        lengths=100 + 900 * uniform[0],
        density=1e-3 * (1 + uniform[1]),
    )


def spectrum() -> FreeSpectrum:
    return FreeSpectrum(
        weights=torch.tensor([0.5, 1.0], dtype=torch.float64), lengthscales=(20.0, 90.0)
    )


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("angle", "u", "v"),
    [(0.0, 0.4, 2.0), (0.3, 1.0, 1.0), (1.2, 0.5, 3.0), (0.05, 4.0, 4.5), (3.0, 2.0, 2.0)],
)
def test_the_table_is_the_double_integral(angle: float, u: float, v: float) -> None:
    def decay(t: float, s: float) -> float:
        square = s * s + t * t - 2 * s * t * np.cos(angle)
        return float(np.exp(-np.sqrt(max(square, 0.0))))

    expected = dblquad(decay, 0, u, 0, v, epsabs=1e-6)[0]
    chord = 2 * np.sin(angle / 2)
    value = ray_table()(*(torch.tensor(x, dtype=torch.float64) for x in (chord, u, v)))
    assert float(value) == pytest.approx(expected, rel=5e-3)


def test_earlier_rows_are_the_nearest_of_those_before(
    generator: torch.Generator,
) -> None:
    points = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    found = earlier(points, 7)
    for row in (1, 5, 40, 299):
        distance = (points[:row] - points[row]).norm(dim=1)
        expected = distance.argsort()[:7].tolist()
        assert [n for n in found[row].tolist() if n >= 0] == expected


def test_all_neighbours_make_the_exact_process(generator: torch.Generator) -> None:
    rows, places = rays(60, generator), rays(9, generator)
    noise = torch.full((60,), 1e-3, dtype=torch.float64)
    residuals = torch.randn(60, generator=generator, dtype=torch.float64)
    kernel = spectrum()
    found = krige(kernel, rows, noise, places, torch.arange(60).expand(9, 60))
    among = kernel(rows[:, None], rows[None]) + torch.diag(noise)
    across = kernel(places[:, None], rows[None])
    solved = torch.linalg.solve(among, across.T)
    assert torch.allclose(found.mean(residuals), residuals @ solved, rtol=1e-8)
    variance = kernel(places, places) - (across.T * solved).sum(0)
    assert torch.allclose(found.variance, variance, rtol=1e-6)


def test_vecchia_with_all_earlier_rows_is_exact(generator: torch.Generator) -> None:
    rows = rays(80, generator)
    noise = torch.full((80,), 2e-3, dtype=torch.float64)
    kernel = spectrum()
    residuals = torch.randn(80, generator=generator, dtype=torch.float64) * 0.1
    before = earlier(rows.coordinates(10.0), 79)
    among = kernel(rows[:, None], rows[None]) + torch.diag(noise)
    exact = torch.distributions.MultivariateNormal(
        torch.zeros(80, dtype=torch.float64), among
    ).log_prob(residuals)
    found = vecchia_log_likelihood(kernel, rows, noise, residuals, before)
    assert float(found) == pytest.approx(float(exact), rel=1e-9)


def test_more_neighbours_come_closer_to_the_exact_prediction(
    generator: torch.Generator,
) -> None:
    rows, places = rays(400, generator), rays(50, generator)
    noise = torch.full((400,), 1e-3, dtype=torch.float64)
    kernel = spectrum()
    whole = krige(kernel, rows, noise, places, torch.arange(400).expand(50, 400))

    def error(count: int) -> float:
        near = nearest(rows.coordinates(10.0), places.coordinates(10.0), count)
        found = krige(kernel, rows, noise, places, near)
        return float((found.variance / whole.variance - 1).mean())

    errors = [error(count) for count in (5, 20, 80)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02
