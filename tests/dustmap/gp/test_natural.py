"""Natural steps by solves alone, against dense algebra and autograd."""

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
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.rowwise import FeatureRows

SIZE, COUNT = 12, 30
TIGHT = ConjugateGradients(rtol=1e-12, max_steps=500)


def factorised() -> NaturalGaussian:
    return block_prior((SIZE,), SIZE)


def iterative(solver=TIGHT) -> NaturalGaussian:
    return replace(factorised(), solver=solver)


MAKERS = [factorised, iterative]


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


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_step_is_the_natural_gradient(kind, make, generator):
    problem = Problem(generator, LIKELIHOODS[kind])
    q = make().with_mean(0.1 * normal(generator, SIZE))
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


def test_solves_by_iterations_agree_with_factorisations(generator):
    problem = Problem(generator, StudentT(scale=0.3, degrees=3.0))
    found, clipped = [], 0
    for q in (
        factorised(),
        iterative(solver=ConjugateGradients(rtol=1e-9)),
        iterative(solver=ConjugateGradients(rtol=1e-3)),
    ):
        for _ in range(6):
            q, report = q.safe_step(problem.batch(q, 4.0), 0.3)
            clipped += report.clipped
        found.append(q)
    exact, tight, rough = found
    torch.testing.assert_close(tight.mean, exact.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(tight.precision, exact.precision, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(rough.mean, exact.mean, rtol=1e-3, atol=1e-3)
    assert float((rough.mean - exact.mean).abs().max()) > 1e-9
    assert tight.solves.unconverged == 0
    assert tight.solves.iterations > 3
    assert clipped > 0


def test_a_rough_solve_leaves_a_quadratic_form_of_second_order(generator):
    A = normal(generator, 40, 40)
    q = replace(
        block_prior((40,), 40),
        precision=(torch.eye(40, dtype=torch.float64) + A @ A.mT)[None],
        solver=ConjugateGradients(rtol=1e-2),
    )
    rows = normal(generator, 5, 40).requires_grad_(True)
    S = torch.linalg.inv(q.precision[0])
    exact = ((rows @ S) * rows).sum(dim=1)
    value = q.quadratic(rows)
    x = q.covariance_times(rows.detach())
    first_order = float(((x - rows @ S).norm() / (rows @ S).norm()).detach())
    relative = float(((value - exact) / exact).abs().max().detach())
    assert first_order > 1e-4
    assert relative < 30 * first_order**2
    (slope,) = torch.autograd.grad(value.sum(), rows)
    torch.testing.assert_close(slope, 2 * x)


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


def test_a_factor_predicts_what_the_solver_does(generator):
    q = iterative(solver=ConjugateGradients(rtol=1e-10))
    problem, rows = (
        Problem(generator, Gaussian(variance=0.1)),
        normal(generator, 4, SIZE),
    )
    q = q.safe_step(problem.batch(q), 0.5)[0]
    by_factor = replace(q, solver=None)
    torch.testing.assert_close(by_factor.quadratic(rows), q.quadratic(rows))
    torch.testing.assert_close(
        by_factor.covariance_times(rows), q.covariance_times(rows)
    )


def test_solves_that_stop_early_are_counted(generator):
    q = iterative(solver=ConjugateGradients(rtol=1e-12, max_steps=1))
    q = q.safe_step(Problem(generator, Gaussian(variance=0.1)).batch(q), 0.5)[0]
    assert q.solves.unconverged > 0 and q.solves.residual > 1e-12


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
