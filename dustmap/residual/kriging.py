r"""Prediction of places from their nearest rows.

With the covariance ``C`` of the rows, their noise ``D`` and residuals ``r``, from the
neighbours :math:`N` of a place,

.. math::
   m = c^\top (C_{NN} + D_N)^{-1} r_N, \qquad
   v = C_{**} - c^\top (C_{NN} + D_N)^{-1} c .

With all rows as neighbours this is the exact Gaussian process (nearest-neighbour
Gaussian processes: Datta et al. 2016, JASA 111, 800). On the CPU compiled loops share
the neighbourhoods among threads and factorise each as :math:`U^\top U`; on a device
torch factorises many together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, over_rows
from dustmap.memory import row_blocks, rows_within
from dustmap.residual import on_device
from dustmap.residual.covariance import (
    CPU,
    LEVEL,
    RayCovariance,
    Rays,
    covariances,
    point_covariances,
    shell_parts,
)

# Fraction by which variances of rows are raised, the accuracy of the tables: otherwise
# the covariance of nearby rays would not be positive definite.
TABLE_ERROR = 5e-3
# Places of one block solved at a time, so that the loops vectorise.
TOGETHER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kriging:
    """Weights of the neighbours' residuals, and variances of noise-free values.

    ``variance`` is conditional on the neighbours, ``prior`` without them.
    """

    neighbours: Int[Tensor, "m k"]
    weights: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]
    prior: Float[Tensor, " m"]

    def mean(self, residuals: Float[Tensor, "*s n"]) -> Float[Tensor, "*s m"]:
        """Predict from residuals of all rows."""
        rows = residuals.reshape(-1, residuals.shape[-1])
        # One set of residuals at a time: gathering neighbours takes k times its memory.
        found = [(row[self.neighbours] * self.weights).sum(-1) for row in rows]
        return torch.stack(found).reshape(*residuals.shape[:-1], -1)


def krige_rays(
    covariance: RayCovariance,
    rays: Rays,
    noise: Float[Tensor, " n"],
    places: Rays,
    neighbours: Int[Tensor, "m k"],
) -> Kriging:
    """Find the weights of the neighbours' residuals for every place.

    The variance is at least `TABLE_ERROR` times the prior variance.

    Raises `FloatingPointError` if a neighbourhood's covariance is not positive
    definite.
    """
    size = neighbours.shape[1]
    weights = torch.zeros(neighbours.shape, dtype=torch.float64)
    variance, prior = torch.zeros(2, len(places), dtype=torch.float64)
    # Besides its neighbours' numbers a place has columns of some 300 bytes.
    for block in row_blocks(len(places), 8 * size + 300):
        given, _ = _prepared(covariance, rays, places[block], neighbours[block])
        for part in _batches(len(given.near), size**2):
            own = slice(block.start + part.start, block.start + part.stop)
            among, across, whole = _hoods(given, part)
            left = noise[neighbours[own]].to(among.device)
            left += TABLE_ERROR * among.diagonal(dim1=1, dim2=2)
            solved = solve_neighbourhoods(among, left, across[:, None])[:, 0]
            known = (solved * across).sum(1)
            weights[own], prior[own] = solved, whole
            # The tables cannot resolve a smaller variance.
            variance[own] = torch.maximum(whole - known, TABLE_ERROR * whole)
    return Kriging(
        neighbours=neighbours, weights=weights, variance=variance, prior=prior
    )


def predict_rays(
    covariance: RayCovariance,
    rays: Rays,
    noise: Float[Tensor, " n"],
    residuals: Float[Tensor, "s n"],
    places: Rays,
    points: int,
    neighbours: Int[Tensor, "b k"],
    blocks: Int[Tensor, " m"],
    columns: Any = None,
) -> tuple[Float[Tensor, "s m"], Float[Tensor, " m"]]:
    r"""Predict every place from every set of residuals, with its variance.

    Predictions are of the extinctions to the places or, at the last ``points`` of them,
    of the relative densities there. Places of one of the ``blocks`` share neighbours,
    whose covariance is factorised once. The variance has the lower bound of
    `krige_rays`. ``columns`` holds the columns of all rays, if they are known.

    Raises `FloatingPointError` if a neighbourhood's covariance is not positive
    definite.
    """
    if columns is None:
        given, used = _prepared(covariance, rays, places, neighbours, points=points > 0)
    else:
        tables = covariance.tables(points=points > 0)
        given = Prepared(columns, covariance.columns(places), neighbours, tables)
        used = slice(None)
    order = blocks.argsort(stable=True)
    # The residuals of one row are contiguous.
    known = residuals.T[used].contiguous()
    mean = torch.zeros(len(places), known.shape[1], dtype=torch.float64)
    variance = torch.full((len(places),), math.nan, dtype=torch.float64)
    split = len(places) - points
    if covariance.device != CPU:
        for some, is_point in ((order < split, False), (order >= split, True)):
            own = order[some], blocks[order[some]]
            _predict_by_torch(given, noise[used], known, *own, is_point, mean, variance)
    else:
        starts = torch.searchsorted(blocks[order], torch.arange(len(neighbours) + 1))
        rows = given.rays, noise[used].numpy(), known.numpy()
        arrays = given.places, given.near.numpy(), given.tables
        own = (order.numpy(), starts.numpy(), split), (mean.numpy(), variance.numpy())
        _in_parts(_predict, neighbours, rows, *arrays, *own)
    _require_solved(variance, "places have neighbours")
    return mean.T, variance


class Prepared(NamedTuple):
    """Columns of rays and places, numbers of the places' rows, and tables."""

    rays: Any
    places: Any
    near: Int[Tensor, "m k"]
    tables: Any


def _prepared(
    covariance: RayCovariance,
    rays: Rays,
    places: Rays,
    neighbours: Int[Tensor, "b k"],
    *,
    points: bool = False,
) -> tuple[Prepared, Int[Tensor, " u"]]:
    """Return what covariances depend on, and the numbers of the rays used."""
    seen = torch.zeros(len(rays), dtype=torch.bool)
    seen[neighbours.flatten()] = True
    used = torch.nonzero(seen)[:, 0]
    number = torch.empty(len(rays), dtype=torch.int64)
    number[used] = torch.arange(len(used))
    near, tables = number[neighbours], covariance.tables(points=points)
    columns = covariance.columns(rays[used]), covariance.columns(places)
    return Prepared(*columns, near, tables), used


def _hoods(
    given: Prepared, part: slice
) -> tuple[Float[Tensor, "m k k"], Float[Tensor, "m k"], Float[Tensor, " m"]]:
    """Return covariances among neighbours and with their place, and its variance."""
    near, places = given.near[part], given.places[part]
    if isinstance(places, Tensor):
        rows, own, tables = given.rays[near], places[:, None], given.tables
        among = on_device.ray_covariances(rows, rows, tables)
        across = on_device.ray_covariances(own, rows, tables)[:, 0]
        return among, across, on_device.ray_covariances(own, own, tables)[:, 0, 0]
    count, size = near.shape
    found = np.empty((count, size, size)), np.empty((count, size)), np.empty(count)
    _in_parts(_tabulate, near, given.rays, places, near.numpy(), given.tables, *found)
    among, across, prior = map(torch.from_numpy, found)
    return among, across, prior


def _predict_by_torch(
    given: Prepared,
    noise: Float[Tensor, " u"],
    residuals: Float[Tensor, "u s"],
    order: Int[Tensor, " m"],
    blocks: Int[Tensor, " m"],
    points: bool,
    mean: Float[Tensor, "p s"],
    variance: Float[Tensor, " p"],
) -> None:
    """Fill in the places ``order``, sorted by block, as `_predict` does.

    Places of a block are solved `TOGETHER` at a time.
    """
    device, tables = given.rays.device, given.tables
    counts = blocks.bincount(minlength=len(given.near))
    groups = -(-counts // TOGETHER)
    block = torch.repeat_interleave(groups)
    number = torch.arange(len(block)) - (groups.cumsum(0) - groups)[block]
    first = (counts.cumsum(0) - counts)[block] + TOGETHER * number
    slots = first[:, None] + torch.arange(TOGETHER)
    is_used = slots < counts.cumsum(0)[block][:, None]
    size = given.near.shape[1]
    covariances = on_device.point_covariances if points else on_device.ray_covariances
    for part in _batches(len(block), size * (size + TOGETHER)):
        own, within = block[part].unique(return_inverse=True)
        near, within = given.near[own], within.to(device)
        rows = given.rays[near]
        among = on_device.ray_covariances(rows, rows, tables)
        left = noise[near].to(device) + TABLE_ERROR * among.diagonal(dim1=1, dim2=2)
        factor = _factors(among, left)
        known = residuals[near].to(device, torch.float64)
        known = torch.linalg.solve_triangular(factor, known, upper=False)[within]
        some = order[slots[part].clamp_max(len(order) - 1)]
        places = given.places[some]
        across = covariances(places, rows[within], tables).mT
        across = torch.linalg.solve_triangular(factor[within], across, upper=False)
        if points:
            prior = tables[3][2][1][places[..., LEVEL].long()]
        else:
            one = places.flatten(0, 1)[:, None]
            prior = on_device.ray_covariances(one, one, tables).reshape(some.shape)
        remaining = torch.maximum(prior - across.square().sum(1), TABLE_ERROR * prior)
        used = is_used[part]
        mean[some[used]] = (across.mT @ known).cpu()[used]
        variance[some[used]] = remaining.cpu()[used]


def _in_parts(loop: Callable, neighbours: Int[Tensor, "b k"], *given: Any) -> None:
    """Run a loop over neighbourhoods, shared among threads."""
    count, size = neighbours.shape
    over_rows(loop, count, count * size**3, *given)


def _batches(count: int, entries: int) -> Iterator[slice]:
    """Yield slices of neighbourhoods, of so many covariances each, solved together.

    On a device torch holds some twenty arrays of their size. Batched routines of CUDA
    fail, or have failed, with more than 65,535 systems.
    """
    return row_blocks(count, 1, min(rows_within(8 * entries), 2**15))


def _require_solved(values: Tensor, whose: str) -> None:
    """Raise a FloatingPointError if any solution is missing."""
    failed = int(values.isnan().sum())
    if failed:
        raise FloatingPointError(
            f"{failed} of {len(values)} {whose} with a covariance that is not positive "
            "definite"
        )


def _factors(
    covariance: Float[Tensor, "m k k"], noise: Float[Tensor, "m k"]
) -> Float[Tensor, "m k k"]:
    """Return lower Cholesky factors, of NaN where there is none."""
    factor, failed = torch.linalg.cholesky_ex(covariance + torch.diag_embed(noise))
    return factor.masked_fill(failed[:, None, None] > 0, math.nan)


def solve_neighbourhoods(
    covariance: Float[Tensor, "m k k"],
    noise: Float[Tensor, "m k"],
    right: Float[Tensor, "m r k"],
) -> Float[Tensor, "m r k"]:
    """Return ``(C + D)⁻¹ b`` of every neighbourhood and right-hand side.

    Raises `FloatingPointError` if a neighbourhood's covariance is not positive
    definite.
    """
    if right.device != CPU:
        found = torch.cholesky_solve(right.mT, _factors(covariance, noise)).mT
    else:
        found = torch.full_like(right, math.nan)
        given = (each.detach().numpy() for each in (covariance, noise, right, found))
        _in_parts(_solve_each, noise, *given)
    _require_solved(found.sum((1, 2)), "neighbourhoods are")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhoods:
    """Places with their neighbours, and the components of all their covariances.

    Components are computed once for all weights. Memory: ``8 m k² j`` bytes.
    """

    neighbours: Int[Tensor, "m k"]
    among: Float[Tensor, "m j k k"]
    across: Float[Tensor, "m j k"]
    prior: Float[Tensor, "m j"]

    @classmethod
    def of(
        cls,
        covariance: RayCovariance,
        rays: Rays,
        places: Rays,
        neighbours: Int[Tensor, "m k"],
    ) -> Neighbourhoods:
        """Tabulate the components; the weights of the covariance are ignored."""
        below, found = covariance.subgrid, []
        scales = len(below.cuts if below else covariance.lengthscales)
        for unit in torch.eye(scales, dtype=torch.float64):
            one = replace(covariance, weights=unit)
            given, _ = _prepared(one, rays, places, neighbours)
            found.append(_hoods(given, slice(None)))
        among, across, prior = (torch.stack(x, dim=1) for x in zip(*found, strict=True))
        return cls(neighbours=neighbours, among=among, across=across, prior=prior)

    def predict(
        self,
        weights: Float[Tensor, " j"],
        noise: Float[Tensor, " n"],
        residuals: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        r"""Return every place's mean and variance, with gradients in weights and noise.

        With :math:`a = K^{-1} c` and :math:`b = K^{-1} r` held fixed,
        :math:`c^\top b + a^\top r - a^\top K b` and
        :math:`C_{**} - 2 c^\top a + a^\top K a` have the values and gradients of the
        prediction and are linear in the weights: no factorisation is differentiated.

        Raises `FloatingPointError` if a neighbourhood's covariance is not positive
        definite.
        """
        place = self.among.device
        near, own = residuals[self.neighbours].double(), noise[self.neighbours]
        near, own, weights = near.to(place), own.to(place), weights.to(place)
        across, prior = self.across.mT @ weights, self.prior @ weights
        with torch.no_grad():
            a, b, products = self._solved(weights, own, across, near)
        inner = products @ weights
        mean = (across * b).sum(1) + (a * near).sum(1)
        mean = mean - inner[:, 0] - (a * b * own).sum(1)
        known = 2 * (across * a).sum(1) - inner[:, 1] - (a * a * own).sum(1)
        # The tables cannot resolve a smaller variance.
        return mean.cpu(), torch.maximum(prior - known, TABLE_ERROR * prior).cpu()

    def _solved(
        self, weights: Tensor, noise: Tensor, across: Tensor, near: Tensor
    ) -> tuple[Float[Tensor, "m k"], Float[Tensor, "m k"], Float[Tensor, "m 2 j"]]:
        """Return a and b of `predict`, and aᵀ K_j b and aᵀ K_j a."""
        if near.device == CPU:
            solved = torch.empty(2, *near.shape, dtype=torch.float64)
            products = torch.full((len(near), 2, len(weights)), math.nan).double()
            given = self.among, self.across, weights, noise, near, solved, products
            _in_parts(_solve_weighed, near, *(part.numpy() for part in given))
            _require_solved(products[:, 0, 0], "neighbourhoods are")
            return solved[0], solved[1], products
        among = torch.einsum("mjkl,j->mkl", self.among, weights)
        left = noise + TABLE_ERROR * among.diagonal(dim1=1, dim2=2)
        right = torch.stack([across, near], dim=1)
        a, b = solve_neighbourhoods(among, left, right).unbind(1)
        product = (self.among @ a[:, None, :, None])[..., 0]
        product += TABLE_ERROR * self.among.diagonal(dim1=2, dim2=3) * a[:, None]
        return a, b, (product @ torch.stack([b, a], dim=2)).mT


@compiled
def _factorise(matrix):
    """Replace the upper triangle by U of ``UᵀU``; return whether U exists.

    Loops run along rows, so that they vectorise, and subtract four rows from two at a
    time. They make no views, whose references would be counted.
    """
    n = len(matrix)
    for k in range(0, n, 4):
        end = min(k + 4, n)
        for i in range(k, end):
            for above in range(k, i):
                factor = matrix[above, i]
                for j in range(i, n):
                    matrix[i, j] -= factor * matrix[above, j]
            if not matrix[i, i] > 0:
                return False
            scaling = 1 / math.sqrt(matrix[i, i])
            for j in range(i, n):
                matrix[i, j] *= scaling
        for i in range(end, n - 1, 2):
            a, b = matrix[k, i], matrix[k + 1, i]
            c, d = matrix[k + 2, i], matrix[k + 3, i]
            e, f = matrix[k, i + 1], matrix[k + 1, i + 1]
            g, h = matrix[k + 2, i + 1], matrix[k + 3, i + 1]
            for j in range(i, n):
                p, q = matrix[k, j], matrix[k + 1, j]
                r, s = matrix[k + 2, j], matrix[k + 3, j]
                matrix[i, j] -= (a * p + b * q) + (c * r + d * s)
                matrix[i + 1, j] -= (e * p + f * q) + (g * r + h * s)
        if (n - end) % 2:
            # What is left of the last row is its diagonal entry.
            for above in range(k, end):
                matrix[n - 1, n - 1] -= matrix[above, n - 1] ** 2
    return True


@compiled
def _solve(factor, x):
    """Set x to ``(UᵀU)⁻¹ x``."""
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
def _whiten_columns(factor, columns, count):
    """Set the first ``count`` columns to ``U⁻ᵀ`` of themselves."""
    n = len(columns)
    for i in range(n):
        row, scaling = columns[i], 1 / factor[i, i]
        for p in range(count):
            row[p] *= scaling
        for k in range(i + 1, n):
            other, entry = columns[k], factor[i, k]
            for p in range(count):
                other[p] -= entry * row[p]


@compiled
def _solve_each(first, last, covariance, noise, right, found):
    """Fill in `solve_neighbourhoods` from ``first`` to ``last``."""
    for m in range(first, last):
        matrix = covariance[m].copy()
        for i in range(len(matrix)):
            matrix[i, i] += noise[m, i]
        if _factorise(matrix):
            for r in range(len(right[m])):
                for i in range(len(matrix)):
                    found[m, r, i] = right[m, r, i]
                _solve(matrix, found[m, r])


@compiled
def _factor(rows, parts, noise, tables, matrix, found):
    """Factorise the covariance plus noise of neighbours; return whether U exists."""
    for i in range(len(rows)):
        # The entries up to the diagonal fill the upper triangle by symmetry.
        covariances(rows[i], rows, parts, i + 1, tables, found)
        for j in range(i + 1):
            matrix[j, i] = found[j]
        matrix[i, i] += TABLE_ERROR * matrix[i, i] + noise[i]
    return _factorise(matrix)


@compiled
def _to_place(place, rows, parts, tables, found, own):
    """Set the covariances of one place with its neighbours, and with itself."""
    covariances(place[0], rows, parts, len(rows), tables, found)
    covariances(place[0], place, shell_parts(place, tables), len(place), tables, own)


@compiled
def _predict(first, last, given, places, neighbours, tables, blocks, moments):
    """Fill in the means and variances of the blocks from ``first`` to ``last``.

    Residuals r and covariances c with places are whitened, ``U⁻ᵀ r`` and ``U⁻ᵀ c``.
    Their product is the mean, and ``|U⁻ᵀ c|²`` the variance that is explained.
    """
    rays, noise, residuals = given
    (order, starts, split), (mean, variance) = blocks, moments
    size, together = neighbours.shape[1], TOGETHER
    matrix, found, own = np.empty((size, size)), np.empty(size), np.empty(1)
    across = np.zeros((size, together))
    for block in range(first, last):
        near = neighbours[block]
        rows = rays[near]
        parts = shell_parts(rows, tables)
        if not _factor(rows, parts, noise[near], tables, matrix, found):
            continue
        known = residuals[near].astype(np.float64)
        _whiten_columns(matrix, known, known.shape[1])
        for begin in range(starts[block], starts[block + 1], together):
            some = order[begin : min(begin + together, starts[block + 1])]
            for p in range(len(some)):
                place = places[some[p] : some[p] + 1]
                if some[p] >= split:
                    point_covariances(place[0], rows, tables, found)
                    own[0] = tables[3][2][1, int(place[0, LEVEL])]
                else:
                    _to_place(place, rows, parts, tables, found, own)
                for i in range(size):
                    across[i, p] = found[i]
                variance[some[p]] = own[0]
            _whiten_columns(matrix, across, len(some))
            for p in range(len(some)):
                result, explained = mean[some[p]], 0.0
                for i in range(size):
                    weight, values = across[i, p], known[i]
                    explained += weight * weight
                    for s in range(len(values)):
                        result[s] += weight * values[s]
                # The tables cannot resolve a smaller variance.
                left = variance[some[p]]
                variance[some[p]] = max(left - explained, TABLE_ERROR * left)


@compiled
def _tabulate(first, last, rays, places, neighbours, tables, among, across, prior):
    """Fill in a component of `Neighbourhoods` from ``first`` to ``last``."""
    size = neighbours.shape[1]
    found = np.empty(size)
    for m in range(first, last):
        rows = rays[neighbours[m]]
        parts = shell_parts(rows, tables)
        for i in range(size):
            covariances(rows[i], rows, parts, i + 1, tables, found)
            for j in range(i + 1):
                among[m, i, j] = among[m, j, i] = found[j]
        _to_place(places[m : m + 1], rows, parts, tables, found, prior[m : m + 1])
        for i in range(size):
            across[m, i] = found[i]


@compiled
def _solve_weighed(first, last, among, across, weights, noise, near, solved, products):
    """Fill in a and b of `Neighbourhoods.predict`, and aᵀ K_j b and aᵀ K_j a."""
    scales, size = across.shape[1:]
    matrix, product = np.empty((size, size)), np.empty(size)
    for m in range(first, last):
        a, b = solved[0, m], solved[1, m]
        matrix[:], a[:] = 0.0, 0.0
        for i in range(size):
            b[i] = near[m, i]
        for s in range(scales):
            weight = weights[s]
            for i in range(size):
                a[i] += weight * across[m, s, i]
                row, component = matrix[i], among[m, s, i]
                for j in range(i, size):
                    row[j] += weight * component[j]
        for i in range(size):
            matrix[i, i] += TABLE_ERROR * matrix[i, i] + noise[m, i]
        if not _factorise(matrix):
            continue
        _solve(matrix, a)
        _solve(matrix, b)
        for s in range(scales):
            for i in range(size):
                product[i] = TABLE_ERROR * among[m, s, i, i] * a[i]
            for i in range(size):
                entry, component = a[i], among[m, s, i]
                for j in range(size):
                    product[j] += entry * component[j]
            products[m, 0, s] = (product * b).sum()
            products[m, 1, s] = (product * a).sum()
