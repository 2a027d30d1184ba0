"""Sparse variational regression against dense algebra."""

import math

import numpy as np
import pytest
import torch
from reference import functional_covariance, log_evidence, points_as_rows, rows_of
from scipy import stats
from svgp_cases import (
    COVARIANCE,
    ONE_STEP,
    bound_of,
    fit,
    mixed,
    normal,
    uniform,
    whitening,
)
from torch import Tensor

from dustmap.functionals import Functionals, PointValues
from dustmap.inference.svi import Svgp
from dustmap.inference.svi.gaussian import Batch, block_prior
from dustmap.kernels import Matern52
from dustmap.likelihoods import Gaussian, StudentT
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening


def ones_of(functionals: Functionals) -> np.ndarray:
    """What a functional sees of a constant: its weights, but for slopes."""
    return np.array(
        [sum(w for _, w, a in row if a is None) for row in rows_of(functionals)]
    )


def collapsed_bound(
    K_nn: np.ndarray, K_nu: np.ndarray, K_uu: np.ndarray, y: np.ndarray, noise
) -> float:
    """Titsias (2009, eq. 9) with a noise of its own for every observation."""
    Q = K_nu @ np.linalg.solve(K_uu, K_nu.T)
    missed = np.diag(K_nn - Q)
    evidence = stats.multivariate_normal(np.zeros(len(y)), Q + np.diag(noise))
    return evidence.logpdf(y) - 0.5 * np.sum(missed / noise)


def test_at_the_optimum_it_is_the_collapsed_bound(generator):
    """Values, slopes and integrals in one data set, with noise known and common."""
    data, z = mixed(generator), uniform(generator, 9, 2)
    y = normal(generator, len(data))
    known = 0.1 + uniform(generator, len(data))
    result = fit(data, y, z, Gaussian(variance=0.2, known=known), ONE_STEP, mean=0.3)
    rows, inducing = rows_of(data), points_as_rows(z.numpy())
    K_nu = functional_covariance(COVARIANCE, rows, inducing)
    K_uu = functional_covariance(COVARIANCE, inducing, inducing)
    K_nn = functional_covariance(COVARIANCE, rows, rows)
    residual = y.numpy() - 0.3 * ones_of(data)
    noise = 0.2 + known.numpy()
    exact = collapsed_bound(K_nn, K_nu, K_uu, residual, noise)
    assert result.bound == pytest.approx(exact, rel=1e-9)
    assert result.bound < log_evidence(K_nn, residual, noise)
    precision = K_uu + K_nu.T @ (K_nu / noise[:, None])
    asked = mixed(generator)
    K_su = functional_covariance(COVARIANCE, rows_of(asked), inducing)
    mean = K_su @ np.linalg.solve(precision, K_nu.T @ (residual / noise))
    moments = result.model.predict(asked)
    expected = mean + 0.3 * ones_of(asked)
    np.testing.assert_allclose(moments.mean, expected, rtol=1e-7, atol=1e-8)
    K_ss = functional_covariance(COVARIANCE, rows_of(asked), rows_of(asked))
    gone = K_su @ np.linalg.solve(K_uu, K_su.T)
    kept = K_su @ np.linalg.solve(precision, K_su.T)
    np.testing.assert_allclose(
        moments.variance, np.diag(K_ss - gone + kept), rtol=1e-6, atol=1e-8
    )


def families(generator: torch.Generator, size: int):
    """One of each, away from the prior."""
    members = [block_prior((size,), size), block_prior((size,), 1)]
    batch = Batch(
        features=normal(generator, 9, size),
        weight=uniform(generator, 9),
        target=normal(generator, 9),
    )
    return [member.safe_step(batch, 0.4)[0] for member in members]


def dense(q) -> Tensor:
    """S by polarisation: all that a family tells is ``kᵀ S k``."""
    size = len(q.mean)
    eye = torch.eye(size, dtype=torch.float64)
    pairs = (eye[:, None] + eye[None, :]).reshape(-1, size)
    both = q.quadratic(pairs).reshape(size, size)
    own = q.quadratic(eye)
    return ((both - own[:, None] - own[None, :]) / 2).detach()


@pytest.mark.parametrize("number", range(2))
def test_the_bound_is_the_formula(number, generator):
    """With Student's noise, in ε = L⁻¹u by dense algebra."""
    x, z = uniform(generator, 15, 2), uniform(generator, 6, 2)
    y = normal(generator, 15)
    likelihood = StudentT(scale=0.3, degrees=4.0)
    q = families(generator, 6)[number]
    forward = RowwiseGaussian(
        whitening(z), PointValues(x), mean=ConstantMean(value=0.2)
    )
    model = Svgp(forward=forward, q=q, likelihood=likelihood)
    K_uu = COVARIANCE.matrix(z.numpy(), z.numpy())
    K_nu = COVARIANCE.matrix(x.numpy(), z.numpy())
    features = np.linalg.solve(np.linalg.cholesky(K_uu), K_nu.T).T
    m, S = q.mean.detach().numpy(), dense(q).numpy()
    means = 0.2 + features @ m
    variances = 1.7 + np.einsum("np,pq,nq->n", features, S - np.eye(6), features)
    f, weights = np.polynomial.hermite_e.hermegauss(300)
    nodes = means[:, None] + np.sqrt(variances)[:, None] * f
    logs = stats.t.logpdf(y.numpy()[:, None], 4.0, nodes, 0.3)
    expected = (logs @ weights).sum() / math.sqrt(2 * math.pi)
    KL = 0.5 * (np.trace(S) + m @ m - 6 - np.linalg.slogdet(S)[1])
    value = bound_of(model, PointValues(x), y)
    assert value == pytest.approx(expected - KL, abs=0.02)


def test_derivatives_run_through_features_to_kernel_and_points(generator):
    data = mixed(generator)
    z = uniform(generator, 5, 2).requires_grad_(True)
    model = RowwiseGaussian(whitening(z.detach()), data)
    index = torch.arange(len(data))
    log = torch.tensor([-0.9, -0.4], dtype=torch.float64, requires_grad=True)

    def rows(log_scale: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        kernel = Matern52(lengthscale=log_scale.exp(), variance=1.7)
        root = CholeskyWhitening(kernel, points)
        found = model.rows_under(root, index)
        return found.features, found.variance

    assert torch.autograd.gradcheck(rows, (log, z), rtol=1e-3, atol=1e-6)
