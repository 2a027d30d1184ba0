"""Natural steps against dense algebra and autograd."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.gaussian import (
    Batch,
    NaturalGaussian,
    StepReport,
    block_prior,
)
from dustmap.likelihoods import Gaussian, Likelihood, StudentT
from dustmap.models.rowwise import FeatureRows

SIZE, COUNT = 12, 30


def factorised() -> NaturalGaussian:
    return block_prior((SIZE,), SIZE)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Problem:
    """Features, offsets and conditional variances as a whitening would give them."""

    def __init__(self, generator: torch.Generator, likelihood: Likelihood) -> None:
        self.features = 0.4 * normal(generator, COUNT, SIZE)
        self.offset = 0.3 * normal(generator, COUNT)
        self.variance = 0.2 * normal(generator, COUNT) ** 2
        self.values = self.features @ normal(generator, SIZE)
        self.likelihood = likelihood

    def moments(self, mean: Tensor, quadratic: Tensor) -> tuple[Tensor, Tensor]:
        return self.offset + self.features @ mean, quadratic + self.variance

    def batch(self, q, scale: float = 1.0) -> Batch:
        variance = q.quadratic(self.features) + self.variance
        data = Observations(
            values=self.values, likelihood=self.likelihood, offset=self.offset
        )
        return data.batch(
            FeatureRows(self.features, self.variance),
            (self.offset + self.features @ q.mean, variance),
            scale=scale,
        )

    def bound(self, mean: Tensor, S: Tensor, scale: float = 1.0) -> Tensor:
        """The bound with dense algebra."""
        quadratic = ((self.features @ S) * self.features).sum(dim=1)
        moments = self.moments(mean, quadratic)
        expected = self.likelihood.expected(self.values, *moments).sum()
        determinant = torch.linalg.slogdet(S)[1]
        KL = 0.5 * (S.trace() + mean @ mean - determinant - SIZE)
        return scale * expected - KL


LIKELIHOODS = {
    "gaussian": Gaussian(variance=0.3),
    "student": StudentT(scale=3.0, degrees=60.0),
}


def textbook_step(problem: Problem, mean: Tensor, S: Tensor, rate: float, scale: float):
    """``θ + l ∂L/∂η`` by autograd through the expectation parameters."""
    first = mean.clone().requires_grad_(True)
    second = (S + torch.outer(mean, mean)).requires_grad_(True)
    bound = problem.bound(first, second - torch.outer(first, first), scale)
    by_first, by_second = torch.autograd.grad(bound, (first, second))
    precision = torch.linalg.inv(S)
    # θ₂ = −½ S⁻¹.
    moved = precision - 2 * rate * (by_second + by_second.mT) / 2
    theta = precision @ mean + rate * by_first
    return torch.linalg.solve(moved, theta), moved


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_step_is_the_natural_gradient(kind, generator):
    problem = Problem(generator, LIKELIHOODS[kind])
    q = factorised().with_mean(0.1 * normal(generator, SIZE))
    total = StepReport()
    for rate in (0.3, 0.05):
        old = q.precision[0].clone()
        S = torch.linalg.inv(old)
        mean, precision = textbook_step(problem, q.mean, S, rate, 2.0)
        q, report = q.safe_step(problem.batch(q, 2.0), rate)
        total = total + report
        found = q.precision[0]
        torch.testing.assert_close(found, precision, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(q.mean, mean, rtol=1e-8, atol=1e-9)
    assert total.steps == 2
    assert total.halved == total.clipped == total.limited == 0


def test_rows_without_curvature_take_no_precision_away(generator):
    problem = Problem(generator, StudentT(scale=0.05, degrees=1.0))
    problem.values[:10] += 50.0
    q = factorised()
    batch = problem.batch(q, 5.0)
    q, report = q.safe_step(batch, 1.0)
    assert batch.clipped >= 10
    assert report.clipped == batch.clipped == int((batch.weight == 0).sum())
    assert float(torch.linalg.eigvalsh(q.precision[0])[0]) > 1 - 1e-9


def test_a_step_of_the_mean_that_overshoots_is_halved():
    """A quartic: its curvature at the start says little about where a step ends."""
    k = torch.zeros(1, SIZE, dtype=torch.float64)
    k[0, 0] = 1.0

    def objective(mean: Tensor) -> float:
        return -1e4 * float((mean[0] - 0.5) ** 4)

    q = factorised()
    before = objective(q.mean)
    batch = Batch(
        features=k,
        target=torch.tensor([4e4 * 0.5**3], dtype=torch.float64),
        weight=torch.tensor([200.0], dtype=torch.float64),
        objective=objective,
    )
    q, report = q.safe_step(batch, 0.9)
    assert (report.halved, report.refused) == (1, 0)
    assert objective(q.mean) - 0.5 * float(q.mean @ q.mean) > before
    assert float(q.mean[0]) > 0


def test_a_step_that_never_helps_is_refused(generator):
    problem = Problem(generator, StudentT(scale=3.0, degrees=60.0))
    q = factorised()
    batch = problem.batch(q)
    moved, report = q.safe_step(replace(batch, target=-batch.target), 0.5)
    assert report.refused == 1
    assert torch.equal(moved.mean, q.mean)


@pytest.mark.parametrize("rate", [0.0, 1.5, math.nan])
def test_rates_that_lose_the_covariance_are_refused(rate, generator):
    q = factorised()
    batch = Problem(generator, Gaussian(variance=0.3)).batch(q)
    with pytest.raises(ValueError, match="natural rate"):
        q.safe_step(batch, rate)


def test_a_precision_that_is_none_is_refused():
    q = block_prior((3,), 3)
    q.precision[0, 1, 1] = -1.0
    with pytest.raises(ValueError, match="not positive definite"):
        q.quadratic(torch.ones(1, 3, dtype=torch.float64))
