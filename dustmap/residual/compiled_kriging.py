"""Kriging of many places from neighbouring rays, compiled: a thread for some places.

The same numbers as `dustmap.residual.neighbourhoods` has, which learning
differentiates; of a prediction nothing is kept but the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, in_parallel, thread_count
from dustmap.residual.along_ray import AlongRay
from dustmap.residual.compiled_covariance import (
    CompiledCovariance,
    covariances,
    point_covariance,
)
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import JITTER, Kriging
from dustmap.residual.rays import Rays

# Places of a block that are solved for at once.
_TOGETHER = 64


def krige_rays(
    form: FreeSpectrum | AlongRay,
    weights: Float[Tensor, " j"],
    rays: Rays,
    noise: Float[Tensor, " n"],
    places: Rays,
    neighbours: Int[Tensor, "m k"],
) -> Kriging:
    """Weights of the neighbours' residuals for every place, and what is left.

    The variance is never below `JITTER` times the prior variance: the tables are no
    more accurate.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    covariance = CompiledCovariance(form, weights)
    given = _prepared(covariance, rays, noise, places, neighbours)[0]
    found = np.zeros(tuple(neighbours.shape)), np.full(len(places), np.nan)
    in_parts(_krige, neighbours, *given, *found)
    solved, variance = map(torch.from_numpy, found)
    _require_solved(variance)
    return Kriging(neighbours=neighbours, weights=solved, variance=variance)


def predict_rays(
    form: FreeSpectrum | AlongRay,
    weights: Float[Tensor, " j"],
    rays: Rays,
    noise: Float[Tensor, " n"],
    residuals: Float[Tensor, "s n"],
    places: Rays,
    neighbours: Int[Tensor, "b k"],
    blocks: Int[Tensor, " m"],
    *,
    points: bool = False,
) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
    r"""The prediction of every place from every set of residuals, and its variance.

    It is that of the extinction to the places; with ``points``, that of the relative
    density there. Places of one of the ``blocks`` have the same neighbours, whose
    covariance :math:`U^\top U` is factorised once: with :math:`z = U^{-\top} c` the
    mean is :math:`z^\top U^{-\top} r` and the variance :math:`C_{**} - z^\top z`, at
    least as in `krige_rays`.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    covariance = CompiledCovariance(form, weights, points=points)
    given, used = _prepared(covariance, rays, noise, places, neighbours)
    order = blocks.argsort(stable=True)
    starts = torch.searchsorted(blocks[order], torch.arange(len(neighbours) + 1))
    # Those of one row beside each other.
    known = residuals.T[used].contiguous().numpy()
    prior = float(weights.sum()) if points else math.nan
    found = np.zeros((len(places), known.shape[1])), np.full(len(places), np.nan)
    own = known, order.numpy(), starts.numpy(), prior
    in_parts(_predict, neighbours, *given, *own, *found)
    mean, variance = map(torch.from_numpy, found)
    _require_solved(variance)
    return mean.T, variance


def _prepared(
    covariance: CompiledCovariance,
    rays: Rays,
    noise: Float[Tensor, " n"],
    places: Rays,
    neighbours: Int[Tensor, "b k"],
) -> tuple[tuple[Any, ...], Int[Tensor, " u"]]:
    """What the loops take, and the numbers of the rays that it has."""
    used = torch.arange(len(rays))
    if neighbours.numel() < len(rays):
        # Few places do not pay for the columns of all rays.
        used, neighbours = neighbours.unique(return_inverse=True)
        rays, noise = rays[used], noise[used]
    columns = covariance.columns(rays), covariance.columns(places)
    return (*columns, noise.numpy(), neighbours.numpy(), covariance.tables), used


def in_parts(loop: Callable, neighbours: Int[Tensor, "b k"], *given: Any) -> None:
    """A loop over neighbourhoods, a part of them on each thread."""
    count, size = neighbours.shape
    threads = thread_count(count * size**3)
    edges = np.linspace(0, count, threads + 1).astype(int)
    in_parallel(lambda n: loop(edges[n], edges[n + 1], *given), threads)


def _require_solved(variance: Float[Tensor, " m"]) -> None:
    failed = int(torch.isnan(variance).sum())
    if failed:
        raise FloatingPointError(
            f"{failed} of {len(variance)} places have neighbours with a covariance "
            "that is not positive definite"
        )


@compiled
def factorise(matrix):
    """``UᵀU`` with U in the upper triangle in place; whether there is one.

    Loops run along rows, so that they are vectors.
    """
    n = len(matrix)
    for k in range(n):
        pivot = matrix[k]
        if not pivot[k] > 0:
            return False
        scaling = 1 / math.sqrt(pivot[k])
        for j in range(k, n):
            pivot[j] *= scaling
        for i in range(k + 1, n):
            row, factor = matrix[i], pivot[i]
            for j in range(i, n):
                row[j] -= factor * pivot[j]
    return True


@compiled
def solve(factor, x):
    """``(UᵀU)⁻¹ x`` in place."""
    n = len(x)
    for i in range(n):
        row = factor[i]
        x[i] /= row[i]
        for k in range(i + 1, n):
            x[k] -= row[k] * x[i]
    for i in range(n - 1, -1, -1):
        row, rest = factor[i], x[i]
        for k in range(i + 1, n):
            rest -= row[k] * x[k]
        x[i] = rest / row[i]


@compiled
def _solve_transposed(factor, columns, count):
    """``U⁻ᵀ`` of the first ``count`` columns in place."""
    for i in range(len(columns)):
        row, scaling = columns[i], 1 / factor[i, i]
        for p in range(count):
            row[p] *= scaling
        for k in range(i + 1, len(columns)):
            other, entry = columns[k], factor[i, k]
            for p in range(count):
                other[p] -= entry * row[p]


@compiled
def _factor(rows, columns, noise, tables, matrix, found):
    """Of the covariance and noise of neighbours; whether there is one."""
    for i in range(len(rows)):
        # What follows the diagonal is the upper triangle's transpose.
        covariances(rows[i], rows, columns, i + 1, tables, found)
        for j in range(i + 1):
            matrix[j, i] = found[j]
        matrix[i, i] += JITTER * matrix[i, i] + noise[i]
    return factorise(matrix)


@compiled
def _krige(first, last, rays, places, noise, neighbours, tables, solved, variance):
    """Fill in the weights and variances of the places from ``first`` to ``last``."""
    size = neighbours.shape[1]
    matrix, found, own = np.empty((size, size)), np.empty(size), np.empty(1)
    for m in range(first, last):
        near = neighbours[m]
        rows = rays[near]
        columns = rows.T.copy()
        if not _factor(rows, columns, noise[near], tables, matrix, found):
            continue
        place = places[m : m + 1]
        covariances(place[0], rows, columns, size, tables, found)
        covariances(place[0], place, place.T.copy(), 1, tables, own)
        solved[m] = found
        solve(matrix, solved[m])
        # The tables cannot resolve a smaller variance.
        variance[m] = max(own[0] - (solved[m] * found).sum(), JITTER * own[0])


@compiled
def _predict(
    first,
    last,
    rays,
    places,
    noise,
    neighbours,
    tables,
    residuals,
    order,
    starts,
    prior,
    mean,
    variance,
):
    """Fill in the means and variances of the blocks from ``first`` to ``last``.

    The ``prior`` variance is that of points; NaN where places are rays.
    """
    size, points = neighbours.shape[1], not math.isnan(prior)
    matrix, found, own = np.empty((size, size)), np.empty(size), np.empty(1)
    across = np.empty((size, _TOGETHER))
    for block in range(first, last):
        near = neighbours[block]
        rows = rays[near]
        columns = rows.T.copy()
        if not _factor(rows, columns, noise[near], tables, matrix, found):
            continue
        known = residuals[near]
        _solve_transposed(matrix, known, known.shape[1])
        for begin in range(starts[block], starts[block + 1], _TOGETHER):
            asked = order[begin : min(begin + _TOGETHER, starts[block + 1])]
            for p in range(len(asked)):
                place = places[asked[p] : asked[p] + 1]
                if points:
                    for i in range(size):
                        across[i, p] = point_covariance(place[0], rows[i], tables)
                    own[0] = prior
                else:
                    covariances(place[0], rows, columns, size, tables, found)
                    across[:, p] = found
                    covariances(place[0], place, place.T.copy(), 1, tables, own)
                variance[asked[p]] = own[0]
            _solve_transposed(matrix, across, len(asked))
            for p in range(len(asked)):
                result, told = mean[asked[p]], 0.0
                for i in range(size):
                    entry, values = across[i, p], known[i]
                    told += entry * entry
                    for s in range(len(values)):
                        result[s] += entry * values[s]
                # The tables cannot resolve a smaller variance.
                left = variance[asked[p]]
                variance[asked[p]] = max(left - told, JITTER * left)
