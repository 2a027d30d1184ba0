"""The average information against its definition, dense."""

from __future__ import annotations

import pytest
import torch
from dense_evidence import TAU2, solved

from dustmap.inference.full_batch import Precision
from dustmap.inference.scales.average_information import (
    average_information,
    residual_weights,
    responses,
)
from dustmap.inference.scales.dual_gradient import DualSamples
from dustmap.inference.scales.evidence_gradient import PairedSamples
from dustmap.inference.scales.hyperpoint import COMMON_NOISE, Hyperpoint, directions_of
from dustmap.inference.scales.learning_solve import (
    CountedOperator,
    LinearSolve,
    State,
    galerkin_start,
    within,
)
from dustmap.linalg.cg import ConjugateGradients

TIGHT = ConjugateGradients(rtol=1e-12, max_steps=2000)
NAMES = ("lengthscale", "variance", "mean", COMMON_NOISE)


def solve_of(y, *, pairs=6, subgrid_noise=True, rank=0, residual=1e-9):
    return LinearSolve(
        y,
        pairs=pairs,
        subgrid_noise=subgrid_noise,
        solver=TIGHT,
        residual=residual,
        preconditioner_rank=rank,
        seed=3,
    )


def covariance(point, noise, subgrid):
    Phi = point.model.operator.to_dense()
    total = point.noise(noise) + subgrid * point.model.variance
    return Phi @ Phi.mT + total.diag()


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize("anisotropic", [False, True])
def test_the_information_is_that_of_its_definition(subgrid, anisotropic):
    model, y, noise, *_ = solved(2, 2, False)
    point = Hyperpoint(model=model, common_noise=TAU2)
    directions = directions_of(point, NAMES, anisotropic=anisotropic)
    assert len(directions) == (5 if anisotropic else 4)
    state = solve_of(y, subgrid_noise=subgrid)(model, point.noise(noise), None)
    samples = DualSamples(
        weights=(y - state.tangent.prediction) / state.total_variance,
        draws=state.draws,
        noise=point.noise(noise),
        variance=model.variance,
        subgrid_noise=subgrid,
    )
    weights = residual_weights(state, y)
    change = responses(point, directions, state, samples, weights, noise)
    found = average_information(state, change, TIGHT, 1e-9)
    C = covariance(point, noise, subgrid)
    inverse = torch.linalg.inv(C)
    alpha = inverse @ (y - model.offset)
    answers, offsets = [], []
    for direction in directions:
        there, back = (point.moved([direction], [t]) for t in (1e-4, -1e-4))
        slope = covariance(there, noise, subgrid) - covariance(back, noise, subgrid)
        answers.append(slope @ alpha / 2e-4)
        offsets.append((there.model.offset - back.model.offset) / 2e-4)
    a, h = torch.stack(answers), torch.stack(offsets)
    exact = 0.5 * a @ inverse @ a.mT + h @ inverse @ h.mT
    # Forward differences by 1% of a logarithm.
    scale = exact.diagonal().sqrt()
    error = (found.matrix - exact).abs() / (scale[:, None] * scale)
    assert float(error.max()) < 0.03
    assert float(torch.linalg.eigvalsh(found.matrix).min()) >= -1e-12
    # Standard errors of the gradient: S draws of w have 1/S of the curvature's trace.
    assert change.scatter.shape == (len(directions),) * 2


@pytest.mark.parametrize("subgrid", [False, True])
def test_weights_of_a_solved_linear_model_are_those_of_the_covariance(subgrid):
    model, y, noise, *_ = solved(2, 2, False)
    point = Hyperpoint(model=model, common_noise=TAU2)
    state = solve_of(y, subgrid_noise=subgrid)(model, point.noise(noise), None)
    exact = torch.linalg.solve(covariance(point, noise, subgrid), y - model.offset)
    torch.testing.assert_close(residual_weights(state, y), exact, rtol=1e-6, atol=1e-7)


def eliminated(precision, cross, own):
    """The information of θ in ``[[Λ, G], [Gᵀ, H]]`` after ε has been eliminated."""
    return own - cross.mT @ torch.linalg.solve(precision, cross)


@pytest.mark.parametrize("subgrid", [False, True])
def test_without_draws_it_is_the_information_of_field_and_parameters_together(subgrid):
    # m solves nobody's problem: what a variational fit of its samples leaves behind.
    model, y, noise, *_ = solved(2, 2, False)
    point = Hyperpoint(model=model, common_noise=TAU2)
    directions = directions_of(point, NAMES, anisotropic=True)
    solved_state = solve_of(y, subgrid_noise=subgrid)(model, point.noise(noise), None)
    mean = solved_state.mean + 0.3
    total = point.noise(noise) + subgrid * model.variance
    state = State(
        mean=mean,
        deltas=solved_state.deltas,
        total_variance=total,
        tangent=model.linearise(mean),
    )
    samples = PairedSamples(
        observations=y,
        sigma2=noise,
        mean=mean,
        deltas=state.deltas,
        subgrid_noise=subgrid,
    )
    weights = residual_weights(state, y)
    change = responses(point, directions, state, samples, weights, noise)
    found = average_information(state, change, TIGHT, 1e-9)
    Phi, residual = model.operator.to_dense(), y - model.apply(mean)
    of_noise, of_mean = [], []
    for direction in directions:
        there, back = (point.moved([direction], [t]) for t in (1e-4, -1e-4))
        widths = [p.noise(noise) + subgrid * p.model.variance for p in (there, back)]
        of_noise.append((widths[0] - widths[1]) / 2e-4 * residual / total)
        change_of = there.model.apply(mean) - back.model.apply(mean)
        of_mean.append(change_of / 2e-4)
    precision = Precision(model.operator, total).to_dense()
    exact = torch.zeros(len(directions), len(directions), dtype=torch.float64)
    for answers, share in ((of_noise, 0.5), (of_mean, 1.0)):
        h = torch.stack(answers, dim=1)
        weighed = h / total[:, None]
        exact += share * eliminated(precision, Phi.mT @ weighed, h.mT @ weighed)
    scale = exact.diagonal().sqrt()
    # Forward differences by 1% of a logarithm.
    error = (found.matrix - exact).abs() / (scale[:, None] * scale)
    assert float(error.max()) < 0.03
    assert change.scatter.shape == (len(directions),) * 2


def test_draws_have_the_inverse_covariance():
    model, y, noise, *_ = solved(2, 2, False)
    point = Hyperpoint(model=model, common_noise=TAU2)
    count = 6000
    state = solve_of(y, pairs=count)(model, point.noise(noise), None)
    inverse = torch.linalg.inv(covariance(point, noise, True))
    found = state.draws.mT @ state.draws / count
    size = inverse.diagonal()
    spread = ((size[:, None] * size + inverse**2) / count).sqrt()
    assert float(((found - inverse) / spread).abs().max()) < 4.5
    precision = Precision(model.operator, state.total_variance).to_dense()
    S = torch.linalg.inv(precision)
    found = state.deltas.mT @ state.deltas / count
    size = S.diagonal()
    spread = ((size[:, None] * size + S**2) / count).sqrt()
    assert float(((found - S) / spread).abs().max()) < 4.5


def test_products_are_counted_as_they_are_done():
    model, y, noise, *_ = solved(1, 2, True)
    counted = CountedOperator(model.operator)
    model = model.with_parameters({"mean": torch.tensor(0.5)})
    model.operator = counted
    # The prediction at zero and the residuals behind v_n are the model's own.
    _ = model.variance
    before = counted.count
    state: State = solve_of(y, rank=10)(model, noise + TAU2, None)
    assert state.products == counted.count - before - 1


def test_a_start_from_the_answer_is_the_answer():
    model, y, noise, *_ = solved(1, 2, True)
    state = solve_of(y)(model, noise + TAU2, None)
    precision = Precision(model.operator, state.total_variance)
    basis = torch.cat([state.mean[None], state.deltas])
    mixed = torch.stack([basis[0] - 2 * basis[3], basis[1] + basis[2]])
    start = galerkin_start(precision, basis, precision.matvec(mixed))
    torch.testing.assert_close(start, mixed, rtol=1e-8, atol=1e-9)
    # Vectors that repeat are no harm.
    twice = torch.cat([basis, basis])
    start = galerkin_start(precision, twice, precision.matvec(mixed))
    torch.testing.assert_close(start, mixed, rtol=1e-7, atol=1e-8)


def test_tolerances_are_absolute():
    rhs = torch.tensor([[3.0, 4.0], [0.0, 100.0]], dtype=torch.float64)
    solver = ConjugateGradients(rtol=1e-2)
    assert within(solver, 0.1, rhs).rtol == pytest.approx(1e-3)
    assert within(solver, 10.0, rhs).rtol == 1e-2
    assert within(solver, 0.1, 0 * rhs) is solver
