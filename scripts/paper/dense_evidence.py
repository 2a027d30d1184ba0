r"""Scales of a Gaussian process with zero mean by the dense evidence of some rows.

``log p(y) = log N(y | 0, s² K̂ + diag(σ² + τ²))`` with the covariance ``K̂`` of unit
variance; s² and τ² are optimised for every lengthscale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize

# Of the logarithms of both variances.
_FIRST_STEP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The best lengthscale, variance s² and standard deviation τ of the noise."""

    log_evidence: float
    lengthscale: float
    variance: float
    common_noise: float


def best_scales(
    covariance: Callable[[float], np.ndarray],
    lengthscales: Sequence[float],
    observations: np.ndarray,
    noise_variance: np.ndarray,
    *,
    common_noise: float | None = None,
) -> Evidence:
    """Return the scales of largest evidence; τ is searched unless it is given.

    ``covariance`` makes ``K̂`` (n, n) of a lengthscale. Steps are relative to the
    scatter of the observations, so that none depends on their unit.
    """
    y = observations
    scatter = float(np.mean((y - y.mean()) ** 2))

    def best_of(lengthscale: float) -> Evidence:
        unit = covariance(lengthscale)
        size = float(np.mean(np.diag(unit)))

        def scales(theta: np.ndarray) -> tuple[float, float]:
            free = math.exp(theta[1]) * scatter if common_noise is None else 0.0
            known = 0.0 if common_noise is None else common_noise**2
            return math.exp(theta[0]) * scatter / size, free + known

        def log_evidence(theta: np.ndarray) -> float:
            variance, noise = scales(theta)
            total = variance * unit + np.diag(noise_variance + noise)
            try:
                factor = scipy.linalg.cholesky(total, lower=True)
            except scipy.linalg.LinAlgError:
                return -math.inf
            white = scipy.linalg.solve_triangular(factor, y, lower=True)
            log_determinant = 2.0 * float(np.log(np.diag(factor)).sum())
            misfit = float(white @ white)
            return -0.5 * (misfit + log_determinant + len(y) * math.log(2 * math.pi))

        start = np.array([0.0, -6.0] if common_noise is None else [0.0])
        # The steps are given: by itself the method starts 0.00025 away from a zero
        # and takes the flatness of so small a simplex for the maximum.
        simplex = np.vstack([start, start + _FIRST_STEP * np.eye(len(start))])
        limits = {"xatol": 0.02, "fatol": 0.02, "maxiter": 150}
        found = scipy.optimize.minimize(
            lambda theta: -log_evidence(theta),
            start,
            method="Nelder-Mead",
            bounds=[(-30.0, 10.0)] * len(start),
            options={"initial_simplex": simplex, **limits},
        ).x
        variance, noise = scales(found)
        return Evidence(
            log_evidence=log_evidence(found),
            lengthscale=lengthscale,
            variance=variance,
            common_noise=math.sqrt(noise),
        )

    return max(map(best_of, lengthscales), key=lambda found: found.log_evidence)
