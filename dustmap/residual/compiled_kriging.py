"""Kriging of many places from neighbouring rays, compiled: a thread for some places.

The same numbers as `dustmap.residual.kriging.Neighbourhoods`, which learning
differentiates; here nothing is kept but the weights.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, in_parallel, thread_count
from dustmap.residual.decay_table import FURTHEST, NEAREST, START, STEP, decay_table
from dustmap.residual.free_spectrum import FreeSpectrum, Rays
from dustmap.residual.kriging import JITTER, Kriging
from dustmap.residual.ray_table import LIMITS, ray_table

# Components of less than this part of the relative variance are left out.
_NEGLIGIBLE = 1e-9


def krige_rays(
    spectrum: FreeSpectrum,
    weights: Float[Tensor, " j"],
    rays: Rays,
    noise: Float[Tensor, " n"],
    places: Rays,
    neighbours: Int[Tensor, "b k"],
    *,
    blocks: Int[Tensor, " m"] | None = None,
    points: bool = False,
) -> Kriging:
    """Weights of the neighbours' residuals for every place, and what is left.

    The prediction is that of the extinction to the places; with ``points``, that of the
    relative density there. Places of one of the ``blocks`` have the same neighbours,
    whose covariance is factorised once; by default each has its own.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    table = ray_table()
    used = weights > _NEGLIGIBLE * weights.max()
    scales = np.array(spectrum.lengthscales)[used.numpy()]
    axes = np.array([table.starts, table.steps])
    blocks = torch.arange(len(places)) if blocks is None else blocks
    order = blocks.argsort(stable=True)
    starts = torch.searchsorted(blocks[order], torch.arange(len(neighbours) + 1))
    given = (
        _columns(rays, scales),
        _columns(places, scales),
        noise.numpy(),
        neighbours.numpy(),
        order.numpy(),
        starts.numpy(),
        (table.ratio.numpy(), axes, np.log(scales), decay_table()),
        scales,
        weights[used].numpy(),
        points,
    )
    found = np.zeros((len(places), neighbours.shape[1])), np.full(len(places), np.nan)
    threads = thread_count(len(neighbours) * neighbours.shape[1] ** 3)
    edges = np.linspace(0, len(neighbours), threads + 1).astype(int)
    in_parallel(lambda n: _krige(edges[n], edges[n + 1], *given, *found), threads)
    solved, variance = map(torch.from_numpy, found)
    failed = int(torch.isnan(variance).sum())
    if failed:
        raise FloatingPointError(
            f"{failed} of {len(variance)} neighbourhoods have a covariance that is not "
            "positive definite"
        )
    return Kriging(neighbours=neighbours[blocks], weights=solved, variance=variance)


# Columns of a ray; from the last one on, e^(-d/ℓ) - 1 of every scale.
_LENGTH, _DENSITY, _LOGARITHM, _FALLS = 3, 4, 5, 6


def _columns(rays: Rays, scales: np.ndarray) -> np.ndarray:
    """What covariances need of each ray, shape ``(n, 6 + j)``."""
    lengths = rays.lengths.numpy()[:, None]
    logarithms = np.log(np.maximum(lengths, 1e-300))
    falls = np.expm1(-lengths / scales)
    density = rays.density.numpy()[:, None]
    return np.hstack([rays.directions.numpy(), lengths, density, logarithms, falls])


@compiled
def _position(logarithm, start, step, size):
    """Index and fraction of a logarithm in a regular table, whose ends extend."""
    x = min(max((logarithm - start) / step, 0.0), size - 1 - 1e-9)
    return int(x), x - int(x)


@compiled
def _chord(one, other):
    """Squared distance of the tips of the two unit vectors."""
    x, y, z = one[0] - other[0], one[1] - other[1], one[2] - other[2]
    return x * x + y * y + z * z


@compiled
def _covariance(one, other, tables, scales, weights):
    """The free spectrum's covariance of the extinctions along two rays."""
    ratio, axes, logarithms, _ = tables
    if one[_LENGTH] > other[_LENGTH]:
        one, other = other, one
    chord = 0.5 * math.log(max(_chord(one, other), LIMITS[0] ** 2))
    i, a = _position(chord, axes[0, 0], axes[1, 0], ratio.shape[0])
    apart = other[_LENGTH] - one[_LENGTH]
    total = 0.0
    for j in range(len(scales)):
        u, difference = one[_LENGTH] / scales[j], apart / scales[j]
        shorter = max(one[_LOGARITHM] - logarithms[j], axes[0, 1])
        m, b = _position(shorter, axes[0, 1], axes[1, 1], ratio.shape[1])
        further = math.log1p(min(difference, LIMITS[2]))
        k, c = _position(further, axes[0, 2], axes[1, 2], ratio.shape[2])
        value = 0.0
        for p in range(2):
            for q in range(2):
                first, second = ratio[i + p, m + q, k], ratio[i + p, m + q, k + 1]
                part = (a if p else 1 - a) * (b if q else 1 - b)
                value += part * (first + c * (second - first))
        falls = one[_FALLS + j] + other[_FALLS + j]
        parallel = _parallel(u, difference, falls)
        total += weights[j] * scales[j] ** 2 * value * parallel
    return one[_DENSITY] * other[_DENSITY] * total


@compiled
def _parallel(u, difference, falls):
    """``I(0, u, u + difference)``; see `ray_table.parallel_rays`."""
    longer = u + difference
    if longer < 1e-3:
        return u * longer - (longer**3 - difference**3 + u**3) / 6
    return 2 * u + falls - math.expm1(-difference)


@compiled
def _point_covariance(point, ray, tables, scales, weights):
    """That of the relative density at a point with the extinction along a ray."""
    square = _chord(point, ray)
    foot = point[_LENGTH] * (1 - square / 2)
    apart = point[_LENGTH] * math.sqrt(max(square * (1 - square / 4), 0.0))
    total = 0.0
    for j in range(len(scales)):
        p, x, v = apart / scales[j], foot / scales[j], ray[_LENGTH] / scales[j]
        part = _decay(p, v - x, tables[3]) + _decay(p, x, tables[3])
        total += weights[j] * scales[j] * part
    return ray[_DENSITY] * total


@compiled
def _decay(p, x, table):
    """``G(p, x)``; see `decay_table`."""
    if p > FURTHEST:
        return 0.0
    along = min(abs(x), FURTHEST)
    i, a = _position(math.log(max(p, NEAREST)), START, STEP, table.shape[0])
    j, b = _position(math.log(max(along, NEAREST)), START, STEP, table.shape[1])
    first = table[i, j] + b * (table[i, j + 1] - table[i, j])
    second = table[i + 1, j] + b * (table[i + 1, j + 1] - table[i + 1, j])
    value = -(first + a * (second - first)) * math.expm1(-along)
    return value if x > 0 else -value


@compiled
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


@compiled
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


@compiled
def _fill(matrix, rays, noise, near, tables, scales, weights):
    """The covariance of a block's neighbours with their noise, lower triangle."""
    for i in range(len(near)):
        for j in range(i + 1):
            one, other = rays[near[i]], rays[near[j]]
            matrix[i, j] = _covariance(one, other, tables, scales, weights)
        matrix[i, i] += JITTER * matrix[i, i] + noise[near[i]]


@compiled
def _krige(
    first,
    last,
    rays,
    places,
    noise,
    neighbours,
    order,
    starts,
    tables,
    scales,
    weights,
    points,
    solved,
    variance,
):
    """Fill in the weights and variances of the blocks from ``first`` to ``last``."""
    size = neighbours.shape[1]
    for block in range(first, last):
        near, matrix = neighbours[block], np.empty((size, size))
        _fill(matrix, rays, noise, near, tables, scales, weights)
        if not _factorise(matrix):
            continue
        across = np.empty(size)
        for m in order[starts[block] : starts[block + 1]]:
            prior = weights.sum()
            if not points:
                prior = _covariance(places[m], places[m], tables, scales, weights)
            for i in range(size):
                row = rays[near[i]]
                if points:
                    covariance = _point_covariance(
                        places[m], row, tables, scales, weights
                    )
                else:
                    covariance = _covariance(places[m], row, tables, scales, weights)
                across[i] = covariance
            solved[m] = across
            _solve(matrix, solved[m])
            variance[m] = prior - (solved[m] * across).sum()
