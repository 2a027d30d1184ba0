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
from dustmap.residual.along_ray import AlongRay
from dustmap.residual.compiled_covariance import (
    CompiledCovariance,
    covariance,
    point_covariance,
)
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import JITTER, Kriging
from dustmap.residual.rays import Rays


def krige_rays(
    form: FreeSpectrum | AlongRay,
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

    The variance is never below `JITTER` times the prior variance: the tables are no
    more accurate.

    The prediction is that of the extinction to the places; with ``points``, that of the
    relative density there. Places of one of the ``blocks`` have the same neighbours,
    whose covariance is factorised once; by default each has its own.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    compiled_form, asked = CompiledCovariance(form, weights), neighbours
    if neighbours.numel() < len(rays):
        # Few places do not pay for the columns of all rays.
        used, neighbours = neighbours.unique(return_inverse=True)
        rays, noise = rays[used], noise[used]
    blocks = torch.arange(len(places)) if blocks is None else blocks
    order = blocks.argsort(stable=True)
    starts = torch.searchsorted(blocks[order], torch.arange(len(neighbours) + 1))
    given = (
        compiled_form.columns(rays),
        compiled_form.columns(places),
        noise.numpy(),
        neighbours.numpy(),
        order.numpy(),
        starts.numpy(),
        compiled_form.tables,
        float(weights.sum()) if points else math.nan,
    )
    found = np.zeros((len(places), neighbours.shape[1])), np.full(len(places), np.nan)
    threads = thread_count(len(neighbours) * neighbours.shape[1] ** 3)
    edges = np.linspace(0, len(neighbours), threads + 1).astype(int)
    in_parallel(lambda n: _krige(edges[n], edges[n + 1], *given, *found), threads)
    solved, variance = map(torch.from_numpy, found)
    failed = int(torch.isnan(variance).sum())
    if failed:
        raise FloatingPointError(
            f"{failed} of {len(variance)} places have neighbours with a covariance "
            "that is not positive definite"
        )
    return Kriging(neighbours=asked[blocks], weights=solved, variance=variance)


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
def _fill(matrix, rays, noise, near, tables):
    """The covariance of a block's neighbours with their noise, lower triangle."""
    for i in range(len(near)):
        for j in range(i + 1):
            matrix[i, j] = covariance(rays[near[i]], rays[near[j]], tables)
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
    prior,
    solved,
    variance,
):
    """Fill in the weights and variances of the blocks from ``first`` to ``last``.

    The ``prior`` variance is that of points; NaN where places are rays.
    """
    size, points = neighbours.shape[1], not math.isnan(prior)
    for block in range(first, last):
        near, matrix = neighbours[block], np.empty((size, size))
        _fill(matrix, rays, noise, near, tables)
        if not _factorise(matrix):
            continue
        across = np.empty(size)
        for m in order[starts[block] : starts[block + 1]]:
            for i in range(size):
                if points:
                    across[i] = point_covariance(places[m], rays[near[i]], tables)
                else:
                    across[i] = covariance(places[m], rays[near[i]], tables)
            solved[m] = across
            _solve(matrix, solved[m])
            own = prior if points else covariance(places[m], places[m], tables)
            # The tables cannot resolve a smaller variance.
            variance[m] = max(own - (solved[m] * across).sum(), JITTER * own)
