r"""The extinction by pixel and distance: curves that a store holds.

A curve is the extinction of the mean density on the grid, G, times a correction,

.. math:: \bar A(d) = r(d)\, G(d) , \qquad \sigma_A(d) = s(d)\, \bar A(d) ,

by neighbouring stars, and by kriging where the fit has it. G is integrated along the
ray of every pixel, r and s are computed at nodes, whose distances grow by a tenth, on
pixels as wide as a fraction of the cells there, and interpolated between these pixels.
At the nodes the distributions of a ray are ordered (:mod:`dustmap.isotonic`). Between
nodes curves rise in proportion to G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import healpy
import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from dustmap.grid import ROUNDING
from dustmap.isotonic import RANKS, Ranked, non_decreasing
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.memory import row_blocks
from dustmap.models.base import ForwardModel
from dustmap.models.lognormal import LogNormal
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.moments import moments_over_samples
from dustmap.nested_grids import NestedGrids
from pipelines.base.pixels import pixel_directions, pixel_of, weights_around
from pipelines.base.progress import Progress, say
from pipelines.base.quantiles import KINDS, QUANTILES, summaries
from pipelines.cubes.cube import Level
from pipelines.cubes.sky import REGRESSION, Curves
from pipelines.maps.places import Places
from pipelines.maps.rays import grid_steps, last_seen
from pipelines.maps.sampled import SampledRays
from pipelines.model.engine import rays
from pipelines.model.full_batch import DRAWS
from pipelines.run.folder import Run

# Pixels of a correction per cell of the grid, at its distance. On 60,000 stars on cells
# of 40 pc the RMSE of held-out stars was 0.04% above that of exact predictions, with 1
# 1.9%, with 2 0.3% below.
_PIXELS_PER_CELL = 1.5
# Finest and coarsest resolution.
_FINEST = 128
_COARSEST = 8
# Most distances at half a grid step from one another. With whole steps the integral
# through the density 50 pc from the Sun was 13% below the curve, on cells of 40 pc; on
# cells of 70 pc the RMSE of 40 held-out stars was 5% larger.
_HALVES = 24
# Most distances of a curve.
_MOST_DISTANCES = 160
# Growth of the nodes' distances. With a fifth, errors of 3,000 stars on cells of 120 pc
# were 19% larger than those of single places, with a tenth 4%.
_GROWTH = 1.1
# Bytes of samples' densities that are kept for the next rays.
_DENSITIES = 2**31
# Grid steps of all rays in a batch: 400 bytes each for the weights.
_STEPS = 2**19

Corrected = Callable[[str, np.ndarray], np.ndarray]
"""`_corrected` at some pixels."""
Filled = tuple[dict[str, np.ndarray], np.ndarray]


def extinction_curves(
    run: Run, levels: Sequence[Level], loses: Callable[[Curves], bool]
) -> Curves:
    """Return the extinction of a run by pixel and distance.

    ``levels`` are those of `density_levels`. Among the stars pixels are halved as long
    as the curves lose against exact predictions (``loses``), and pixels are wider than
    stars are apart.
    """
    if isinstance(run.posterior.model, RowwiseGaussian):
        return _through_cube(run, *levels)
    rays = _Rays.of(run)
    shells = rays.shells()
    curves = rays.curves(shells)
    if run.posterior.residual is None or not rays.is_ranked:
        return curves
    stars = Places.of_points(run.posterior.residual.rays.directions.numpy())
    apart, widest = _separation(stars), rays.finest
    # Pixels with two stars or more.
    pixel = pixel_of(widest, stars.l, stars.b)
    dense = np.bincount(pixel, minlength=12 * widest**2) > 1
    while rays.finest < _FINEST and loses(curves):
        if healpy.nside2resol(rays.finest) < apart:
            break
        rays = replace(rays, nsides=np.minimum(2 * rays.nsides, _FINEST))
        rays = replace(rays, dense=np.repeat(dense, (rays.nside // widest) ** 2))
        curves = rays.curves([each.on(rays.nside) for each in shells] + rays.shells())
    return curves


def _separation(stars: Places) -> float:
    """Return the median distance of the nearest other star on the sky [rad]."""
    directions = stars.directions
    return float(np.median(KDTree(directions).query(directions, k=2)[0][:, 1]))


class _Densities:
    """Densities of a run's samples on its grids, of which the first are kept."""

    def __init__(self, run: Run) -> None:
        self._posterior, self._kept = run.posterior, list[Tensor]()

    def __iter__(self) -> Iterator[Tensor]:
        model, samples = cast(LogNormal, self._posterior.model), self._posterior.samples
        for number, sample in enumerate(samples):
            if number < len(self._kept):
                yield self._kept[number]
                continue
            density = model.density(sample)
            if len(samples) * density.nbytes <= _DENSITIES:
                self._kept.append(density)
            yield density

    @cached_property
    def mean(self) -> Tensor:
        """Their mean."""
        return sum(self, torch.zeros(())) / len(self._posterior.samples)


@dataclass(frozen=True, kw_only=True)
class _Shell:
    """Nodes whose corrections are known on the pixels of one resolution.

    ``nodes`` are their numbers. ``ratio`` is the mean over that of the grid, and
    ``spread`` the standard deviation over the mean or, where densities may be negative,
    the standard deviation [mag], by pixel and node; NaN where no finer pixel needs
    them. ``pixels`` are the four around each fine pixel, with their ``weights``,
    ``(4, n)``; ``dense``, if given, are the fine pixels for which it is.
    """

    nodes: np.ndarray
    ratio: np.ndarray
    spread: np.ndarray
    pixels: np.ndarray
    weights: np.ndarray
    dense: np.ndarray | None = None

    def on(self, nside: int) -> _Shell:
        """Return the shell for other fine pixels."""
        pixels, weights = _around(math.isqrt(len(self.ratio) // 12), nside)
        return replace(self, pixels=pixels, weights=weights)

    def at(self, fine: slice, of: np.ndarray) -> np.ndarray:
        """Interpolate ``ratio`` or ``spread`` at fine pixels, ``(n, j)``."""
        values = of[self.pixels[:, fine]]
        weights = np.where(np.isfinite(values), self.weights[:, fine, None], 0.0)
        total = weights.sum(axis=0)
        summed = (weights * np.where(weights > 0, values, 0.0)).sum(axis=0)
        return np.divide(
            summed, total, out=np.full_like(total, np.nan), where=total > 0
        )


@dataclass(frozen=True, kw_only=True)
class _Rays:
    """Rays of a run from the Sun to the faces of its box.

    ``distances`` [pc] ``(k,)`` are those of the mean, ``nodes`` ``(j,)`` the numbers of
    those at which distributions are known, ``nsides`` ``(j,)`` the resolutions of the
    corrections there; only for ``dense`` pixels of the curves, ``(n,)``, if given.
    """

    run: Run
    distances: np.ndarray
    nodes: np.ndarray
    nsides: np.ndarray
    densities: _Densities
    dense: np.ndarray | None = None

    @classmethod
    def of(cls, run: Run) -> _Rays:
        grids = run.plan.nested_grids
        distances = curve_distances(grids)
        nodes = [0]
        for number, distance in enumerate(distances):
            is_last = number == len(distances) - 1
            if distance >= _GROWTH * distances[nodes[-1]] or (is_last and number):
                nodes.append(number)
        given = grids, distances[nodes], _PIXELS_PER_CELL
        nsides = np.array(nsides_at(*given, finest=_FINEST))
        # Beyond the furthest face only corners are left.
        face = float(np.abs([run.box.lower, run.box.upper]).max())
        inner = distances[nodes] <= face * (1 + ROUNDING)
        return cls(
            run=run,
            distances=distances,
            nodes=np.array(nodes),
            nsides=np.minimum(nsides, nsides[inner].max(initial=nsides[0])),
            densities=_Densities(run),
        )

    @property
    def finest(self) -> int:
        """Finest resolution of the corrections."""
        return int(self.nsides.max())

    @property
    def nside(self) -> int:
        """Resolution of the curves, where the grid's part needs no neighbours."""
        return min(2 * self.finest, _FINEST)

    @property
    def is_ranked(self) -> bool:
        """True if distributions are those of a positive density's samples."""
        posterior = self.run.posterior
        return posterior.model.positive and len(posterior.samples) > 0

    def exits(self, directions: np.ndarray) -> np.ndarray:
        """Return where rays leave the box [pc]; at a face with the Sun to rounding."""
        box = self.run.box
        return np.maximum(box.exits(directions), ROUNDING * min(box.sides))

    def reached(self, directions: np.ndarray) -> np.ndarray:
        """Return at which nodes rays are inside, or were at the node before, (n, j)."""
        before = np.append(0.0, self.distances[self.nodes[:-1]])
        return before < self.exits(directions)[:, None]

    def model_along(
        self, directions: np.ndarray, ends: np.ndarray, used: np.ndarray
    ) -> tuple[ForwardModel, Callable[[Tensor], np.ndarray]]:
        """Return the model of ``used`` stretches between ends [pc], each ``(n, e)``.

        The second result sums values of stretches outwards, to the ends.
        """
        begins = np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], axis=1)
        crossed = used & (begins < ends)
        far, near = (
            torch.from_numpy((each[..., None] * directions[:, None])[crossed])
            for each in (ends, begins)
        )
        # Short stretches need shorter steps than the stars' whole rays.
        fine = replace(self.run.plan, ray_step=self.run.plan.ray_step / 2)

        def outwards(values: Tensor) -> np.ndarray:
            total = np.zeros(crossed.shape)
            total[crossed] = values.double().cpu().numpy()
            return total.cumsum(axis=1)

        return self.run.posterior.model.at(rays(fine, far, near)), outwards

    def shells(self) -> list[_Shell]:
        """Compute corrections on all resolutions."""
        return [self._shell(int(nside)) for nside in np.unique(self.nsides)]

    def _shell(self, nside: int) -> _Shell:
        """Compute corrections on the pixels of one resolution that finer ones need."""
        nodes = np.flatnonzero(self.nsides == nside)
        reached = self.reached(pixel_directions(self.nside))[:, nodes]
        if self.dense is not None:
            reached &= self.dense[:, None]
        pixels, weights = _around(nside, self.nside)
        needed = np.zeros((12 * nside**2, len(nodes)), dtype=bool)
        for each, weight in zip(pixels, weights, strict=True):
            finer, node = np.nonzero(reached & (weight > 0)[:, None])
            needed[each[finer], node] = True
        directions = pixel_directions(nside)
        ratio, spread = np.full((2, *needed.shape), np.nan)
        moments = self._ranked_moments if self.is_ranked else self._normal_moments
        rows = np.flatnonzero(needed.any(axis=1))
        # Weights of the grid's points along every ray.
        for part in row_blocks(len(rows), int(self.nodes[nodes[-1]]) + 1, _STEPS):
            some = rows[part]
            towards = directions[some]
            last = self.distances[self.nodes[nodes]]
            ends = np.minimum(last, self.exits(towards)[:, None])
            wanted = needed[some]
            # Stretches before a node that is needed.
            used = np.flip(np.maximum.accumulate(np.flip(wanted, 1), axis=1), 1)
            model, outwards = self.model_along(towards, ends, used)
            both = np.full((2, *wanted.shape), np.nan)
            both[:, wanted] = moments(model, outwards, towards, ends, wanted)
            ratio[some], spread[some] = both
        return _Shell(
            nodes=nodes,
            ratio=ratio,
            spread=spread,
            pixels=pixels,
            weights=weights,
            dense=self.dense,
        )

    def _ranked_moments(
        self,
        model: ForwardModel,
        outwards: Callable[[Tensor], np.ndarray],
        directions: np.ndarray,
        ends: np.ndarray,
        wanted: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ratio and spread of `_Shell` at the ``wanted`` ends, ``(m,)`` each."""
        assert isinstance(model, LogNormal)
        residual = self.run.posterior.residual
        values, variances = np.zeros(
            (2, len(self.run.posterior.samples), int(wanted.sum()))
        )
        for number, density in enumerate(self.densities):
            if residual is None:
                predicted = map(outwards, model.predict_from_density(density))
                values[number], variances[number] = (x[wanted] for x in predicted)
            else:
                values[number] = outwards(model.weights.matvec(density))[wanted]
        places = torch.from_numpy((ends[..., None] * directions[:, None])[wanted])
        corrected, unresolved = map(torch.from_numpy, (values, variances))
        if residual is not None:
            # Nearby stars constrain the unresolved part.
            corrected, unresolved = residual.correct(places, corrected)
        moments = moments_over_samples(corrected, unresolved, positive=True)
        mean, std = moments.mean.numpy(), moments.std.numpy()
        if residual is not None and residual.stack is not None:
            factor = residual.stack.factor(places, mean, std)
            mean, std = factor * mean, factor * std
        grid = values.mean(axis=0)
        # A ray of zero length has neither.
        ratio = np.divide(mean, grid, out=np.ones_like(mean), where=grid > 0)
        return ratio, np.divide(std, mean, out=np.zeros_like(mean), where=mean > 0)

    def _normal_moments(
        self,
        model: ForwardModel,
        outwards: Callable[[Tensor], np.ndarray],
        directions: np.ndarray,
        ends: np.ndarray,
        wanted: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return as `_ranked_moments` where densities may be negative, or unsampled.

        Samples are summed along every ray before moments are taken; the unresolved part
        is drawn jointly.
        """
        posterior, variance = self.run.posterior, np.zeros(int(wanted.sum()))
        if not len(posterior.samples):
            return np.ones_like(variance), np.full_like(variance, np.nan)
        mean = outwards(model.apply(posterior.mean))
        for sample in posterior.samples:
            apart = outwards(model.apply(sample)) - mean
            variance += apart[wanted] ** 2 / len(posterior.samples)
        # The same for all batches.
        generator = torch_stream(self.run.seed, Purpose.UNRESOLVED)
        for draw in model.residual_draws(posterior.mean.expand(DRAWS, -1), generator):
            variance += outwards(draw)[wanted] ** 2 / DRAWS
        return np.ones_like(variance), np.sqrt(variance)

    def curves(self, shells: Sequence[_Shell]) -> Curves:
        """Return the curves of all pixels; later shells replace earlier ones."""
        directions = pixel_directions(self.nside)
        known = KINDS if self.run.posterior.model.positive else KINDS[:2]
        size = {kind: len(self.nodes) for kind in known} | {"mean": len(self.distances)}
        arrays = {
            kind: np.full((len(directions), count), np.nan, dtype=np.float32)
            for kind, count in size.items()
        }
        changes = np.zeros(len(directions))
        with Progress(
            description="integrated extinction", total=len(directions), unit="px"
        ) as progress:

            def fill(rows: slice) -> None:
                corrected = partial(_corrected, shells, rows)
                filled = self._ranked if self.is_ranked else self._normal
                values, changes[rows] = filled(directions[rows], corrected)
                for kind, part in values.items():
                    arrays[kind][rows] = part
                progress.update(rows.stop - rows.start)

            if self.is_ranked:
                # Once for all threads.
                _ = self.densities.mean
            blocks = row_blocks(len(directions), len(self.distances), _STEPS // 2)
            with ThreadPoolExecutor(torch.get_num_threads()) as threads:
                list(threads.map(fill, blocks))
        return Curves(
            distances=self.distances,
            nodes=self.nodes,
            arrays=arrays,
            last_star=last_seen(
                self.run.support_at, self.run.plan.nested_grids, directions
            ),
            meta=_regression(changes),
        )

    def _on_grid(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean extinction of the grid at all distances, and their number.

        Beyond the faces it is that at the face; the number ``(n,)`` is that of
        distances within.
        """
        exits = self.exits(directions)[:, None]
        ends = np.minimum(self.distances, exits)
        model, outwards = self.model_along(directions, ends, np.ones(ends.shape, bool))
        if self.is_ranked:
            grid = model.weights.matvec(self.densities.mean)  # pyright: ignore
        else:
            grid = model.apply(self.run.posterior.mean)
        inside = self.distances <= (1 + 2 * ROUNDING) * exits
        return outwards(grid), inside.sum(axis=1)

    def _ranked(self, directions: np.ndarray, corrected: Corrected) -> Filled:
        """Return the kinds of `Curves.arrays` and the changes by ordering, by ray."""
        grid, counts = self._on_grid(directions)
        reached = self.reached(directions)
        mean = (grid[:, self.nodes] * corrected("ratio", reached))[reached]
        spread = corrected("spread", reached)[reached]
        curves = Ranked.log_normal(mean, spread * mean).values
        starts = np.append(0, reached.sum(axis=1).cumsum())
        rising = non_decreasing(curves, np.log1p(spread**2), starts)
        middle = np.flatnonzero(RANKS == 0)[0]
        change = np.abs(rising - curves)[middle]
        values = np.full((len(RANKS), *reached.shape), np.nan)
        values[:, reached] = rising
        # The last node of a ray has the values at the last distance within the box.
        ray, last = np.arange(len(counts)), np.maximum(counts - 1, 0)
        node = np.searchsorted(self.nodes, last)
        ends = np.where(node > 0, grid[ray, self.nodes[node - 1]], 0.0)
        share = _share(grid[ray, last], ends, grid[ray, self.nodes[node]])
        before = np.where(node > 0, values[:, ray, node - 1], 0.0)
        values[:, ray, node] = before + share * (values[:, ray, node] - before)
        values[:, self._beyond(counts)] = np.nan
        arrays = summaries(Ranked(values))
        anchors = np.minimum(self.nodes, last[:, None])
        arrays["mean"] = self._between(arrays["mean"], grid, anchors, counts)
        return arrays, np.maximum.reduceat(change, starts[:-1])

    def _beyond(self, counts: np.ndarray) -> np.ndarray:
        """Return nodes after the one that has a ray's last values, ``(n, j)``."""
        node = np.searchsorted(self.nodes, np.maximum(counts - 1, 0))
        return np.arange(len(self.nodes)) > np.where(counts > 0, node, -1)[:, None]

    def _between(
        self,
        mean: np.ndarray,
        grid: np.ndarray,
        anchors: np.ndarray,
        counts: np.ndarray,
    ) -> np.ndarray:
        """Interpolate means at nodes ``(n, j)``, in proportion to the grid's.

        Nodes have the values at the distances with the numbers ``anchors``.
        """
        step = np.searchsorted(self.nodes, np.arange(len(self.distances)))
        mean, ends = (
            np.pad(x, ((0, 0), (1, 0)))
            for x in (mean, np.take_along_axis(grid, anchors, axis=1))
        )
        share = _share(grid, ends[:, step], ends[:, step + 1])
        values = mean[:, step] + share * (mean[:, step + 1] - mean[:, step])
        beyond = np.arange(len(self.distances)) >= counts[:, None]
        return np.where(beyond, np.nan, values)

    def _normal(self, directions: np.ndarray, corrected: Corrected) -> Filled:
        """Return as `_ranked` where densities may be negative, or have no samples."""
        grid, counts = self._on_grid(directions)
        beyond = np.arange(len(self.distances)) >= counts[:, None]
        mean = np.where(beyond, np.nan, grid)
        std = corrected("spread", self.reached(directions))
        std[self._beyond(counts)] = np.nan
        arrays = {"mean": mean, "std": std}
        if self.run.posterior.model.positive:
            arrays |= dict.fromkeys(QUANTILES, np.full_like(std, np.nan))
        return arrays, np.zeros(len(directions))


def curve_distances(grids: NestedGrids) -> np.ndarray:
    """Return grid steps [pc] to the box's furthest corner, as grids have them.

    Within `_HALVES` of them every half one, where extinctions are smallest. Every
    second, third or so on if there are more than 160.
    """
    halves = grid_steps(grids, 0.5)
    every = 2 * math.ceil(len(halves) / (2 * _MOST_DISTANCES))
    return np.append(halves[:_HALVES], halves[_HALVES - 1 + every :: every])


def nsides_at(
    grids: NestedGrids, distances: np.ndarray, per_cell: float, *, finest: int
) -> list[int]:
    """Return resolutions with so many pixels per cell of the grid, at distances."""
    nsides = []
    for distance in distances:
        cells = [min(g.spacing) for g in grids if g.reach >= distance or g is grids.box]
        nside = min(_COARSEST, finest)
        while nside < finest and (
            healpy.nside2resol(nside) * distance * per_cell > min(cells)
        ):
            nside *= 2
        nsides.append(nside)
    return nsides


def _around(coarse: int, fine: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the coarse pixels around fine ones, and their weights, ``(4, n)``."""
    if coarse == fine:
        pixels = np.arange(12 * fine**2)[None]
        return pixels, np.ones(pixels.shape)
    places = Places.of_points(pixel_directions(fine))
    pixels, weights = weights_around(coarse, places.l, places.b)
    # A rounding error needs no pixel.
    return pixels, np.where(weights > 1e-9, weights, 0.0)


def _corrected(
    shells: Sequence[_Shell], rows: slice, name: str, reached: np.ndarray
) -> np.ndarray:
    """Interpolate ``ratio`` or ``spread`` at fine pixels' nodes, NaN beyond, (n, j)."""
    values = np.full(reached.shape, np.nan)
    for shell in shells:
        part = shell.at(rows, getattr(shell, name))
        some = slice(None) if shell.dense is None else shell.dense[rows]
        values[np.ix_(np.arange(len(values))[some], shell.nodes)] = part[some]
    values[~reached] = np.nan
    return values


def _share(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return ``(values − low) / (high − low)``; 1 where there is no dust to share."""
    rises = high > low
    return np.where(rises, (values - low) / np.where(rises, high - low, 1.0), 1.0)


def _regression(changes: np.ndarray) -> dict[str, Any]:
    """Return what ordering changed along rays, by the largest of each [mag]."""
    changed = int(np.count_nonzero(changes))
    if not changed:
        return {}
    largest, middle = float(changes.max()), float(np.median(changes))
    say(
        f"the median extinction decreased along {changed:,} of {len(changes):,} rays: "
        f"isotonic regression changes it by at most {largest:.2g} mag, and by "
        f"{middle:.2g} mag along the median ray"
    )
    changed_by = {
        "rays": len(changes),
        "changed": changed,
        "largest_change_mag": largest,
        "median_change_mag": middle,
    }
    return {REGRESSION: changed_by}


def _through_cube(run: Run, level: Level) -> Curves:
    """Return curves of the published engine: integrals of its values on the grid.

    It needs a solve for every other functional. The std is that of the samples.
    """
    grids, values = run.plan.nested_grids, [level.cube.arrays["mean"], *level.samples]
    distances = curve_distances(grids)
    face = float(np.abs([run.box.lower, run.box.upper]).max())
    nside = nsides_at(grids, np.array([face]), _PIXELS_PER_CELL, finest=_FINEST)[0]
    fields = SampledRays(read=lambda: [np.array(values).T], grids=grids)
    directions = pixel_directions(nside)
    inside = distances <= (1 + 2 * ROUNDING) * run.box.exits(directions)[:, None]
    mean = np.full(inside.shape, np.nan, dtype=np.float32)
    std = mean.copy()
    for rows in row_blocks(len(directions), 16 * len(values) * len(distances)):
        towards, known = Places.of_points(directions[rows]), inside[rows]
        first, *others = fields.integrals(towards, distances)
        mean[rows][known] = first[known]
        if others:
            variance = np.mean((np.array(others) - first) ** 2, axis=0)
            std[rows][known] = np.sqrt(variance)[known]
    return Curves(
        distances=distances,
        nodes=np.arange(len(distances)),
        arrays={"mean": mean, "std": std},
        last_star=last_seen(run.support_at, grids, directions),
    )
