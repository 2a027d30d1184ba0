"""Kriging of many places from neighbouring rays, compiled: a thread for some places.

The same numbers as `dustmap.residual.kriging.Neighbourhoods`, which learning
differentiates; here nothing is kept but the weights.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from numba import njit, prange
from torch import Tensor

from dustmap.residual.free_spectrum import FreeSpectrum, Rays
from dustmap.residual.kriging import JITTER, Kriging
from dustmap.residual.ray_table import LIMITS, ray_table


def krige_rays(
    spectrum: FreeSpectrum,
    weights: Float[Tensor, " j"],
    rays: Rays,
    noise: Float[Tensor, " n"],
    places: Rays,
    neighbours: Int[Tensor, "m k"],
) -> Kriging:
    """Weights of the neighbours' residuals for every place, and what is left.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    table = ray_table()
    used = (weights > 0).numpy()
    scales = np.array(spectrum.lengthscales)[used]
    found = _krige(
        _columns(rays, scales),
        _columns(places, scales),
        noise.numpy(),
        neighbours.numpy(),
        table.ratio.numpy(),
        np.array([table.starts, table.steps]),
        np.stack([scales, np.log(scales)]),
        weights.numpy()[used] * scales**2,
    )
    solved, variance = map(torch.from_numpy, found)
    failed = int(torch.isnan(variance).sum())
    if failed:
        raise FloatingPointError(
            f"{failed} of {len(variance)} neighbourhoods have a covariance that is not "
            "positive definite"
        )
    return Kriging(neighbours=neighbours, weights=solved, variance=variance)


def _columns(rays: Rays, scales: np.ndarray) -> np.ndarray:
    r"""What pairs need of each ray, shape ``(n, 6 + j)``.

    Direction, length, density, :math:`\ln d`, then :math:`e^{-d/\ell_j} - 1`.
    """
    lengths = rays.lengths[:, None]
    decayed = torch.expm1(-lengths / torch.from_numpy(scales))
    logarithm = lengths.clamp_min(1e-300).log()
    parts = [rays.directions, lengths, rays.density[:, None], logarithm, decayed]
    return np.ascontiguousarray(torch.cat(parts, dim=1).numpy())


@njit(cache=True)
def _interpolated(ratio, x, y, z):
    """The table's ratio, trilinearly, at places in steps of its axes."""
    x = min(max(x, 0.0), ratio.shape[0] - 1 - 1e-9)
    y = min(max(y, 0.0), ratio.shape[1] - 1 - 1e-9)
    z = min(max(z, 0.0), ratio.shape[2] - 1 - 1e-9)
    i, j, k = int(x), int(y), int(z)
    a, b, c = x - i, y - j, z - k
    value = 0.0
    for p in range(2):
        for q in range(2):
            first, second = ratio[i + p, j + q, k], ratio[i + p, j + q, k + 1]
            part = (a if p else 1 - a) * (b if q else 1 - b)
            value += part * (first + c * (second - first))
    return value


@njit(cache=True)
def _parallel(u, difference, decayed):
    """``I(0, u, u + difference)``; ``decayed`` adds both rays' ``exp(-d/l) - 1``.

    See `ray_table.parallel_rays`.
    """
    longer = u + difference
    if longer < 1e-3:
        return u * longer - (longer**3 - difference**3 + u**3) / 6
    return 2 * u + decayed - math.expm1(-difference)


@njit(cache=True)
def _covariance(one, other, ratio, axes, scales, weights):
    """The free spectrum's covariance of two rays.

    ``scales`` are lengths and their logarithms; ``weights`` hold ``w l**2``.
    """
    x, y, z = one[0] - other[0], one[1] - other[1], one[2] - other[2]
    chord = math.sqrt(x * x + y * y + z * z)
    across = (math.log(max(chord, LIMITS[0])) - axes[0, 0]) / axes[1, 0]
    shorter, logarithm = min(one[3], other[3]), min(one[5], other[5])
    apart = abs(one[3] - other[3])
    total = 0.0
    for j in range(len(weights)):
        difference = apart / scales[0, j]
        along = max(logarithm - scales[1, j], math.log(LIMITS[1])) - axes[0, 1]
        behind = math.log1p(min(difference, LIMITS[2])) - axes[0, 2]
        value = _interpolated(ratio, across, along / axes[1, 1], behind / axes[1, 2])
        decayed = one[6 + j] + other[6 + j]
        value *= _parallel(shorter / scales[0, j], difference, decayed)
        total += weights[j] * value
    return one[4] * other[4] * total


@njit(cache=True)
def _factorise(matrix):
    """Cholesky's factor in the lower triangle; whether there is one."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= matrix[i, k] * matrix[j, k]
            if i > j:
                matrix[i, j] = rest / matrix[j, j]
            elif rest > 0:
                matrix[i, i] = math.sqrt(rest)
            else:
                return False
    return True


@njit(cache=True)
def _solve(factor, x):
    """``(L Lᵀ)⁻¹ x`` in place."""
    n = len(x)
    for i in range(n):
        for k in range(i):
            x[i] -= factor[i, k] * x[k]
        x[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            x[i] -= factor[k, i] * x[k]
        x[i] /= factor[i, i]


@njit(parallel=True, cache=True)
def _krige(rays, places, noise, neighbours, ratio, axes, scales, weights):
    count, near = neighbours.shape
    solved = np.zeros((count, near))
    variance = np.full(count, np.nan)
    for m in prange(count):
        matrix, across = np.empty((near, near)), np.empty(near)
        for i in range(near):
            row = rays[neighbours[m, i]]
            across[i] = _covariance(places[m], row, ratio, axes, scales, weights)
            for j in range(i + 1):
                other = rays[neighbours[m, j]]
                matrix[i, j] = _covariance(row, other, ratio, axes, scales, weights)
            matrix[i, i] += JITTER * matrix[i, i] + noise[neighbours[m, i]]
        if not _factorise(matrix):
            continue
        solved[m] = across
        _solve(matrix, solved[m])
        prior = _covariance(places[m], places[m], ratio, axes, scales, weights)
        variance[m] = prior - (solved[m] * across).sum()
    return solved, variance
