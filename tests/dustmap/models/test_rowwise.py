"""Exact features against dense conditionals, and their derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_box import CASES, box, fresh_model, grid_of, whitened
from forward_models import check_forward_model
from linear_operators import check_linear_operator
from reference import conditional_covariance

from dustmap.covariance import functional_variance
from dustmap.functionals import LineIntegrals, MonteCarlo, PointValues
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.toeplitz import EmbeddingLimits, toeplitz_solve
from dustmap.models import rowwise
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import ToeplitzWhitening

ONE_EACH = [(1, "matern52", 3.0), (2, "matern32", 2.0), (3, "matern32", 1.0)]


def all_rows(model):
    return model.rows(torch.arange(len(model.functionals)))


@pytest.mark.parametrize("case", CASES)
def test_features_and_variances_are_those_of_dense_algebra(case):
    problem = box(*case)
    model = fresh_model(problem)
    features, variance = all_rows(model)
    exact = conditional_covariance(problem.K_nn, problem.K_nu, problem.K_uu).diagonal()
    np.testing.assert_allclose(
        features @ features.mT, problem.explained(), atol=1e-8 * problem.K_nn.max()
    )
    np.testing.assert_allclose(variance, exact, atol=1e-8 * problem.K_nn.max())
    # Eq. 12: Cov(Rε, L_n f) = k_un.
    np.testing.assert_allclose(
        model.whitening.colour(features), problem.K_nu, atol=1e-9 * problem.K_nn.max()
    )
    assert model.report.rows == len(model.functionals)
    assert model.report.unconverged == 0 and model.report.residual <= 1e-12


@pytest.mark.parametrize("case", ONE_EACH)
def test_the_operator_is_the_matrix_of_the_rows_with_and_without_them(case, generator):
    model = fresh_model(box(*case))
    features = all_rows(model).features
    check_linear_operator(model.operator, generator=generator, rtol=1e-9)
    x = torch.randn(2, model.latent_size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(model.operator.matvec(x), x @ features.mT)
    model.keep_rows()
    solved = model.report.rows
    assert solved > 2 * len(features)
    check_linear_operator(model.operator, generator=generator, rtol=1e-9)
    torch.testing.assert_close(model.operator.matvec(x), x @ features.mT)
    assert model.report.rows == solved
    torch.testing.assert_close(all_rows(model).features, features)


def test_the_operator_without_memory_for_cross_covariances_is_the_same(
    generator, monkeypatch
):
    model = fresh_model(box(2, "matern32", 2.0))
    model.chunk = 4
    monkeypatch.setattr(rowwise, "_CROSS", 0)
    lean = model.operator
    y = torch.randn(2, lean.shape[0], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(lean.rmatvec(y), y @ all_rows(model).features)
    check_linear_operator(lean, generator=generator, rtol=1e-9)


@pytest.mark.parametrize("case", ONE_EACH)
def test_the_seam_holds(case, generator):
    model = fresh_model(box(*case))
    # Iterative solves are adjoint to their tolerance only; that is tested above.
    model.keep_rows()
    check_forward_model(model, generator)


@pytest.mark.parametrize("case", ONE_EACH)
def test_joint_residuals_are_the_conditional_covariance(case, generator):
    problem = box(*case)
    model = fresh_model(problem)
    exact = conditional_covariance(problem.K_nn, problem.K_nu, problem.K_uu)
    scale = np.sqrt(np.outer(problem.K_nn.diagonal(), problem.K_nn.diagonal()))
    np.testing.assert_allclose(
        model.residual_covariance().numpy() / scale, exact / scale, atol=1e-9
    )
    draws = model.residual_draws(torch.zeros(4000, 1), generator).numpy()
    sampled = draws.T @ draws / len(draws)
    deviation = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()) + exact**2)
    assert (np.abs(sampled - exact) <= 5 * deviation / np.sqrt(4000) + 1e-9).all()


def test_a_solve_that_stops_early_only_widens_the_residual():
    problem = box(2, "matern32", 2.0)
    exact = all_rows(fresh_model(problem)).variance
    whitening = problem.model.whitening
    last = None
    for steps in (1, 3, 6):
        early = ToeplitzWhitening(
            whitening.kernel,
            whitening.grid,
            lengthscales=whitening.lengthscales,
            solver=ConjugateGradients(rtol=1e-12, max_steps=steps),
        )
        model = RowwiseGaussian(early, problem.model.functionals)
        variance = all_rows(model).variance
        assert (variance >= exact - 1e-10).all()
        assert last is None or (variance <= last + 1e-10).all()
        assert model.report.unconverged == len(variance)
        assert model.report.iterations == steps
        torch.testing.assert_close(model.residual_covariance().diagonal(), variance)
        last = variance
    assert (last - exact).max() > 1e-6


def test_a_row_with_other_nodes_in_its_variance_is_refused(generator, monkeypatch):
    rays = torch.rand(30, 2, generator=generator, dtype=torch.float64) * 2
    model = RowwiseGaussian(
        whitened(2, "matern32", 2.0), LineIntegrals(rays, MonteCarlo(count=3, seed=1))
    )
    other = LineIntegrals(rays, MonteCarlo(count=3, seed=2))
    monkeypatch.setattr(
        "dustmap.models.rowwise.functional_variance",
        lambda kernel, part, **place: functional_variance(kernel, other, **place),
    )
    with pytest.raises(ValueError, match="conditional variances are negative"):
        all_rows(model)


def test_what_rounding_leaves_below_zero_is_counted_and_zero():
    grid = grid_of(1)
    model = RowwiseGaussian(whitened(1, "matern52", 3.0), PointValues(grid.points()))
    variance = all_rows(model).variance
    assert (variance >= 0).all() and variance.max() < 1e-9
    assert model.report.below_zero > 0
    assert -1e-9 < model.report.lowest < 0
    assert f"{model.report.below_zero} conditional variances" in str(model.report)


def test_an_embedding_of_fixed_shape_that_is_not_positive_is_refused():
    whitening = whitened(2, "matern32", 1.0)
    longer = whitening.kernel.with_parameters(
        {"lengthscale": whitening.kernel.lengthscale * 5}
    )
    with pytest.raises(ValueError, match="eigenvalues"):
        whitening.with_kernel(longer)
    with pytest.raises(ValueError, match="needs at least 2 n - 2"):
        ToeplitzWhitening(
            whitening.kernel,
            whitening.grid,
            lengthscales=whitening.lengthscales,
            shape=(4, 4),
            limits=EmbeddingLimits(),
        )


@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 2)])
def test_the_derivative_of_a_toeplitz_solve_passes_gradcheck(shape, generator):
    grids = torch.meshgrid(*[torch.arange(n) for n in shape], indexing="ij")
    place = torch.stack(grids, dim=-1).reshape(-1, len(shape))
    lags = (place[:, None] - place[None]).abs()

    class Dense:
        def __init__(self, column):
            self.matrix = column.detach()[tuple(lags.unbind(-1))]

        def __call__(self, rhs):
            solver = ConjugateGradients(rtol=1e-14, max_steps=500)
            return solver.solve(lambda x: x @ self.matrix, rhs)

    scaled = torch.stack(grids, dim=-1).to(torch.float64)
    column = torch.exp(-scaled.norm(dim=-1)).requires_grad_(True)
    size = len(place)
    rhs = torch.randn(3, size, generator=generator, dtype=torch.float64)
    rhs.requires_grad_(True)

    def solve(c, v):
        return toeplitz_solve(c, v, Dense(c))[0]

    assert torch.autograd.gradcheck(solve, (column, rhs), atol=1e-7)
