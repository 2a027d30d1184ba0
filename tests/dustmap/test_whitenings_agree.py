"""Whitenings are roots of one covariance: the same rows, posteriors and derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_box import OFFSET, TIGHT, box, optimum
from linear_operators import check_linear_operator
from reference import conditional_covariance

from dustmap.covariance import functional_variance, inducing_covariance
from dustmap.functionals import PointValues
from dustmap.inference.svi import HipSettings, fit_svi, solve_mean
from dustmap.inference.svi.bound import elbo, predict
from dustmap.inference.svi.gaussian import block_prior
from dustmap.kernels import Matern32, Matern52, SquaredExponential, point_covariance
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.roots import CIQ, RootWarning
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import (
    CholeskyWhitening,
    CiqWhitening,
    KernelMatrix,
    ToeplitzWhitening,
)

EXACT = CIQ(rtol=1e-10)
CASE = (2, "matern32", 2.0)


def toeplitz(kernel, grid):
    scales = kernel.lengthscale.detach().expand(grid.dimension).tolist()
    return ToeplitzWhitening(kernel, grid, lengthscales=scales, solver=TIGHT)


WHITENINGS = {
    "toeplitz": toeplitz,
    "cholesky": lambda kernel, grid: CholeskyWhitening(kernel, grid.points()),
    "ciq": lambda kernel, grid: CiqWhitening(kernel, grid, ciq=EXACT),
}


def model_with(name):
    """Values, derivatives and integrals, and their model by one of the whitenings."""
    problem = box(*CASE)
    old = problem.model.whitening
    whitening = WHITENINGS[name](old.kernel, old.grid)
    mean = ConstantMean(value=OFFSET)
    return problem, RowwiseGaussian(whitening, problem.model.functionals, mean=mean)


@pytest.mark.parametrize("name", WHITENINGS)
def test_a_whitening_is_a_root_of_the_covariance(name, generator):
    problem, model = model_with(name)
    whitening = model.whitening
    eye = torch.eye(whitening.size, dtype=torch.float64)
    R = whitening.colour(eye).mT
    top = problem.K_uu.max()
    np.testing.assert_allclose((R @ R.mT).numpy(), problem.K_uu, atol=1e-8 * top)
    shape = (3, len(R))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(whitening.colour_transpose(values), values @ R)
    solution = whitening.solve(values)
    back = solution.value.numpy() @ problem.K_uu
    np.testing.assert_allclose(back, values, atol=1e-7)
    assert solution.converged.all()
    cross = torch.from_numpy(problem.K_nu)
    features, explained, solution = whitening.features(cross)
    np.testing.assert_allclose(
        explained, problem.explained().diagonal(), atol=1e-8 * top
    )
    expected = np.linalg.solve(problem.K_uu, problem.K_nu.T).T @ R.numpy()
    np.testing.assert_allclose(features, expected, atol=1e-7)
    assert solution.converged.all() and len(solution.residual) == len(cross)
    assert int(np.prod(whitening.latent_shape)) == whitening.size
    assert torch.equal(whitening.points, problem.model.whitening.grid.points())
    operator = whitening.covariance
    check_linear_operator(operator, generator=generator)
    np.testing.assert_allclose(operator.to_dense(), problem.K_uu, atol=1e-12 * top)


@pytest.mark.parametrize("name", WHITENINGS)
def test_rows_and_conditional_variances_are_those_of_dense_algebra(name):
    problem, model = model_with(name)
    features, variance = model.rows(torch.arange(len(model.functionals)))
    top = problem.K_nn.max()
    np.testing.assert_allclose(
        features @ features.mT, problem.explained(), atol=1e-8 * top
    )
    exact = conditional_covariance(problem.K_nn, problem.K_nu, problem.K_uu).diagonal()
    np.testing.assert_allclose(variance, exact, atol=1e-8 * top)
    assert model.report.unconverged == 0 and model.report.rows == len(variance)


@pytest.mark.parametrize("name", WHITENINGS)
def test_every_engine_gives_the_same_posterior(name):
    problem, model = model_with(name)
    data = problem.data
    noisy = problem.explained() + np.diag(problem.noise)
    gain = np.linalg.solve(noisy, problem.K_nu).T
    K_su = np.linalg.solve(problem.K_uu, problem.K_su.T).T
    mean = K_su @ gain @ problem.residual
    explained = K_su @ gain @ problem.K_nu @ K_su.T
    variance = (problem.K_ss - explained).diagonal()
    best = optimum(model, data, family="full")
    at = model.at(problem.targets)
    found = predict(at, best)
    top = problem.K_ss.max()
    np.testing.assert_allclose(found.mean - at.offset, mean, atol=1e-7)
    np.testing.assert_allclose(found.variance, variance, atol=1e-7 * top)
    # One natural step of all data from the prior is the optimum in full rank.
    shape = model.whitening.latent_shape
    q = block_prior(shape, max(shape))
    batch = data.batch(model.rows(torch.arange(len(data))))
    q, _ = q.safe_step(batch, 1.0)
    stepped = predict(at, q)
    np.testing.assert_allclose(stepped.mean, found.mean, atol=1e-7)
    np.testing.assert_allclose(stepped.variance, found.variance, atol=1e-7 * top)
    assert elbo(model, data, q) == pytest.approx(elbo(model, data, best), rel=1e-7)
    solver = ConjugateGradients(rtol=1e-10)
    solved = solve_mean(model, data, solver=solver).value[0]
    torch.testing.assert_close(solved, q.mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", WHITENINGS)
def test_minibatches_end_at_the_same_posterior(name, generator):
    problem, model = model_with(name)
    settings = HipSettings(family="full", batch_size=5, epochs=1, learn=())
    result = fit_svi(model, problem.data, settings, generator=generator)
    exact = optimum(model, problem.data, family="full")
    at = model.at(problem.targets)
    found, expected = predict(at, result.q), predict(at, exact)
    # One epoch averages the precisions of all minibatches; m is solved exactly.
    top = problem.K_ss.max()
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
    np.testing.assert_allclose(found.variance, expected.variance, atol=1e-7 * top)
    assert result.bound == pytest.approx(elbo(model, problem.data, exact), rel=1e-6)


@pytest.mark.parametrize("name", WHITENINGS)
def test_derivatives_in_hyperparameters_agree_with_dense_ones(name):
    model = model_with(name)[1]
    index = torch.arange(len(model.functionals))
    weights = torch.cos(torch.arange(len(index) ** 2).double()).reshape(len(index), -1)

    def leaves():
        return {
            key: value.detach().clone().requires_grad_(True)
            for key, value in model.whitening.kernel.parameters().items()
        }

    def gradients(total, parameters):
        return torch.autograd.grad(total, list(parameters.values()))

    parameters = leaves()
    kernel = model.whitening.kernel.with_parameters(parameters)
    same = model.whitening
    if isinstance(same, ToeplitzWhitening):
        moved = same.with_gradients(kernel)
    else:
        moved = same.with_kernel(kernel)
    rows = model.rows_under(moved, index)
    overlap = (weights * (rows.features @ rows.features.mT)).sum()
    found = gradients(overlap + rows.variance.sum(), parameters)

    parameters = leaves()
    kernel = model.whitening.kernel.with_parameters(parameters)
    points = model.whitening.points
    K = kernel(points[:, None] - points[None])
    cross = inducing_covariance(kernel, model.functionals, points)
    dense = cross @ torch.linalg.solve(K, cross.mT)
    # v_n = k_nn − |k_n|².
    total = functional_variance(kernel, model.functionals).sum()
    residual = total - dense.diagonal().sum()
    expected = gradients((weights * dense).sum() + residual, parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def free(dimension=5, count=30):
    generator = torch.Generator().manual_seed(dimension)
    shape = (count, dimension)
    points = torch.rand(shape, generator=generator, dtype=torch.float64)
    others = torch.rand(8, dimension, generator=generator, dtype=torch.float64)
    return points, others


def by_cholesky(kernel, points):
    return CholeskyWhitening(kernel, points, nugget=1e-3)


def by_ciq(kernel, points):
    return CiqWhitening(kernel, points, nugget=1e-3, ciq=EXACT)


@pytest.mark.parametrize("build", [by_cholesky, by_ciq])
def test_free_points_in_five_dimensions(build):
    points, others = free()
    scales = torch.tensor([0.5, 0.7, 1.0, 1.5, 2.0]).double().requires_grad_(True)
    points.requires_grad_(True)
    kernel = Matern52(lengthscale=[1.0] * 5).with_parameters({"lengthscale": scales})
    weights = torch.cos(torch.arange(64).double()).reshape(8, 8)
    inputs = (scales, points)
    cross = point_covariance(kernel, others, points)
    features, *_ = build(kernel, points).features(cross)
    found = torch.autograd.grad((weights * (features @ features.mT)).sum(), inputs)
    # No square root of a vanishing distance in the oracle: every lag by itself.
    lag = points[:, None] - points[None]
    K = kernel(lag) + 1e-3 * torch.eye(30).double()
    cross = kernel(others[:, None] - points[None])
    dense = cross @ torch.linalg.solve(K, cross.mT)
    torch.testing.assert_close(features @ features.mT, dense, rtol=1e-8, atol=1e-10)
    expected = torch.autograd.grad((weights * dense).sum(), inputs)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


class Indefinite(Matern32):
    """No covariance at all."""

    __slots__ = ()

    @staticmethod
    def radial(r):
        return 1 - r**2


def test_a_jitter_is_added_on_request_only_and_reported():
    points, _ = free(1, 60)
    kernel = SquaredExponential(lengthscale=0.5, variance=9.0)
    with pytest.raises(
        FloatingPointError, match="60 inducing points is not positive definite"
    ):
        CholeskyWhitening(kernel, points)
    with pytest.raises(FloatingPointError, match="with a jitter of 1e-08"):
        CholeskyWhitening(Indefinite(lengthscale=1.0), points, max_jitter=1e-8)
    whitening = CholeskyWhitening(kernel, points, max_jitter=1e-6)
    assert 0 < whitening.jitter <= 1e-6
    K = point_covariance(kernel, points, points)
    K = K + 9.0 * whitening.jitter * torch.eye(60).double()
    eye = torch.eye(60).double()
    R = whitening.colour(eye).mT
    torch.testing.assert_close(R @ R.mT, K, rtol=0, atol=1e-13)
    torch.testing.assert_close(whitening.covariance.to_dense(), K, rtol=0, atol=1e-13)
    plain = CholeskyWhitening(Matern32(lengthscale=0.5), points, max_jitter=1e-6)
    assert plain.jitter == 0


def test_roots_that_stop_early_are_counted_in_the_models_report():
    problem = box(*CASE)
    old = problem.model.whitening
    early = CIQ(rtol=1e-6, max_steps=4)
    whitening = CiqWhitening(old.kernel, old.grid, ciq=early)
    with pytest.warns(RootWarning):
        solution = whitening.features(torch.from_numpy(problem.K_nu))[-1]
    assert not solution.converged.all()
    model = RowwiseGaussian(whitening, problem.model.functionals)
    report = model.report.with_solution(solution)
    assert report.unconverged == int((~solution.converged).sum())
    # The variance of an early stopped solve is larger, never smaller.
    exact = conditional_covariance(problem.K_nn, problem.K_nu, problem.K_uu).diagonal()
    variance = model.residual_covariance().diagonal()
    assert (variance.numpy() >= exact - 1e-9).all() and model.report.unconverged > 0


def test_points_that_make_no_sense_are_refused():
    kernel = Matern32(lengthscale=1.0)
    points = torch.rand(5, 2).double()
    with pytest.raises(ValueError, match="matrix of at least one row"):
        CholeskyWhitening(kernel, points[:0])
    points[3, 1] = torch.nan
    with pytest.raises(ValueError, match="1 inducing points are not finite"):
        CiqWhitening(kernel, points)
    with pytest.raises(ValueError, match="nugget must be finite"):
        KernelMatrix(kernel, points[:2], nugget=-1.0)
    with pytest.raises(ValueError, match="max_jitter must be at least"):
        CholeskyWhitening(kernel, points[:2], max_jitter=0.0)
    with pytest.raises(ValueError, match="needs a grid"):
        ToeplitzWhitening(kernel, points[:2], lengthscales=(1.0, 1.0))
    with pytest.raises(ValueError, match="do not fit"):
        RowwiseGaussian(CholeskyWhitening(kernel, points[:2]), PointValues(free(3)[1]))
