"""The torus model against dense conditionals of its own covariance."""

from __future__ import annotations

import dense_torus
import numpy as np
import pytest
import torch
from forward_models import check_forward_model
from reference import conditional_covariance, conditional_features

from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    MonteCarlo,
    PointValues,
    Stack,
)
from dustmap.grid import Grid, Torus
from dustmap.kernels import KERNELS, Matern52
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.means import ConstantMean
from dustmap.whitening import TorusWhitening

SHAPES = {1: (9,), 2: (5, 6), 3: (4, 3, 4)}


def observed(grid, seed=3):
    generator = torch.Generator().manual_seed(seed)
    d = grid.dimension
    lower, upper = torch.tensor(grid.lower), torch.tensor(grid.upper)

    def draw(count):
        unit = torch.rand(count, d, generator=generator, dtype=torch.float64)
        return lower + unit * (upper - lower).double()

    rays = LineIntegrals(draw(4), MonteCarlo(count=5, seed=1), start=draw(4))
    straight = LineIntegrals(draw(3), GaussLegendre(count=6), start=draw(1))
    derivatives = Derivatives(draw(2), torch.arange(2) % d)
    return Stack([rays, PointValues(draw(3)), straight, derivatives])


def model_of(
    dimension=2, refinement=2, *, kernel=None, generator, dtype=torch.float64, **kwargs
):
    shape = SHAPES[dimension]
    grid = Grid(
        shape=tuple(n - 1 for n in shape),
        spacing=(1.0, 0.8, 1.2)[:dimension],
        origin=(-1.0,) * dimension,
    )
    kernel = Matern52(lengthscale=1.3, variance=2.0) if kernel is None else kernel
    torus = Torus(grid=grid, shape=tuple(n + 3 for n in shape))
    whitening = TorusWhitening(kernel, torus, refinement=refinement, dtype=dtype)
    return TorusGaussian(whitening, observed(grid), generator=generator, **kwargs)


def torus_points(model, refinement):
    torus = model.whitening.torus
    return Grid(
        shape=tuple(n * refinement for n in torus.shape),
        spacing=tuple(h / refinement for h in torus.grid.spacing),
        origin=torus.grid.origin,
    ).points()


def periodic(whitening):
    """The kernel that the torus sums over its periods."""
    periods = whitening.torus.periods
    return whitening.kernel.periodised(periods, whitening.image_tolerance)


def dense_pieces(model, refinement=None):
    """W, and the covariances of fine with coarse torus points, dense."""
    refinement = refinement or model.whitening.refinement
    fine, coarse = torus_points(model, refinement), torus_points(model, 1)
    k = periodic(model.whitening)
    W = model._projection(refinement).to_dense().double().numpy()
    K_fu, K_uu = (k(x[:, None] - coarse[None]).numpy() for x in (fine, coarse))
    return W, K_fu, K_uu


def fine_covariance(model, refinement):
    fine = torus_points(model, refinement)
    return periodic(model.whitening)(fine[:, None] - fine[None]).numpy()


@pytest.mark.parametrize(
    ("dimension", "refinement", "interpolation"),
    [(1, 1, "linear"), (2, 2, "cubic"), (3, 1, "linear")],
)
def test_the_model_passes_the_checker(dimension, refinement, interpolation, generator):
    model = model_of(
        dimension,
        refinement,
        interpolation=interpolation,
        mean=ConstantMean(value=0.3),
        residual_count=1000,
        generator=generator,
    )
    check_forward_model(model, generator, draws=600, variance_draws=1000)


def test_the_model_in_single_precision_passes_the_checker(generator):
    model = model_of(generator=generator, dtype=torch.float32, residual_count=1000)
    assert model.operator.dtype == torch.float32 == model.variance.dtype
    check_forward_model(model, generator, draws=600, variance_draws=1000)


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("refinement", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_features_are_those_of_the_dense_conditional(
    dimension, refinement, name, generator
):
    kernel = KERNELS[name](lengthscale=1.1, variance=2.0)
    model = model_of(dimension, refinement, kernel=kernel, generator=generator)
    W, K_fu, K_uu = dense_pieces(model)
    exact = conditional_features(W @ K_fu, K_uu)
    Phi = dense_torus.white_features(model.whitening, model.operator)
    np.testing.assert_allclose(Phi, exact, atol=1e-10)


@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
def test_the_conditional_variance_is_the_dense_one_within_its_draws(
    interpolation, generator
):
    count = 1000
    model = model_of(
        interpolation=interpolation, residual_count=count, generator=generator
    )
    W, K_fu, K_uu = dense_pieces(model)
    K_ff = fine_covariance(model, 2)
    exact = conditional_covariance(W @ K_ff @ W.T, W @ K_fu, K_uu)
    ratio = model.variance.numpy() / np.diag(exact)
    assert np.abs(np.log(ratio)).max() < 5 * np.sqrt(2 / count)
    draws = model.residual_draws(
        torch.zeros(count, model.latent_size), generator
    ).numpy()
    found = draws.T @ draws / count
    size = np.diag(exact)
    spread = np.sqrt((size[:, None] * size + exact**2) / count)
    assert np.abs((found - exact) / spread).max() < 5


@pytest.mark.parametrize(("dimension", "refinement"), [(2, 1), (1, 2)])
def test_a_finer_torus_adds_the_interpolation_error(dimension, refinement, generator):
    count, finer = 1000, 2 * refinement
    model = model_of(
        dimension,
        refinement,
        residual_refinement=finer,
        residual_count=count,
        generator=generator,
    )
    W, K_fu, K_uu = dense_pieces(model, finer)
    K_ff = fine_covariance(model, finer)
    Phi = dense_torus.white_features(model.whitening, model.operator)
    # Cov(L f, ξ) = W K_fu K_uu^{-1/2}.
    cross = conditional_features(W @ K_fu, K_uu) @ Phi.T
    exact = W @ K_ff @ W.T - cross - cross.T + Phi @ Phi.T
    for seen in (model, model.at(model.functionals)):
        ratio = seen.variance.numpy() / np.diag(exact)
        assert np.abs(np.log(ratio)).max() < 5 * np.sqrt(2 / count)


def test_nothing_is_left_over_where_the_grid_is_the_field(generator):
    model = model_of(refinement=1, generator=generator)
    assert float(model.variance.abs().max()) == 0.0
    assert (
        float(
            model.residual_draws(torch.zeros(3, model.latent_size), generator)
            .abs()
            .max()
        )
        == 0.0
    )


def test_a_residual_torus_that_does_not_hold_the_field_is_refused(generator):
    with pytest.raises(ValueError, match="multiple"):
        model_of(residual_refinement=3, generator=generator)
