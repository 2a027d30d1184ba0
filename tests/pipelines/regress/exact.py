"""A dense Gaussian process with a Matérn-5/2, written from the formulas alone.

Rasmussen & Williams 2006, eq. 2.25, 5.8 and 5.9, in units of the standard deviations.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.optimize
from scipy.spatial.distance import cdist

# Lengthscales of the starts, in standard deviations for one input.
STARTS = (0.1, 0.5, 2.0)
# Rows on which the searches from these run; the best goes on with all.
_FEW = 500


def predict_exactly(x: np.ndarray, y: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The posterior mean (M,) at places (M, D) from rows (N, D) and targets (N,).

    The hyperparameters maximise the evidence of all rows.
    """
    shift, unit, mean, std = x.mean(axis=0), x.std(axis=0), y.mean(), y.std()
    x, places, y = (x - shift) / unit, (places - shift) / unit, (y - mean) / std
    few = np.random.default_rng(0).permutation(len(x))[:_FEW]
    axes = x.shape[1]
    found = [
        _search(x[few], y[few], np.r_[[np.log(scale * axes**0.5)] * axes, 0, -3, 0])
        for scale in STARTS
    ]
    theta = min(found, key=lambda theta: negative_evidence(theta, x, y)[0])
    theta = _search(x, y, theta)
    scale, (variance, noise), offset = (
        np.exp(theta[:axes]),
        np.exp(theta[axes:-1]),
        theta[-1],
    )
    r = np.sqrt(5) * cdist(x / scale, x / scale)
    K = variance * (1 + r + r**2 / 3) * np.exp(-r) + noise * np.eye(len(x))
    r = np.sqrt(5) * cdist(places / scale, x / scale)
    across = variance * (1 + r + r**2 / 3) * np.exp(-r)
    predicted = offset + across @ np.linalg.solve(K, y - offset)
    return mean + std * predicted


def negative_evidence(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[float, np.ndarray]:
    """``−log p(y) / N`` and its gradient.

    ``theta`` holds the logarithms of lengthscales, variance and noise, and the mean.
    """
    axes, count = x.shape[1], len(x)
    scale, (variance, noise) = np.exp(theta[:axes]), np.exp(theta[axes:-1])
    r = np.sqrt(5) * cdist(x / scale, x / scale)
    decay = np.exp(-r)
    K = variance * (1 + r + r**2 / 3) * decay
    factor = scipy.linalg.cholesky(K + noise * np.eye(count), lower=True)
    residual = y - theta[-1]
    alpha = scipy.linalg.cho_solve((factor, True), residual)
    (potri,) = scipy.linalg.get_lapack_funcs(("potri",), (factor,))
    inverse = potri(factor, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    weights = np.outer(alpha, alpha) - inverse
    # dK / d log ℓ_d = σ² 5/3 (1 + r) e^−r (Δ_d / ℓ_d)²; the sum over pairs by parts.
    slope = weights * (variance * 5 / 3 * (1 + r) * decay)
    z = x / scale
    along = (slope.sum(axis=1) @ z**2) - ((slope @ z) * z).sum(axis=0)
    gradient = np.r_[
        along, 0.5 * (weights * K).sum(), 0.5 * noise * np.trace(weights), alpha.sum()
    ]
    evidence = -0.5 * residual @ alpha - np.log(factor.diagonal()).sum()
    evidence -= 0.5 * count * np.log(2 * np.pi)
    return -evidence / count, -gradient / count


def _search(x: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    axes = x.shape[1]
    bounds = [(-6, 8)] * axes + [(-6, 14), (-14, 2), (None, None)]
    return scipy.optimize.minimize(
        negative_evidence,
        start,
        args=(x, y),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 100, "ftol": 1e-8},
    ).x
