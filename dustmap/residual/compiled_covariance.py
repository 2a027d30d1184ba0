r"""Covariances of rays and of points with rays, compiled.

Of one ray with others as `FreeSpectrum.components` and `AlongRay.components` have them,
with their weights; and those of the relative density :math:`\delta` at a point with the
extinction along a ray,

.. math::
   \sum_b a_n(s_b) [F(p, s_{b+1} - x) - F(p, s_b - x)]

over shells up to its end, with F of :mod:`dustmap.residual.decay_table` for the scales
of the shell that the point is in.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled
from dustmap.residual.along_ray import AlongRay, bessel
from dustmap.residual.decay_table import decay_table
from dustmap.residual.free_spectrum import FreeSpectrum
from dustmap.residual.ray_table import LIMITS, ray_table
from dustmap.residual.rays import Rays

# Components of less than this part of the relative variance are left out.
_NEGLIGIBLE = 1e-9
# Impact parameters of the table along rays, in the least and in the largest scale, and
# how many there are.
_IMPACTS, _COUNT = (1e-4, 40.0), 1024
# Columns of a ray; after them e^(-d/ℓ) - 1 of every scale, then the profile. In place
# of the density those of `AlongRay` have the cell at the end.
_LENGTH, _DENSITY, _CELL, _LOGARITHM, _FALLS = 3, 4, 4, 5, 6


class CompiledCovariance:
    """A form of the covariance with its weights, as the compiled loops read it.

    With ``points`` also that of the density at points, of `AlongRay` alone.
    """

    def __init__(
        self,
        form: FreeSpectrum | AlongRay,
        weights: Float[Tensor, " j"],
        *,
        points: bool = False,
    ) -> None:
        used = (weights > _NEGLIGIBLE * weights.max()).numpy()
        self._scales = np.array(form.lengthscales)[used]
        self._along = isinstance(form, AlongRay)
        # The free spectrum has no shells.
        shells, impacts = np.zeros((4, 0)), np.zeros((2, 2))
        decays = np.zeros(2), np.zeros((2, 2))
        if points:
            decays = decay_table(tuple(self._scales), tuple(weights.numpy()[used]))
        if isinstance(form, AlongRay):
            edges, cells = form.edges, form.cells
            impact = (form.middles / cells).log()
            shells = torch.stack([edges[:-1], edges.diff(), impact, cells]).numpy()
            impacts = _impact_table(self._scales, weights.numpy()[used])
        table = ray_table()
        axes = np.array([table.starts, table.steps])
        #: What the compiled functions take.
        self.tables = (
            self._scales,
            weights.numpy()[used],
            (table.ratio.numpy(), axes, np.log(self._scales)),
            decays,
            impacts,
            shells,
        )

    def columns(self, rays: Rays) -> Float[np.ndarray, "n c"]:
        """What covariances need of each ray."""
        lengths = rays.lengths.numpy()[:, None]
        logarithms = np.log(np.maximum(lengths, 1e-300))
        falls = np.expm1(-lengths / self._scales)
        directions, density = rays.directions.numpy(), rays.density.numpy()[:, None]
        if self._along:
            starts, cells = self.tables[5][0], self.tables[5][3]
            density = cells[np.searchsorted(starts, lengths, side="right") - 1]
        parts = [directions, lengths, density, logarithms, falls]
        if self._along and rays.profile is not None:
            parts.append(rays.profile.numpy())
        return np.hstack(parts)


def _impact_table(scales: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r""":math:`\sum_j w_j \kappa_j` on a regular grid of ln b: abscissas and values."""
    nearest, furthest = _IMPACTS[0] * scales.min(), _IMPACTS[1] * scales.max()
    abscissas = np.linspace(math.log(nearest), math.log(furthest), _COUNT)
    relative = torch.from_numpy(np.exp(abscissas)[:, None] / scales)
    values = bessel(relative).numpy() @ (2 * scales * weights)
    return np.stack([abscissas, values])


@compiled
def _position(logarithm, start, step, size):
    """Index and fraction of a logarithm in a regular table, whose ends extend."""
    x = min(max((logarithm - start) / step, 0.0), size - 1 - 1e-9)
    return int(x), x - int(x)


@compiled
def _squared_chord(one, other):
    """Squared distance of the tips of the two unit vectors."""
    x, y, z = one[0] - other[0], one[1] - other[1], one[2] - other[2]
    return x * x + y * y + z * z


@compiled
def covariances(one, rows, columns, count, tables, found):
    """Those of the extinction along one ray with the first ``count`` of ``rows``.

    ``columns`` is the transpose, whose rows the shells' loops run along.
    """
    if tables[5].shape[1]:
        _along(one, columns, count, tables, found)
    else:
        for j in range(count):
            found[j] = _free(one, rows[j], tables)


@compiled
def _along(one, columns, count, tables, found):
    """Those of `AlongRay`: the same steps for all rays, so that they are vectors."""
    scales, impacts, shells = tables[0], tables[4], tables[5]
    lengths, first = columns[_LENGTH], _FALLS + len(scales)
    origin, values, last = impacts[0, 0], impacts[1], impacts.shape[1] - 1 - 1e-9
    scaling = 1 / (impacts[0, 1] - origin)
    chords = np.empty(count)
    for j in range(count):
        x, y, z = one[0] - columns[0, j], one[1] - columns[1, j], one[2] - columns[2, j]
        chords[j] = 0.5 * math.log(max(x * x + y * y + z * z, LIMITS[0] ** 2)) - origin
        found[j] = 0.0
    for b in range(shells.shape[1]):
        start, thickness, impact = shells[0, b], shells[1, b], shells[2, b]
        mine, profile = one[_LENGTH] - start, columns[first + b]
        if mine <= 0:
            break
        here = one[first + b] * shells[3, b]
        for j in range(count):
            within = max(min(thickness, min(mine, lengths[j] - start)), 0.0)
            place = min(max((chords[j] + impact) * scaling, 0.0), last)
            i = int(place)
            value = values[i] + (place - i) * (values[i + 1] - values[i])
            found[j] += here * profile[j] * within * value


@compiled
def _free(one, other, tables):
    """That of `FreeSpectrum`."""
    scales, weights = tables[0], tables[1]
    ratio, axes, logarithms = tables[2]
    if one[_LENGTH] > other[_LENGTH]:
        one, other = other, one
    chord = 0.5 * math.log(max(_squared_chord(one, other), LIMITS[0] ** 2))
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
def point_covariance(point, ray, tables):
    """That of the relative density at a point with `AlongRay` of a ray."""
    (logarithms, values), shells = tables[3], tables[5]
    first, size = _FALLS + len(tables[0]), len(logarithms)
    square = _squared_chord(point, ray)
    cell = point[_CELL]
    foot = point[_LENGTH] * (1 - square / 2)
    apart = point[_LENGTH] * math.sqrt(max(square * (1 - square / 4), 0.0)) / cell
    reach, nearest = math.exp(logarithms[-1]), math.exp(logarithms[0])
    if apart > reach:
        return 0.0
    origin, step = logarithms[0], logarithms[1] - logarithms[0]
    i, a = _position(math.log(max(apart, nearest)), origin, step, size)
    total, before, known = 0.0, 0.0, False
    for b in range(shells.shape[1]):
        start = (shells[0, b] - foot) / cell
        end = (min(shells[0, b] + shells[1, b], ray[_LENGTH]) - foot) / cell
        if end <= start or start > reach:
            break
        if end < -reach:
            continue
        if not known:
            before, known = _decay(start, i, a, values, origin, step), True
        after = _decay(end, i, a, values, origin, step)
        total += ray[first + b] * (after - before)
        before = after
    return cell * total


@compiled
def _decay(x, i, a, values, origin, step):
    """``F(p, x)`` with p between two rows of the table; see `decay_table`."""
    along, smallest = abs(x), math.exp(origin)
    j, b = _position(math.log(max(along, smallest)), origin, step, values.shape[1])
    first = values[i, j] + b * (values[i, j + 1] - values[i, j])
    second = values[i + 1, j] + b * (values[i + 1, j + 1] - values[i + 1, j])
    value = first + a * (second - first)
    # From zero to the least argument it is linear.
    value *= min(along / smallest, 1.0)
    return value if x > 0 else -value
