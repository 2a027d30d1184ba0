"""Predictions from neighbouring stars alone, against brute force and known fields."""

from __future__ import annotations

import pytest
import torch
from dense_kriging import dense

from dustmap.residual import learning
from dustmap.residual.covariance import RayCovariance, Rays
from dustmap.residual.field import least_density
from dustmap.residual.kriging import TABLE_ERROR
from dustmap.residual.learning import (
    LocalMeanKriging,
    learn_local_mean_kriging,
    local_means,
)
from dustmap.residual.neighbours import without_self

WEIGHTS = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
SPECTRUM = RayCovariance(weights=WEIGHTS)


def places(count: int, generator: torch.Generator) -> Rays:
    """Rays in a field of some degrees; their density is that of the mean."""
    directions = torch.tensor([1.0, 0, 0], dtype=torch.float64) + 0.05 * torch.randn(
        count, 3, generator=generator, dtype=torch.float64
    )
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    return Rays(
        directions=torch.nn.functional.normalize(directions, dim=-1),
        lengths=200 + 800 * uniform,
        density=torch.full((count,), 2e-3, dtype=torch.float64),
    )


def order(rows: Rays, place: Rays, stretch: float) -> torch.Tensor:
    """All rows from the nearest to the furthest of each place, by all distances."""
    points = [
        torch.cat([stretch * each.directions, each.lengths.log()[:, None]], dim=1)
        for each in (rows, place)
    ]
    return torch.cdist(points[1], points[0]).argsort(dim=1)


def drawn(count: int, generator: torch.Generator) -> tuple[Rays, torch.Tensor]:
    """Rays and noise-free extinctions of a known covariance about a known mean."""
    rays = places(count, generator)
    among = dense(SPECTRUM, rays, rays)
    root = torch.linalg.cholesky(
        among + torch.diag(TABLE_ERROR * torch.diagonal(among))
    )
    field = root @ torch.randn(count, generator=generator, dtype=torch.float64)
    return rays, (rays.density * rays.lengths + field).clamp_min(1e-3)


def observed(rays: Rays, extinction: torch.Tensor) -> Rays:
    return Rays(
        directions=rays.directions,
        lengths=rays.lengths,
        density=extinction / rays.lengths,
    )


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def test_local_means_leave_out_the_star_itself(generator: torch.Generator) -> None:
    rays, extinction = drawn(80, generator)
    seen = observed(rays, extinction)
    near = order(rays, rays, 10.0)[:, 1:]
    found = local_means(seen, None, (5, 300))
    few = extinction[near[:, :5]].sum(1) / rays.lengths[near[:, :5]].sum(1)
    torch.testing.assert_close(found[:, 0], few)
    rest = extinction.sum() - extinction
    torch.testing.assert_close(found[:, 1], rest / (rays.lengths.sum() - rays.lengths))


def test_of_many_stars_some_share_a_local_mean(generator, monkeypatch) -> None:
    rays, extinction = drawn(400, generator)
    seen = observed(rays, extinction)
    own = local_means(seen, None, (100,))
    monkeypatch.setattr(learning, "_MOST_MEANS", 100)
    found = local_means(seen, None, (100,))
    chosen = torch.linspace(0, 399, 100).long()
    torch.testing.assert_close(found[chosen], own[chosen])
    assert float((found - own).norm() / own.norm()) < 0.2


def test_neighbours_without_named_rows() -> None:
    near = torch.tensor([[5, 3, 1], [2, 4, 6]])
    left = without_self(near, torch.tensor([3, 9]))
    assert left.tolist() == [[5, 1], [2, 4]]


@pytest.fixture(scope="module")
def kriged() -> tuple[LocalMeanKriging, Rays, torch.Tensor]:
    """Learnt on 500 noisy stars; 100 places and their true extinction."""
    generator = torch.Generator().manual_seed(5)
    rays, extinction = drawn(600, generator)
    noise = 0.02 * torch.randn(500, generator=generator, dtype=torch.float64)
    known = observed(rays[:500], extinction[:500] + noise)
    variance = torch.full((500,), 0.02**2, dtype=torch.float64)
    held = torch.arange(0, 500, 5)
    found = learn_local_mean_kriging(known, variance, torch.zeros_like(variance), held)
    return found, rays[500:], extinction[500:]


def test_kriging_comes_near_the_exact_process_and_knows_its_error(
    kriged: tuple[LocalMeanKriging, Rays, torch.Tensor],
) -> None:
    found, asked, true = kriged
    mean, variance = found.predict(asked)
    rows = found.observed
    # The process itself: its mean, covariance and noise are known.
    prior = places(1, torch.Generator()).density[0]
    one = Rays(
        directions=rows.directions,
        lengths=rows.lengths,
        density=prior.expand(len(rows)),
    )
    among = dense(SPECTRUM, one, one)
    across = dense(SPECTRUM, asked, one)
    own = torch.diag(0.02**2 + TABLE_ERROR * torch.diagonal(among))
    residual = (rows.density - prior) * rows.lengths
    exact = prior * asked.lengths + across @ torch.linalg.solve(among + own, residual)

    def rmse(guess: torch.Tensor) -> float:
        return float((guess - true).square().mean().sqrt())

    assert rmse(mean) < 1.3 * rmse(exact)
    near = order(rows, asked, 10.0)[:, :5]
    assert rmse(mean) < 0.95 * rmse(rows.density[near].mean(1) * asked.lengths)
    z = (mean - true).abs() / variance.sqrt()
    assert 0.5 < float((z < 1).double().mean()) < 0.85
    assert found.floored == 0


def test_errors_of_distances_are_noise(generator: torch.Generator) -> None:
    rays, extinction = drawn(80, generator)
    seen = observed(rays, extinction)
    noise = torch.full((80,), 0.02**2, dtype=torch.float64)
    distance_std = torch.full((80,), 50.0, dtype=torch.float64)
    held = torch.arange(0, 80, 4)
    found = learn_local_mean_kriging(seen, noise, distance_std, held)
    # Of the second moment of a density that varies about its mean.
    variance = (found.field.rays.density * 50.0) ** 2
    assert bool((found.field.stated > 0.02**2 + variance).all())
    sharp = learn_local_mean_kriging(seen, noise, torch.zeros_like(noise), held)
    torch.testing.assert_close(sharp.field.stated, noise)


def test_dark_rays_are_raised_and_counted(generator: torch.Generator) -> None:
    rays = places(400, generator)
    # Half of the sky is all but empty, and noise makes its means negative.
    dark = rays.directions[:, 1] > 0
    noise = 0.01 * torch.randn(400, generator=generator, dtype=torch.float64)
    extinction = torch.where(dark, -0.01, rays.density * rays.lengths) + noise
    seen = observed(rays, extinction)
    variance = torch.full((400,), 0.01**2, dtype=torch.float64)
    found = learn_local_mean_kriging(
        seen, variance, torch.zeros(400).double(), torch.arange(0, 400, 4)
    )
    least = least_density(extinction, rays.lengths)
    means = local_means(seen, None, (found.count,))[:, 0]
    assert found.floored == int((means < least).sum()) > 0
    assert float(found.field.rays.density.min()) == pytest.approx(least)
