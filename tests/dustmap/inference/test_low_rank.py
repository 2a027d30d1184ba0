"""Low rank plus diagonal: between mean-field and full rank, against dense algebra."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from dense_box import box, fresh_model, noisy
from torch.distributions import MultivariateNormal, kl_divergence

from dustmap.inference.svi import HipSettings, fit_svi, initial_family
from dustmap.inference.svi.blocks import block_prior
from dustmap.inference.svi.bound import elbo, predict
from dustmap.inference.svi.cost import estimate_cost
from dustmap.inference.svi.direct import direct_optimum
from dustmap.inference.svi.factor_analysis import analyse_factors, covariance_bound
from dustmap.inference.svi.gaussian import Batch
from dustmap.inference.svi.low_rank import (
    LowRankGaussian,
    leading_columns,
    low_rank_prior,
)

SIZE = 40
CASES = [(1, "matern52", 3.0), (2, "matern32", 2.0), (3, "matern32", 1.0)]


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def some_batch(generator, count=9) -> Batch:
    features, residual = (
        normal(generator, count, SIZE),
        normal(generator, count),
    )
    weight = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return Batch(features=features, weight=weight, target=weight * residual)


def moved(rank, generator) -> LowRankGaussian:
    """A member of the family after two projected steps."""
    q = low_rank_prior(SIZE, rank)
    for rate in (0.7, 0.4):
        q = q.covariance_step(some_batch(generator, 12), rate)
    return q.with_mean(normal(generator, SIZE))


def dense_precision(q: LowRankGaussian) -> torch.Tensor:
    return q.diagonal.diag() + q.columns @ q.columns.mT


def of_batch(batch: Batch) -> torch.Tensor:
    """Λ̂, dense."""
    eye = torch.eye(batch.features.shape[1], dtype=torch.float64)
    return eye + batch.features.mT @ (batch.weight[:, None] * batch.features)


@pytest.mark.parametrize("rank", [0, 3, 20])
def test_moments_are_those_of_the_dense_covariance(rank, generator):
    q = moved(rank, generator)
    S = torch.linalg.inv(dense_precision(q))
    rows = normal(generator, 4, SIZE)
    torch.testing.assert_close(q.quadratic(rows), (rows @ S * rows).sum(dim=1))
    torch.testing.assert_close(q.covariance_times(rows), rows @ S)
    torch.testing.assert_close(q.trace(), S.trace())
    torch.testing.assert_close(q.log_determinant(), torch.linalg.slogdet(S)[1])
    prior = MultivariateNormal(torch.zeros(SIZE).double(), torch.eye(SIZE).double())
    exact = kl_divergence(MultivariateNormal(q.mean, S), prior)
    assert q.divergence() == pytest.approx(float(exact))


def test_draws_have_the_moments_of_q(generator):
    q = moved(4, generator)
    draws = q.sample(20000, generator)
    S = torch.linalg.inv(dense_precision(q))
    deviation = torch.sqrt(torch.outer(S.diagonal(), S.diagonal()) + S**2)
    error = (torch.cov(draws.mT) - S).abs() / (deviation / 20000**0.5)
    assert float(error.max()) < 5
    shift = (draws.mean(dim=0) - q.mean) / (S.diagonal() / 20000).sqrt()
    assert float(shift.abs().max()) < 5


def test_a_direction_the_data_fix_keeps_its_digits(generator):
    """``1 − s²/(1 + s²)`` would leave four digits at s² = 1e12, and none at 1e16."""
    basis, _ = torch.linalg.qr(normal(generator, SIZE, 3))
    scale = torch.tensor([1e6, 1.0, 1e-3], dtype=torch.float64)
    q = replace(low_rank_prior(SIZE, 3), columns=basis * scale)
    exact = 1 / (1 + scale**2)
    ours = q.quadratic(basis.mT)
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rank", [0, 1, 5, 39, 80])
@pytest.mark.parametrize("count", [3, 30, 70])
def test_the_projection_keeps_the_leading_part_and_the_diagonal(count, rank, generator):
    A = normal(generator, SIZE, count)
    columns, rest = leading_columns(A, rank)
    values, vectors = torch.linalg.eigh(A @ A.mT)
    kept = min(rank, count, SIZE)
    best = (vectors * values.clamp(min=0))[:, SIZE - kept :] @ vectors[
        :, SIZE - kept :
    ].mT
    torch.testing.assert_close(columns @ columns.mT, best, rtol=1e-9, atol=1e-9)
    whole = (columns**2).sum(dim=1) + rest
    torch.testing.assert_close(whole, (A**2).sum(dim=1))
    assert float(rest.min()) >= 0
    assert columns.shape[1] <= max(rank, 0)


@pytest.mark.parametrize("rank", [0, 2, 11])
def test_a_step_averages_precisions_with_an_exact_diagonal(rank, generator):
    q, batch, rate = moved(rank, generator), some_batch(generator), 0.3
    whole = (1 - rate) * dense_precision(q) + rate * of_batch(batch)
    stepped = q.covariance_step(batch, rate)
    ours = dense_precision(stepped)
    torch.testing.assert_close(ours.diagonal(), whole.diagonal())
    assert float(torch.linalg.eigvalsh(ours)[0]) >= 1 - 1e-12
    assert stepped.columns.shape == (SIZE, rank)
    misfit = batch.target - batch.weight * (batch.features @ q.mean)
    gradient = batch.features.mT @ misfit - q.mean
    mean = q.mean + rate * torch.linalg.solve(ours, gradient)
    torch.testing.assert_close(q.step(batch, rate).mean, mean)


def test_rank_zero_is_mean_field(generator):
    low, field = low_rank_prior(SIZE, 0), block_prior((SIZE,), 1)
    for rate in (0.9, 0.3, 0.2):
        batch = some_batch(generator)
        low, field = low.step(batch, rate), field.step(batch, rate)
    torch.testing.assert_close(low.diagonal, field.precision[:, 0, 0])
    torch.testing.assert_close(low.mean, field.mean)
    assert low.curvature(batch) == pytest.approx(field.curvature(batch), rel=1e-9)


def test_as_many_columns_as_data_are_full_rank(generator):
    """Several passes, so that columns beyond the rank are projected away."""
    low, full = low_rank_prior(SIZE, 18), block_prior((SIZE,), SIZE)
    parts = [some_batch(generator, 6) for _ in range(3)]
    for number in range(9):
        rate = 1 / (number + 1)
        low = low.step(parts[number % 3], rate)
        full = full.step(parts[number % 3], rate)
    torch.testing.assert_close(
        dense_precision(low), full.precision[0], rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(low.mean, full.mean, rtol=1e-8, atol=1e-8)
    batch = parts[0]
    assert low.curvature(batch) == pytest.approx(full.curvature(batch), rel=1e-9)


def family_ends(problem, noise: float):
    """The direct optima from mean-field over every rank to full rank."""
    data = noisy(problem.data, noise)
    model = fresh_model(problem)
    ranks = range(len(data) + 1)
    ends = [
        direct_optimum(model, data, family="mean-field"),
        *(direct_optimum(model, data, family="low-rank", rank=k) for k in ranks),
        direct_optimum(model, data, family="full"),
    ]
    return model, data, [end.q for end in ends]


@pytest.mark.parametrize("noise", [1.0, 0.01])
@pytest.mark.parametrize("case", CASES)
def test_bounds_rise_from_mean_field_with_the_rank_to_full(case, noise):
    model, data, ends = family_ends(box(*case), noise)
    bounds = [elbo(model, data, q) for q in ends]
    assert bounds[1] == pytest.approx(bounds[0], rel=1e-10)
    assert bounds[-2] == pytest.approx(bounds[-1], rel=1e-8)
    for lower, higher in itertools.pairwise(bounds[1:-1]):
        assert higher > lower - 1e-9
    assert bounds[-1] > bounds[0] + 10


def test_predictive_spread_lies_between_mean_field_and_full_rank():
    """Mean-field fits precisions, so what it leaves out widens functionals of ε."""
    problem = box(2, "matern32", 2.0)
    model, _, ends = family_ends(problem, 1.0)
    seen = [predict(model, q).variance.mean() for q in ends]
    for wider, narrower in itertools.pairwise(seen):
        assert narrower < wider + 1e-9
    assert seen[-1] < 0.9 * seen[0]


@pytest.mark.parametrize("rank", [1, 3])
def test_factor_analysis_ends_where_no_neighbour_is_better(rank, generator):
    batch = some_batch(generator)
    start = low_rank_prior(SIZE, rank).covariance_step(batch, 1.0)
    A = start.data_precision(batch)
    q, converged = analyse_factors(start, A, tolerance=1e-13, max_rounds=20000)
    assert converged
    precision = of_batch(batch)
    # Zero gradients: S⁻¹ = Λ on the diagonal, and Λ S U = U.
    ours = dense_precision(q)
    torch.testing.assert_close(ours.diagonal(), precision.diagonal(), rtol=1e-5, atol=0)
    U = precision @ torch.linalg.solve(ours, q.columns)
    torch.testing.assert_close(U, q.columns, rtol=0, atol=1e-4)
    best = covariance_bound(q, A)
    S = torch.linalg.inv(ours)
    exact = 0.5 * (torch.linalg.slogdet(S)[1] - (S @ precision).trace())
    assert best == pytest.approx(float(exact), rel=1e-12)
    assert best > covariance_bound(start, A) + 1e-2
    for _ in range(5):
        columns = q.columns + 0.03 * normal(generator, SIZE, rank)
        assert covariance_bound(replace(q, columns=columns), A) < best
        diagonal = q.diagonal * (0.1 * normal(generator, SIZE)).exp()
        assert covariance_bound(replace(q, diagonal=diagonal), A) < best


def test_rounds_of_factor_analysis_never_lower_the_bound(generator):
    batch = some_batch(generator)
    start = low_rank_prior(SIZE, 2).covariance_step(batch, 1.0)
    A = start.data_precision(batch)
    values = [
        covariance_bound(analyse_factors(start, A, tolerance=0, max_rounds=n)[0], A)
        for n in range(6)
    ]
    assert all(late > early for early, late in itertools.pairwise(values))
    assert not analyse_factors(start, A, tolerance=0, max_rounds=3)[1]
    assert analyse_factors(low_rank_prior(SIZE, 0), A)[1]


@pytest.mark.parametrize("rank", [4, 15])
def test_the_engine_ends_at_full_rank_with_enough_columns(rank, generator):
    problem = box(2, "matern32", 2.0)
    settings = HipSettings(
        family="low-rank", rank=rank, batch_size=4, epochs=4, mean_tolerance=1e-12
    )
    result = fit_svi(fresh_model(problem), problem.data, settings, generator=generator)
    model = fresh_model(problem)
    full = direct_optimum(model, problem.data, family="full")
    exact = predict(model.at(problem.targets), full.q)
    ours = predict(result.model.forward.at(problem.targets), result.q)
    torch.testing.assert_close(ours.mean, exact.mean, rtol=1e-8, atol=1e-8)
    if rank == len(problem.data):
        assert result.steps.limited == 0
        assert result.bound == pytest.approx(full.collapsed_bound, rel=1e-8)
        torch.testing.assert_close(ours.variance, exact.variance, rtol=1e-8, atol=1e-8)
        return
    field = direct_optimum(model, problem.data, family="mean-field")
    lowest = elbo(model, problem.data, field.q)
    best = direct_optimum(model, problem.data, family="low-rank", rank=rank)
    highest = elbo(model, problem.data, best.q)
    assert best.converged
    assert lowest + 1 < result.bound < highest - 1 < full.collapsed_bound - 2


def test_what_a_run_costs_is_reckoned_for_columns_too():
    problem = box(2, "matern32", 2.0)
    settings = HipSettings(family="low-rank", rank=3, batch_size=5)
    assert estimate_cost(fresh_model(problem), problem.data, settings).memory > 0


def test_too_much_memory_is_refused_with_what_to_do():
    model = fresh_model(box(2, "matern32", 2.0))
    columns = 3 * 8 * model.latent_size
    settings = HipSettings(
        family="low-rank", rank=10, batch_size=5, covariance_memory=15 * columns
    )
    assert isinstance(initial_family(model, settings), LowRankGaussian)
    tight = replace(settings, covariance_memory=15 * columns - 1)
    with pytest.raises(ValueError, match="lower rank"):
        initial_family(model, tight)
    problem = box(2, "matern32", 2.0)
    with pytest.raises(ValueError, match=r"more than 0\.0"):
        direct_optimum(fresh_model(problem), problem.data, family="low-rank", memory=10)


def test_what_is_no_family_is_refused():
    with pytest.raises(ValueError, match="rank"):
        HipSettings(family="low-rank", rank=-1)
    with pytest.raises(ValueError, match="family"):
        HipSettings(family="low")  # type: ignore[arg-type]
