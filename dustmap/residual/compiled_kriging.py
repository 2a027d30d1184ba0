"""Kriging of many places from neighbouring rays, compiled: a thread for some places.

The same numbers as `dustmap.residual.kriging.Neighbourhoods` has, which learning
differentiates; of a prediction nothing is kept but the weights.
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
    covariances,
    point_covariance,
)
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.kriging import JITTER, Kriging, Neighbourhoods
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


def ray_neighbourhoods(
    form: FreeSpectrum | AlongRay,
    rays: Rays,
    places: Rays,
    neighbours: Int[Tensor, "m k"],
) -> Neighbourhoods:
    """`Neighbourhoods.of` places and their neighbours, from tables of the form."""
    used, near = neighbours.unique(return_inverse=True)
    (count, size), scales = neighbours.shape, len(form.lengthscales)
    among = np.empty((count, size, size, scales))
    across, prior = np.empty((count, size, scales)), np.empty((count, scales))
    threads = thread_count(count * size**2)
    edges = np.linspace(0, count, threads + 1).astype(int)
    for j, unit in enumerate(torch.eye(scales, dtype=torch.float64)):
        component = CompiledCovariance(form, unit)
        given = (component.columns(rays[used]), component.columns(places), near.numpy())
        found = among[..., j], across[..., j], prior[:, j]

        def task(n: int, given=given, tables=component.tables, found=found) -> None:
            _components(edges[n], edges[n + 1], *given, tables, *found)

        in_parallel(task, threads)
    return Neighbourhoods(
        neighbours=neighbours,
        among=torch.from_numpy(among),
        across=torch.from_numpy(across),
        prior=torch.from_numpy(prior),
    )


@compiled
def _components(first, last, rays, places, neighbours, tables, among, across, prior):
    """Fill in the covariances of the places from ``first`` to ``last``."""
    size = neighbours.shape[1]
    found, own = np.empty(size), np.empty(1)
    for m in range(first, last):
        rows = rays[neighbours[m]]
        columns = rows.T.copy()
        for i in range(size):
            covariances(rows[i], rows, columns, i + 1, tables, found)
            for j in range(i + 1):
                among[m, i, j] = among[m, j, i] = found[j]
        place = places[m : m + 1]
        covariances(place[0], rows, columns, size, tables, found)
        across[m] = found
        covariances(place[0], place, place.T.copy(), 1, tables, own)
        prior[m] = own[0]


@compiled
def _factorise(matrix):
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
def _solve(factor, x):
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
    matrix, across, own = np.empty((size, size)), np.empty(size), np.empty(1)
    for block in range(first, last):
        near = neighbours[block]
        rows = rays[near]
        columns = rows.T.copy()
        for i in range(size):
            # What follows the diagonal is the upper triangle's transpose.
            covariances(rows[i], rows, columns, i + 1, tables, across)
            for j in range(i + 1):
                matrix[j, i] = across[j]
            matrix[i, i] += JITTER * matrix[i, i] + noise[near[i]]
        if not _factorise(matrix):
            continue
        for m in order[starts[block] : starts[block + 1]]:
            place = places[m : m + 1]
            if points:
                for i in range(size):
                    across[i] = point_covariance(place[0], rows[i], tables)
                own[0] = prior
            else:
                covariances(place[0], rows, columns, size, tables, across)
                covariances(place[0], place, place.T.copy(), 1, tables, own)
            solved[m] = across
            _solve(matrix, solved[m])
            # The tables cannot resolve a smaller variance.
            left = own[0] - (solved[m] * across).sum()
            variance[m] = max(left, JITTER * own[0])
