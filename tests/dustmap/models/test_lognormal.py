"""The log-normal density against dense loops, and its gradients against differences."""

from __future__ import annotations

import functools
import math

import dense_torus
import numpy as np
import pytest
import torch
from forward_models import check_forward_model
from reference import conditional_features

from dustmap.functionals import (
    Derivatives,
    DistanceMarginalizedIntegrals,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.kernels import Matern32
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean, ExponentialDisc, Mean
from dustmap.tori import Tori
from dustmap.whitening import TorusWhitening

DISC = ExponentialDisc(
    value=0.7, scale_height=0.8, scale_length=3.0, centre_distance=8.0
)
RULE = GaussLegendre(count=5)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def seen(dimension, seed=3):
    """Points, line integrals and blurred ones, one after another."""
    ends = dense_torus.inside(dimension, 5, seed + 2)
    spread = 0.1 * torch.linalg.vector_norm(ends, dim=1)
    return Stack(
        [
            PointValues(dense_torus.inside(dimension, 5, seed)),
            LineIntegrals(dense_torus.inside(dimension, 8, seed + 1), RULE),
            # Within the box, which is convex and holds the observer.
            DistanceMarginalizedIntegrals(
                0.7 * ends, spread, torch.linalg.vector_norm(ends, dim=1), RULE
            ),
        ]
    )


def model_of(
    dimension=2,
    *,
    dtype=torch.float64,
    variance=0.8,
    isotropic=False,
    mean=None,
    functionals=None,
    **options,
):
    _, _, spacing, ratio = dense_torus.SETTINGS[dimension]
    scales = [q * h for q, h in zip(ratio, spacing, strict=True)]
    kernel = Matern32(lengthscale=0.9 if isotropic else scales, variance=variance)
    whitening = TorusWhitening(kernel, dense_torus.torus(dimension), dtype=dtype)
    return LogNormal(
        whitening,
        seen(dimension) if functionals is None else functionals,
        mean=ConstantMean(value=0.6) if mean is None else mean,
        **options,
    )


def normal(model, seed=2, *, count=None):
    shape = (model.latent_size,) if count is None else (count, model.latent_size)
    return torch.randn(shape, generator=rng(seed), dtype=torch.float64).to(model.dtype)


@pytest.mark.parametrize(
    ("dimension", "dtype"),
    [(1, torch.float64), (2, torch.float32), (2, torch.float64), (3, torch.float64)],
)
def test_it_is_a_forward_model(dimension, dtype, generator):
    mean = DISC if dimension == 3 else ConstantMean(value=0.6)
    model = model_of(
        dimension,
        dtype=dtype,
        # Draws that are nearly normal, as the checker's errors take for granted.
        variance=0.3,
        mean=mean,
    )
    check_forward_model(model, generator, draws=1000)


@functools.cache
def dense_colour(dimension):
    """``A = K^{1/2}`` of the oracle, and the points of the box."""
    K = dense_torus.torus_covariance("matern32", dimension, 1, (1, 1))
    root = conditional_features(K, K) / math.sqrt(dense_torus.VARIANCE)
    box = dense_torus.torus(dimension).grid
    return root, box


def normal_noise(model):
    """White noise ξ at the points of the torus, and its ε."""
    white = torch.randn(model.whitening.torus.size, generator=rng(2)).double()
    return white, model.whitening.modes.of(white)


def dense_density(model, mean, white):
    """``ρ_0(x_i) exp Σ_j A_ij ξ_j`` at the points of the box, zero elsewhere."""
    A, box = dense_colour(model.functionals.dimension)
    rho = np.zeros(len(A))
    for i, place in enumerate(np.ndindex(*model.whitening.torus.shape)):
        if any(p > n - 1 for p, n in zip(place, box.shape, strict=True)):
            continue
        x = np.array(box.origin) + np.array(place) * np.array(box.spacing)
        value = float(mean(torch.tensor(x)[None])[0])
        scale = math.sqrt(float(model.whitening.kernel.variance))
        rho[i] = value * math.exp(scale * sum(a * e for a, e in zip(A[i], white)))
    return rho


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_predictions_are_sums_over_the_exponential_of_a_dense_field(dimension):
    mean: Mean = DISC if dimension == 3 else ConstantMean(value=0.6)
    model = model_of(dimension, mean=mean)
    white, eps = normal_noise(model)
    rho = dense_density(model, mean, white.tolist())
    W = model.weights.to_dense().numpy()
    np.testing.assert_allclose(model.apply(eps), W @ rho, rtol=1e-6)
    A, _ = dense_colour(dimension)
    tangent = W @ (rho[:, None] * A) * math.sqrt(float(model.whitening.kernel.variance))
    tangents = model.linearise(eps).operator
    found = dense_torus.white_features(model.whitening, tangents)
    assert np.abs(found - tangent).max() < 1e-6 * np.abs(tangent).max()


def test_unresolved_variances_are_those_of_lines_and_of_points():
    model = model_of(2)
    white, eps = normal_noise(model)
    W = model.weights.to_dense().numpy()
    rho = dense_density(model, ConstantMean(value=0.6), white.tolist())
    exact = model.local[0].line * (W @ rho**2)
    points = dense_torus.inside(2, 5, 3)
    c = model.local[0].at(points, model.whitening.torus.grid).numpy()
    assert (c > 1e-3).all()
    exact[:5] = np.expm1(c) * (W[:5] @ rho) ** 2
    np.testing.assert_allclose(model.linearise(eps).variance, exact, rtol=1e-6)


def test_a_coloured_density_is_seen_as_its_parameters_are():
    model = model_of()
    points = PointValues(dense_torus.inside(2, 6, 9))
    for looking in (model, model.at(points)):
        eps = normal(looking)
        prediction, variance = looking.predict_from_density(looking.density(eps))
        tangent = looking.linearise(eps)
        torch.testing.assert_close(prediction, looking.apply(eps))
        torch.testing.assert_close(prediction, tangent.prediction)
        torch.testing.assert_close(variance, tangent.variance)
        assert bool((variance > 0).all())


def test_residual_draws_are_log_normal_with_the_variance_told():
    model, count = model_of(2), 20_000
    eps = normal(model)
    tangent = model.linearise(eps)
    variance, prediction = tangent.variance, tangent.prediction
    draws = model.residual_draws(eps.expand(count, -1), rng(3))
    z = draws.mean(dim=0) / (variance / count).sqrt()
    assert float(z.abs().max()) < 4.5
    # Excess kurtosis of a log-normal distribution.
    w = 1 + variance / prediction**2
    kurtosis = w**4 + 2 * w**3 + 3 * w**2 - 3
    z = (draws.var(dim=0) / variance - 1) / ((kurtosis - 1) / count).sqrt()
    assert float(z.abs().max()) < 4.5 and 0.5 < float(z.std()) < 1.5
    logarithm = (1 + draws / prediction).log()
    z = (logarithm.var(dim=0) / w.log() - 1) * math.sqrt(count / 2)
    assert float(z.abs().max()) < 4.5
    correlation = torch.corrcoef(draws.mT) - torch.eye(len(variance))
    assert float(correlation.abs().max()) < 5 / math.sqrt(count)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_ray_without_length_sees_nothing_without_scatter(dtype):
    ends = torch.cat([torch.zeros(1, 2), dense_torus.inside(2, 2, 4)])
    model = model_of(2, dtype=dtype, functionals=LineIntegrals(ends, RULE))
    eps = normal(model, count=3)
    tangent = model.linearise(eps[0])
    assert float(tangent.prediction[0]) == float(tangent.variance[0]) == 0.0
    draws = model.residual_draws(eps, rng(3))
    assert bool((draws[:, 0] == 0).all()) and bool((draws[:, 1:] != 0).all())


def test_the_padding_stands_where_the_nearest_face_is():
    torus = dense_torus.torus(2)
    found = Tori(tori=(torus,)).positions()
    for place, at in zip(np.ndindex(*torus.shape), found.tolist(), strict=True):
        for axis, steps in enumerate(place):
            h = torus.grid.spacing[axis]
            faces = torus.grid.lower[axis], torus.grid.upper[axis]
            x = faces[0] + steps * h
            if x > faces[1] + 1e-9:
                # Round the torus it is so far to the first face.
                back = faces[0] + torus.shape[axis] * torus.grid.spacing[axis] - x
                x = faces[1] if x - faces[1] <= back + 1e-9 else faces[0]
            assert at[axis] == pytest.approx(x, abs=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_median_that_is_not_positive_is_refused(value):
    with pytest.raises(ValueError, match="positive"):
        model_of(2, mean=ConstantMean(value=value))


def test_derivatives_are_refused():
    x = dense_torus.inside(2, 3, 3)
    functionals = Stack([PointValues(x), Derivatives(x, 0)])
    with pytest.raises(ValueError, match="Derivatives"):
        model_of(2, functionals=functionals)
