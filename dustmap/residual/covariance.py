r"""Rays, and the covariance of extinctions along neighbouring rays.

The prior of the logarithm of the density has the covariance k. A grid of spacing h
carries its band of times longer than :math:`t = (c h)^2`
(:mod:`dustmap.whitening.bands`); the remainder :math:`k_{[0, t]}` multiplies the
density by a log-normal factor of mean one, whose covariance is
:math:`e^{k_{[0, t]}} - 1`. Its range is short compared with the rays, along which its
contributions add up. At an angle :math:`\theta`, with the densities
:math:`\rho_n(s)` of `DensityCube`,

.. math::
   C_{nm} = \sum_b \alpha\, \rho_n(s_b)\, \rho_m(s_b)\,
            \kappa(2 s_b \sin(\theta / 2))\, \Delta s_b , \qquad
   \kappa(b) = \int_{-\infty}^\infty
       \left(e^{k_{[0, t]}(\sqrt{b^2 + x^2})} - 1\right) dx ,

over shells up to the shorter ray's end, with the t and the :math:`\alpha` of the finest
grid around the start of the shell. :math:`\alpha` is one if the prior is right. Near
the ends of a ray this is too large, by a length of about :math:`\sqrt t`. With
the chord for b the covariance is positive definite on every shell.

Without a map the spectrum is free:

.. math::
   C_{nm} = g_n g_m \sum_j w_j \ell_j^2\, I(\theta, d_n / \ell_j, d_m / \ell_j),
   \qquad
   I(\theta, u, v) = \int_0^u\!\!\int_0^v e^{-|s e - t e'|}\,\mathrm dt\,\mathrm ds ,

with the mean density g along each ray. ``I`` has no scale: one table serves every
lengthscale (`ray_table`).

The relative density :math:`\delta` at a point and the extinction along a ray covary by

.. math::
   \alpha \sum_b \rho_n(s_b) [F(p, s_{b+1} - x) - F(p, s_b - x)], \qquad
   F(p, x) = \int_0^x \left(e^{k_{[0, t]}(\sqrt{p^2 + s^2})} - 1\right) ds ,

over shells up to the ray's end, with the t and the :math:`\alpha` of the shell that the
point is in; ``p`` is the distance of the point from the ray's line and ``x`` the
distance of its foot from the observer. ``F`` is odd in ``x``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import KERNELS, Radial
from dustmap.linalg.compiled_tasks import compiled
from dustmap.residual.cube import DensityCube
from dustmap.whitening.bands import band_covariance

CPU = torch.device("cpu")
GRID_CUT = 0.6
"""Shortest scale √t that a grid carries, in its spacing."""

# Least and largest chord, and largest difference of lengths, in the tables. Arguments
# beyond take the value at the end.
CHORDS = (1e-5, 2.0)
LARGEST_DIFFERENCE = 12.0
# Nodes per octave of squared chords in the table of α κ, and of the arguments of F.
CHORD_NODES = 256
DECAY_NODES = 16
# Units in the last place of a double in an octave.
OCTAVE = 2**52
# Columns of a ray after its direction: its length; its mean density, or with shells the
# number of the grid at its end; the logarithm of its length; and from FALLS on
# e^(-d/ℓ) - 1 of every scale, or the density in shells.
LENGTH = 3
DENSITY = 4
LEVEL = 4
LOGARITHM = 5
FALLS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rays:
    """Rays from the observer, indexed like a tensor.

    Parameters
    ----------
    directions
        Unit vectors.
    lengths
        Lengths [pc].
    density
        Mean density along each ray [mag/pc].
    """

    directions: Float[Tensor, "*n 3"]
    lengths: Float[Tensor, "*n"]
    density: Float[Tensor, "*n"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Int[Tensor, "*m"] | slice | tuple | None) -> Rays:
        parts = {each.name: getattr(self, each.name)[rows] for each in fields(self)}
        return Rays(**parts)

    def coordinates(self, stretch: float) -> Float[Tensor, "n 4"]:
        """Return ``(a e, ln d)`` with ``a = stretch``, in which near rays are near."""
        logarithm = self.lengths.clamp_min(1e-3).log()[..., None]
        return torch.cat([stretch * self.directions, logarithm], dim=-1)


def rays_to(
    ends: Float[Tensor, "n 3"], extinction: Float[Tensor, " n"], least: float
) -> Rays:
    """Return rays to places [pc], of these extinctions and at least this density."""
    lengths = torch.linalg.vector_norm(ends, dim=-1)
    safe = lengths.clamp_min(1e-9)
    return Rays(
        directions=ends / safe[:, None],
        lengths=lengths,
        density=(extinction / safe).clamp_min(least),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgridCovariance:
    """The part of a Matérn covariance of ln ρ that nested grids do not carry.

    Parameters
    ----------
    kernel
        Name of the kernel in `KERNELS`.
    lengthscale
        Lengthscale [pc]; of an anisotropic covariance the geometric mean.
    variance
        Variance σ² of ln ρ.
    cuts
        √t of every grid, the coarsest first [pc].
    bend
        Bend of the kernel.
    cell
        Width of the cells [pc] over which densities are averaged; 0 for points.
    """

    kernel: str
    lengthscale: float
    variance: float
    cuts: tuple[float, ...]
    bend: tuple[float, ...] = ()
    cell: float = 0.0

    @classmethod
    def of(cls, kernel: str, prior: Radial, grids: Sequence[Grid]) -> SubgridCovariance:
        """Return the part of a prior covariance that the grids do not carry."""
        return cls(
            kernel=kernel,
            lengthscale=prior.mean_lengthscale,
            variance=float(prior.variance),
            cuts=tuple(GRID_CUT * max(grid.spacing) for grid in grids),
            bend=prior.bend,
        )

    def relative(
        self, level: int, distance: Float[Tensor, "*n"]
    ) -> Float[Tensor, "*n"]:
        """Return the relative density's covariance at distances in √t of a grid."""
        scaled = self.cuts[level] / self.lengthscale
        family = KERNELS[self.kernel]
        prior = family(lengthscale=1.0, variance=self.variance, bend=self.bend)
        return band_covariance(prior, 0.0, scaled**2, scaled * distance).expm1()

    @property
    def variances(self) -> Float[np.ndarray, " g"]:
        """Variance of the relative density in a cell, or at a point, for every grid."""
        return _subgrid_tables(self)[2]

    @property
    def lengths(self) -> Float[np.ndarray, " g"]:
        """Integral of the relative density's correlation along a line [pc]."""
        return self.cuts * _subgrid_tables(self)[3] / self.variances


@dataclass(frozen=True, kw_only=True)
class RayCovariance:
    """The covariance of extinctions; see the module.

    Parameters
    ----------
    weights
        Variances w_j of the relative density; with a ``subgrid`` α of every grid.
    lengthscales
        Scales ℓ_j [pc] of the free spectrum.
    subgrid, cube
        The covariance below the grids, and the density of the map along rays; ``None``
        without a map.
    device
        Where covariances are evaluated and neighbourhoods solved: on the CPU by
        compiled loops, elsewhere by torch (:mod:`dustmap.residual.on_device`).
    """

    weights: Float[Tensor, " j"]
    lengthscales: tuple[float, ...] = (5.0, 20.0, 60.0, 180.0)
    subgrid: SubgridCovariance | None = None
    cube: DensityCube | None = None
    device: torch.device = CPU

    @cached_property
    def _used(self) -> tuple[Float[np.ndarray, " u"], Float[np.ndarray, " u"]]:
        """Scales and weights, without weights below 1e-9 of the largest."""
        if self.subgrid is not None:
            return np.empty(0), self.weights.numpy()
        used = (self.weights > 1e-9 * self.weights.max()).numpy()
        return np.array(self.lengthscales)[used], self.weights.numpy()[used]

    def tables(self, *, points: bool = False) -> tuple[Any, ...]:
        """Return the tables of the compiled functions, with ``points`` also of F."""
        scales, weights = self._used
        # The free spectrum has no shells.
        shells, by_chord = np.zeros((2, 0)), np.zeros((2, 0), dtype=np.float32)
        decays = np.zeros(2), np.zeros((1, 2, 2)), np.zeros((2, 1))
        if self.subgrid is not None:
            assert self.cube is not None
            edges = self.cube.edges()
            shells = torch.stack([edges[:-1], edges.diff()]).numpy()
            by_chord = self._by_chord
            if points:
                abscissas, (_, halves), variances, _ = _subgrid_tables(self.subgrid)
                own = np.stack([self.subgrid.cuts, weights * variances])
                decays = abscissas[1], weights[:, None, None] * halves, own
        ratio, axes = ray_table()
        free = ratio, axes, np.log(scales)
        return self._placed((scales, weights, free, decays, by_chord, shells))

    def _placed(self, values: Any) -> Any:
        """Return arrays and tuples of them as they are, or as tensors of the device."""
        if self.device == CPU:
            return values
        if isinstance(values, np.ndarray):
            return torch.from_numpy(values).to(self.device)
        return tuple(map(self._placed, values))

    @cached_property
    def _by_chord(self) -> Float[np.ndarray, "c b"]:
        """Table of ``α κ`` [pc] in every shell, at even steps within octaves of χ².

        Their bits are evenly spaced. Columns of zeros complete whole vectors of 16.
        """
        assert self.subgrid is not None
        assert self.cube is not None
        logarithms = np.log(_even_bits(CHORDS[0] ** 2, CHORDS[1] ** 2, CHORD_NODES)) / 2
        (abscissas, _), (lines, _), *_ = _subgrid_tables(self.subgrid)
        edges, levels = self.cube.edges().numpy(), self.cube.levels().numpy()
        width = -(-len(levels) // 16) * 16
        found = np.zeros((len(logarithms), width), dtype=np.float32)
        for b, level in enumerate(levels):
            cut = self.subgrid.cuts[level]
            at = logarithms + math.log((edges[b] + edges[b + 1]) / 2 / cut)
            values = np.interp(at, abscissas, lines[level])
            found[:, b] = float(self.weights[level]) * cut * values
        return found

    def columns(self, rays: Rays) -> Any:
        """Return the columns of each ray that the functions read, shape ``(n, c)``."""
        lengths = rays.lengths.numpy()[:, None]
        logarithms = np.log(np.maximum(lengths, 1e-300))
        falls = np.expm1(-lengths / self._used[0])
        directions, density = rays.directions.numpy(), rays.density.numpy()[:, None]
        parts = [directions, lengths, density, logarithms, falls]
        if self.cube is not None:
            edges, levels = self.cube.edges()[:-1].numpy(), self.cube.levels().numpy()
            parts[2] = levels[np.searchsorted(edges, lengths, side="right") - 1]
            parts.append(self.cube.in_shells(rays.directions, rays.lengths).numpy())
        return self._placed(np.hstack(parts))


@lru_cache(maxsize=8)
def _subgrid_tables(
    subgrid: SubgridCovariance,
) -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Return the axes and tables of κ and F, and moments of the relative density.

    The tables are κ ``(g, i)`` over ln b and F ``(g, n, n)`` over p and x, for every
    grid; the moments are its variance, and the integral of its covariance along a line.
    All lengths are in √t.
    """
    # Closer to its line a point covaries no more, and further away by less than e^-25
    # of its variance. A power of two is where even bits have a kink.
    nearest, farthest = 2.0**-13, 10.0
    impacts = _axis(math.log(nearest), math.log(farthest), 1_024)
    apart = torch.from_numpy(_even_bits(nearest, farthest, DECAY_NODES))
    # Panels that shorten towards the cusp of rough kernels at zero.
    edges = torch.cat([torch.zeros(1).double(), apart])
    along, steps = _panels(edges[:-1], edges[1:], order=3)
    fine = _axis(math.log(nearest / 10), math.log(2 * farthest), 4_096)
    distance = torch.cat([torch.zeros(1).double(), fine.exp()]).numpy()
    lines, halves, variances, totals = [], [], [], []
    for level, cut in enumerate(subgrid.cuts):
        at_points = subgrid.relative(level, torch.from_numpy(distance)).numpy()
        # The covariances of a cell and a point, and of two cells.
        with_point = _over_cells(at_points, distance, subgrid.cell / cut)
        within = _over_cells(with_point, distance, subgrid.cell / cut)

        def values(p: Tensor, known: np.ndarray) -> Tensor:
            where = (p[:, None] ** 2 + along.reshape(-1) ** 2).sqrt().log()
            found = np.interp(where.numpy(), fine.numpy(), known[1:])
            return torch.from_numpy(found).reshape(len(p), *along.shape)

        lines.append(2 * (values(impacts.exp(), at_points) * steps).sum((1, 2)).numpy())
        along_rays = values(apart, with_point) * steps
        halves.append(along_rays.sum(2).cumsum(1).numpy())
        variances.append(within[0])
        totals.append(2 * float((values(impacts[:1].exp(), within) * steps).sum()))
    tables = np.stack(lines), np.stack(halves)
    axes = [impacts.numpy(), apart.numpy()]
    return axes, tables, np.array(variances), np.array(totals)


def _even_bits(first: float, last: float, count: int) -> Float[np.ndarray, " i"]:
    """Return numbers whose bits are evenly spaced, ``count`` in an octave.

    Interpolation then needs no logarithm.
    """
    start, end = np.array([first, last]).view(np.int64)
    step = OCTAVE // count
    return np.arange(start, end + 2 * step, step).view(np.float64)


def _over_cells(
    values: Float[np.ndarray, " r"], distance: Float[np.ndarray, " r"], cell: float
) -> Float[np.ndarray, " r"]:
    r"""Average an isotropic covariance over one of its places, in a cell.

    The cell counts as a Gaussian of equal second moments, :math:`s = w / \sqrt{12}`:

    .. math:: K_s(r) = \int_0^\infty K(u) \frac{u}{r s \sqrt{2\pi}}
       \left(e^{-(r - u)^2 / 2 s^2} - e^{-(r + u)^2 / 2 s^2}\right) du .
    """
    width = cell / math.sqrt(12)
    # Narrower cells are points.
    if width < 0.02:
        return values
    # The limit at zero is that at the least distance.
    # Averages at every fourth distance suffice.
    r, u = distance[1::4, None], distance[1:]
    steps = u * np.gradient(np.log(u))
    kernel = np.exp(-((r - u) ** 2) / (2 * width**2)) * -np.expm1(-2 * r * u / width**2)
    whole = r[:, 0] * width * math.sqrt(2 * math.pi)
    found = kernel @ (values[1:] * u * steps) / whole
    return np.interp(distance, r[:, 0], found)


@compiled
def _position(logarithm, start, step, size):
    """Return index and fraction of a logarithm in a regular table; its ends extend."""
    x = min(max((logarithm - start) / step, 0.0), size - 1 - 1e-9)
    return int(x), x - int(x)


@compiled
def covariances(one, rows, parts, count, tables, found):
    """Fill in the covariances of one ray's extinction and other rays' extinctions.

    These are the first ``count`` of ``rows``; ``parts`` holds the rows' `shell_parts`.
    """
    if tables[5].shape[1]:
        _along(one, rows, parts, count, tables, found)
    else:
        for j in range(count):
            found[j] = _free(one, rows[j], tables)


@compiled
def shell_parts(rows, tables):
    """Return the parts of rays' extinctions in every shell, and zeros beyond.

    Single precision is more accurate than the tables.
    """
    shells = tables[5]
    found = np.zeros((len(rows), tables[4].shape[1]), dtype=np.float32)
    for j in range(len(rows)):
        length = rows[j, LENGTH]
        for b in range(shells.shape[1]):
            overlap = min(shells[1, b], length - shells[0, b])
            if overlap <= 0:
                break
            found[j, b] = rows[j, FALLS + b] * overlap
    return found


# Sums vectorise as their order is free; it is the same in every call.
@partial(compiled, fastmath={"contract", "reassoc"})
def _along(one, rows, parts, count, tables, found):
    """Fill in covariances along rays by vectors of shells, adjacent in memory."""
    by_chord, shells = tables[4], tables[5]
    least, scaling = CHORDS[0] ** 2, CHORD_NODES / OCTAVE
    origin, single = np.float64(least).view(np.int64), np.float32(1.0)
    length, whole = one[LENGTH], 0
    mine = np.zeros(by_chord.shape[1], dtype=np.float32)
    while whole < shells.shape[1] and length >= shells[0, whole] + shells[1, whole]:
        mine[whole] = one[FALLS + whole]
        whole += 1
    # This ray ends in the next shell.
    rest = length - shells[0, whole] if whole < shells.shape[1] else 0.0
    # Zeros fill the last vector.
    end = np.uint32(-(-whole // 8) * 8)
    for j in range(count):
        # Views of rows would take longer than all the rest.
        x, y, z = one[0] - rows[j, 0], one[1] - rows[j, 1], one[2] - rows[j, 2]
        square = np.float64(max(x * x + y * y + z * z, least))
        place = (square.view(np.int64) - origin) * scaling
        i = np.uint32(place)
        after = np.float32(place - i)
        before = single - after
        total = np.float32(0.0)
        for b in range(end):
            value = before * by_chord[i, b] + after * by_chord[i + 1, b]
            total += mine[b] * parts[j, b] * value
        found[j] = total
        if rest > 0:
            own = min(rest, rows[j, LENGTH] - shells[0, whole])
            if own > 0:
                value = before * by_chord[i, whole] + after * by_chord[i + 1, whole]
                both = one[FALLS + whole] * rows[j, FALLS + whole]
                found[j] += both * own * value


@compiled
def _free(one, other, tables):
    """Return the covariance of two rays under the free spectrum."""
    scales, weights = tables[0], tables[1]
    ratio, axes, logarithms = tables[2]
    if one[LENGTH] > other[LENGTH]:
        one, other = other, one
    x, y, z = one[0] - other[0], one[1] - other[1], one[2] - other[2]
    chord = 0.5 * math.log(max(x * x + y * y + z * z, CHORDS[0] ** 2))
    i, a = _position(chord, axes[0, 0], axes[1, 0], ratio.shape[0])
    apart = other[LENGTH] - one[LENGTH]
    total = 0.0
    for j in range(len(scales)):
        u, difference = one[LENGTH] / scales[j], apart / scales[j]
        shorter = max(one[LOGARITHM] - logarithms[j], axes[0, 1])
        m, b = _position(shorter, axes[0, 1], axes[1, 1], ratio.shape[1])
        further = math.log1p(min(difference, LARGEST_DIFFERENCE))
        k, c = _position(further, axes[0, 2], axes[1, 2], ratio.shape[2])
        value = 0.0
        for p in range(2):
            for q in range(2):
                first, second = ratio[i + p, m + q, k], ratio[i + p, m + q, k + 1]
                part = (a if p else 1 - a) * (b if q else 1 - b)
                value += part * (first + c * (second - first))
        # I(0, u, u + difference), by a series where terms would cancel.
        longer, falls = u + difference, one[FALLS + j] + other[FALLS + j]
        if longer < 1e-3:
            parallel = u * longer - (longer**3 - difference**3 + u**3) / 6
        else:
            parallel = 2 * u + falls - math.expm1(-difference)
        total += weights[j] * scales[j] ** 2 * value * parallel
    return one[DENSITY] * other[DENSITY] * total


@compiled
def point_covariances(point, rows, tables, found):
    """Fill in the covariances of the relative density at a point with extinctions."""
    (nodes, halves, levels), shells = tables[3], tables[5]
    values, cell = halves[int(point[LEVEL])], levels[0, int(point[LEVEL])]
    reach = nodes[len(nodes) - 2]
    for r in range(len(rows)):
        found[r] = 0.0
        x, y, z = point[0] - rows[r, 0], point[1] - rows[r, 1], point[2] - rows[r, 2]
        square = x * x + y * y + z * z
        foot = point[LENGTH] * (1 - square / 2)
        apart = point[LENGTH] * math.sqrt(max(square * (1 - square / 4), 0.0)) / cell
        if apart > reach:
            continue
        i, a = _between(apart, nodes)
        total, before, known = 0.0, 0.0, False
        for b in range(shells.shape[1]):
            start = (shells[0, b] - foot) / cell
            end = min(shells[0, b] + shells[1, b], rows[r, LENGTH])
            end = (end - foot) / cell
            if end <= start or start > reach:
                break
            if end < -reach:
                continue
            if not known:
                before, known = _decay(start, i, a, values, nodes), True
            after = _decay(end, i, a, values, nodes)
            total += rows[r, FALLS + b] * (after - before)
            before = after
        found[r] = cell * total


@compiled
def _between(x, nodes):
    """Return index and fraction of a number among `_even_bits`; the ends extend."""
    inside = min(max(x, nodes[0]), nodes[len(nodes) - 2])
    bits = np.float64(inside).view(np.int64) - np.float64(nodes[0]).view(np.int64)
    place = bits * (DECAY_NODES / OCTAVE)
    return int(place), place - int(place)


@compiled
def _decay(x, i, a, values, nodes):
    """Return ``F(p, x)`` with p between two rows of the table."""
    along = abs(x)
    j, b = _between(along, nodes)
    first = values[i, j] + b * (values[i, j + 1] - values[i, j])
    second = values[i + 1, j] + b * (values[i + 1, j + 1] - values[i + 1, j])
    value = first + a * (second - first)
    # From zero to the least argument it is linear.
    value *= min(along / nodes[0], 1.0)
    return value if x > 0 else -value


@cache
def ray_table() -> tuple[Float[np.ndarray, "c l d"], Float[np.ndarray, "2 3"]]:
    r"""Return ``I(θ, u, v) / I(0, u, v)`` to 0.5%, and starts and steps of the axes.

    Parallel rays have a closed form, with a kink at ``u = v``,
    :math:`I(0, u, v) = 2\min(u, v) - 1 + e^{-u} + e^{-v} - e^{-|u-v|}`; the axes are
    :math:`(\ln\chi, \ln\min(u, v), \ln(1 + |u-v|))` with the chord
    :math:`\chi = |e - e'| = 2 \sin(\theta/2)`.

    With :math:`G(p, x) = \int_0^x e^{-\sqrt{p^2 + t^2}}\,\mathrm dt` the integral over
    one ray is :math:`H(u, v) = G(v \sin\theta, u - v \cos\theta) + G(v \sin\theta,
    v \cos\theta)`; ``I(θ, u, u)`` is twice the integral of ``H(v, v)``, and
    ``I(θ, u, v)`` adds the integral of ``H(u, t)`` from ``u`` to ``v``: both are
    cumulative sums.
    """
    chords = _axis(math.log(CHORDS[0]), math.log(CHORDS[1]), 96)
    lengths = _axis(math.log(3e-2), math.log(3e3), 96)
    differences = _axis(0.0, math.log1p(LARGEST_DIFFERENCE), 20)
    u, delta = lengths.exp(), differences.expm1()
    # The last chord is 2 exactly, where rounding may pass it.
    turns = 2 * (chords.exp() / 2).clamp(max=1).asin()
    ratio = torch.stack([_ratios(turn, u, delta) for turn in turns])
    axes = [(float(a[0]), float(a[1] - a[0])) for a in (chords, lengths, differences)]
    return ratio.numpy(), np.array(axes).T.copy()


def _axis(start: float, stop: float, count: int) -> Float[Tensor, " count"]:
    return torch.linspace(start, stop, count, dtype=torch.float64)


def _ratios(
    angle: Tensor, u: Float[Tensor, " lengths"], delta: Float[Tensor, " differences"]
) -> Float[Tensor, "lengths differences"]:
    """Return the table at one angle."""
    edges = torch.cat([u.new_zeros(1), u])
    # Below the first length the integrand is 2 v to first order: one panel will do.
    t, dt = _panels(edges[:-1], edges[1:], order=8)
    equal = 2 * (_across(angle, t, t) * dt).sum(1).cumsum(0)
    t, dt = _panels(u[:, None] + delta[:-1], u[:, None] + delta[1:], order=3)
    further = (_across(angle, u[:, None, None], t) * dt).sum(2).cumsum(1)
    covariance = equal[:, None] + torch.nn.functional.pad(further, (1, 0))
    shorter, longer = u[:, None], u[:, None] + delta
    parallel = 2 * shorter + torch.expm1(-shorter) + torch.expm1(-longer)
    return covariance / (parallel - torch.expm1(-delta))


def _across(angle: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return ``H(u, v)``, over one ray of length u at the end of the other."""
    apart, along = v * angle.sin(), v * angle.cos()
    return decay_integral(apart, u - along) + decay_integral(apart, along)


def decay_integral(p: Tensor, x: Tensor) -> Tensor:
    """Return ``G(p, x)``, by Gauss' rule in ``τ`` with ``t = p sinh τ``."""
    # Beyond 40 the integral is complete.
    end = torch.asinh(x.clamp(-40.0, 40.0) / p)
    edges = torch.linspace(0, 1, 6).to(p)
    tau, weights = (x.reshape(-1) for x in _panels(edges[:-1], edges[1:], order=6))
    height = p[..., None] * (tau * end[..., None]).cosh()
    return ((-height).exp() * height * weights).sum(-1) * end


def _panels(start: Tensor, end: Tensor, *, order: int) -> tuple[Tensor, Tensor]:
    """Return Gauss' nodes and weights on intervals, along a new last axis."""
    nodes, weights = (
        torch.from_numpy(x).to(start) for x in np.polynomial.legendre.leggauss(order)
    )
    half = (end - start)[..., None] / 2
    return start[..., None] + half * (nodes + 1), half * weights
