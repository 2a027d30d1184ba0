r"""Coarse search of hyperparameters on a subset of the observations.

The evidence of n ≲ 1,000 observations is dense algebra: with the covariance
``K̂_nm = Cov(L_n f, L_m f)`` at unit variance,

``log p(y) = log N(y | β h, s² K̂ + diag(σ² + τ²))``,

where ``h_n = L_n μ̂`` is what the observations see of a mean shape and β its amplitude,
profiled by generalised least squares (Rasmussen & Williams 2006, eq. 2.45). The
variance s² and the common noise τ² are optimised for every candidate of lengthscale
and mean shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

# Of the logarithms of both variances.
_FIRST_STEP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The best variance, common noise and mean amplitude for one candidate."""

    log_evidence: float
    variance: float
    common_noise: float
    amplitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What is not searched: ``None`` means free."""

    variance: float | None = None
    common_noise: float | None = None
    amplitude: float | None = None


def maximise_evidence(
    covariance: np.ndarray,
    observations: np.ndarray,
    noise_variance: np.ndarray,
    shape: np.ndarray | None,
    fixed: Fixed,
) -> Evidence:
    """Optimise ``s²`` and ``τ²`` for a unit-variance covariance and one mean shape.

    Starts are relative to the scatter of the observations, so that no step depends on
    their unit.
    """
    scatter = float(np.mean((observations - observations.mean()) ** 2))
    unit = max(float(np.mean(np.diag(covariance))), np.finfo(float).tiny)
    scatter = scatter if scatter > 0 else float(noise_variance.mean())

    def unpack(theta: np.ndarray) -> tuple[float, float]:
        values = list(theta)
        variance = (
            math.exp(values.pop(0)) * scatter / unit
            if fixed.variance is None
            else fixed.variance
        )
        noise = (
            math.exp(values.pop(0)) * scatter
            if fixed.common_noise is None
            else fixed.common_noise**2
        )
        return variance, noise

    def objective(theta: np.ndarray) -> float:
        variance, noise = unpack(theta)
        total = variance * covariance + np.diag(noise_variance + noise)
        return -_log_evidence(total, observations, shape, fixed.amplitude)[0]

    theta = np.array(
        [0.0] * (fixed.variance is None) + [-6.0] * (fixed.common_noise is None)
    )
    if len(theta):
        # The steps are given: by itself the method starts 0.00025 away from a zero
        # and takes the flatness of so small a simplex for the maximum.
        simplex = np.vstack([theta, theta + _FIRST_STEP * np.eye(len(theta))])
        theta = scipy.optimize.minimize(
            objective,
            theta,
            method="Nelder-Mead",
            bounds=[(-30.0, 10.0)] * len(theta),
            options={
                "initial_simplex": simplex,
                "xatol": 0.02,
                "fatol": 0.02,
                "maxiter": 150,
            },
        ).x
    variance, noise = unpack(theta)
    total = variance * covariance + np.diag(noise_variance + noise)
    value, amplitude = _log_evidence(total, observations, shape, fixed.amplitude)
    return Evidence(
        log_evidence=value,
        variance=variance,
        common_noise=math.sqrt(noise),
        amplitude=amplitude,
    )


def _log_evidence(
    total: np.ndarray, y: np.ndarray, shape: np.ndarray | None, amplitude: float | None
) -> tuple[float, float]:
    """``log N(y | β h, total)`` and β; −inf if ``total`` is not positive definite."""
    try:
        factor = scipy.linalg.cholesky(total, lower=True)
    except scipy.linalg.LinAlgError:
        return -math.inf, 0.0
    white = scipy.linalg.solve_triangular(factor, y, lower=True)
    beta = 0.0
    if shape is not None:
        seen = scipy.linalg.solve_triangular(factor, shape, lower=True)
        power = float(seen @ seen)
        fitted = float(seen @ white) / power if power > 0 else 0.0
        beta = fitted if amplitude is None else amplitude
        white = white - beta * seen
    log_determinant = 2.0 * float(np.log(np.diag(factor)).sum())
    value = -0.5 * (
        float(white @ white) + log_determinant + len(y) * math.log(2 * math.pi)
    )
    return value, beta


def clustered_subset(
    positions: Float[Tensor, "n d"],
    size: int,
    neighbours: int,
    generator: torch.Generator,
) -> Tensor:
    """Row numbers of ``size`` observations in groups of near neighbours.

    A uniform subset of a large catalogue has no close pairs and says nothing about
    short lengthscales; groups around random members carry every separation. Groups
    hold at most ``size`` members; if they overlap, random rows fill the subset up.
    """
    n = len(positions)
    if n <= size:
        return torch.arange(n)
    neighbours = min(neighbours, size)
    seeds = torch.randperm(n, generator=generator)[: size // neighbours]
    # A few at a time: all distances at once are gigabytes for millions of rows.
    near = [
        torch.cdist(positions[few], positions).topk(neighbours, largest=False).indices
        for few in seeds.split(4)
    ]
    chosen = torch.unique(torch.cat(near))
    missing = size - len(chosen)
    if missing > 0:
        rest = torch.ones(n, dtype=torch.bool)
        rest[chosen] = False
        others = torch.nonzero(rest)[:, 0]
        extra = others[torch.randperm(len(others), generator=generator)[:missing]]
        chosen = torch.cat([chosen, extra]).sort().values
    return chosen


def search(
    covariance: Callable[[float], np.ndarray],
    lengthscales: Sequence[float],
    shapes: Sequence[np.ndarray | None],
    observations: np.ndarray,
    noise_variance: np.ndarray,
    fixed: Fixed,
) -> tuple[float, int, Evidence, list[tuple[float, int, Evidence]]]:
    """The best lengthscale and mean shape, and every candidate that was tried.

    All lengthscales are tried with the last shape, all shapes with the best of them,
    and then neighbouring lengthscales with the best shape for as long as they gain.

    Parameters
    ----------
    covariance
        Lengthscale to ``K̂`` (n, n) at unit variance.
    shapes
        ``L_n μ̂`` of every mean shape; ``None`` for a zero mean.
    """
    known: dict[float, np.ndarray] = {}
    tried: dict[tuple[float, int], Evidence] = {}

    def evidence(scale: float, shape: int) -> float:
        if scale not in known:
            known[scale] = covariance(scale)
        if (scale, shape) not in tried:
            tried[scale, shape] = maximise_evidence(
                known[scale], observations, noise_variance, shapes[shape], fixed
            )
        return tried[scale, shape].log_evidence

    last = len(shapes) - 1
    scale = max(lengthscales, key=lambda s: evidence(s, last))
    shape = max(range(len(shapes)), key=lambda i: evidence(scale, i))
    while True:
        place = list(lengthscales).index(scale)
        around = lengthscales[max(place - 1, 0) : place + 2]
        better = max(around, key=lambda s: evidence(s, shape))
        if better == scale:
            break
        scale = better
    best = tried[scale, shape]
    return scale, shape, best, [(s, i, e) for (s, i), e in tried.items()]
