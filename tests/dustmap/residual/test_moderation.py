"""Variances of few samples share a law, which is found again and lowers their noise."""

import numpy as np
import pytest
import torch
from scipy.special import polygamma

from dustmap.moments import log_variance, moments_over_samples
from dustmap.residual.moderation import VarianceLaw, learn_variance_law

PLACES, DEGREES, PRIOR_DEGREES = 20_000, 16, 30
SLOPES = np.array([0.4, -0.2])
ANY = torch.tensor([torch.inf])


def halves_of(true: np.ndarray, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimates from two halves of the samples."""
    random, half = np.random.default_rng(seed), DEGREES // 2
    one, other = (
        torch.from_numpy(true * random.chisquare(half, len(true)) / half)
        for _ in range(2)
    )
    return one, other


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Surroundings, true variances, and their estimates."""
    random = np.random.default_rng(1)
    around = random.standard_normal((PLACES, 2))
    scatter = random.chisquare(PRIOR_DEGREES, PLACES) / PRIOR_DEGREES
    true = 0.3 * np.exp(around @ SLOPES) / scatter
    return torch.from_numpy(around), torch.from_numpy(true), halves_of(true, 2)


def noise_of(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found / true).log().std())


def test_the_law_is_found_and_the_noise_falls_as_in_theory(problem) -> None:
    around, true, halves = problem
    variances = (halves[0] + halves[1]) / 2
    law = learn_variance_law(variances, halves, around)
    assert law.degrees == pytest.approx(DEGREES, rel=0.05)
    assert law.prior_degrees == pytest.approx(PRIOR_DEGREES, rel=0.1)
    assert law.coefficients[1:].numpy() == pytest.approx(SLOPES, abs=0.02)
    better = law.moderated(variances, around, ANY)
    before, after = (polygamma(1, n / 2) for n in (DEGREES, DEGREES + PRIOR_DEGREES))
    assert noise_of(variances, true) == pytest.approx(before**0.5, rel=0.03)
    assert noise_of(better, true) == pytest.approx(after**0.5, rel=0.03)
    assert float(better.mean() / variances.mean()) == pytest.approx(1, abs=0.02)


def test_an_exact_law_replaces_the_samples(problem) -> None:
    around, _, _ = problem
    true = 0.3 * np.exp(around.numpy() @ SLOPES)
    halves = halves_of(true, 3)
    variances = (halves[0] + halves[1]) / 2
    law = learn_variance_law(variances, halves, around)
    assert law.prior_degrees > 300
    better = law.moderated(variances, around, ANY)
    assert noise_of(better, torch.from_numpy(true)) < 0.1


def test_a_place_alone_and_beyond_the_range(problem) -> None:
    around, _, halves = problem
    law = learn_variance_law(halves[0], halves, around)
    together = law.moderated(halves[0], around, ANY)
    for n in (0, 17, PLACES - 1):
        alone = law.moderated(halves[0][n : n + 1], around[n : n + 1], ANY)
        assert torch.equal(alone, together[n : n + 1])

    def at(*edge: float, most: float = torch.inf) -> float:
        place, limit = torch.tensor([edge]).double(), torch.tensor([most])
        return float(law.moderated(torch.full((1,), 0.3), place, limit))

    # Below the range, or where variances would fall, it counts as its end; where they
    # grow they do up to the prior's.
    ends = law.lower[0].item(), law.upper[1].item()
    assert at(-torch.inf, 99.0) == pytest.approx(at(*ends))
    inside, beyond = at(law.upper[0].item(), 0.0), at(6.0, 0.0)
    assert beyond > 1.5 * inside
    assert at(6.0, 0.0, most=2.0) == at(99.0, 0.0, most=2.0)
    assert inside < at(6.0, 0.0, most=2.0) < beyond


def test_moderated_moments_keep_the_median_between_samples() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(32, 500, generator=generator, dtype=torch.float64).exp()
    left = 0.2 * values**2
    same = moments_over_samples(values, left, positive=True, moderate=lambda v: v)
    usual = moments_over_samples(values, left, positive=True)
    torch.testing.assert_close((same.mean, same.std), (usual.mean, usual.std))
    known = moments_over_samples(
        values, 0 * left, positive=True, moderate=torch.ones_like
    )
    median = usual.mean * (-log_variance(values) / 2).exp()
    torch.testing.assert_close(known.quantile(0.5), median)
    ratio = torch.full_like(median, np.expm1(1.0) ** 0.5)
    torch.testing.assert_close(known.std / known.mean, ratio)


def test_a_law_without_weight_changes_nothing() -> None:
    law = VarianceLaw(
        coefficients=torch.ones(2),
        lower=-torch.ones(1),
        upper=torch.ones(1),
        degrees=16.0,
        prior_degrees=0.0,
    )
    found = torch.rand(5)
    assert torch.equal(law.moderated(found, torch.rand(5, 1), ANY), found)
