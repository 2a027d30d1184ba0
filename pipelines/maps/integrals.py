"""Distributions of the extinction along rays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import ROUNDING
from dustmap.isotonic import RANKS, Ranked, non_decreasing
from dustmap.keyed_noise import Purpose, keyed_normals, torch_stream
from dustmap.memory import row_blocks
from dustmap.models.lognormal import LogNormal
from dustmap.moments import Moments, moments_over_samples, sample_order
from dustmap.residual.stacking import StackedKriging
from pipelines.base.errors import InputError
from pipelines.base.progress import Progress, say
from pipelines.base.quantiles import summaries
from pipelines.cubes.sky import REGRESSION
from pipelines.maps.rays import grid_steps
from pipelines.model.engine import rays
from pipelines.model.full_batch import DRAWS
from pipelines.run.folder import Run

# Bytes of samples' densities in the cache for the next rays.
_DENSITIES = 2**31
# Segments per batch: 400 bytes each for the weights, and 16 for every sample.
_SEGMENTS = 2**19


@dataclass(frozen=True, slots=True, kw_only=True)
class OutwardCurves:
    """Distributions of extinctions [mag] along rays, ordered at fixed nodes.

    Nodes are those of every ray of the run, up to its exit from the box. Between them
    values rise in proportion to the extinction of the mean density on the grid, which
    is linear between steps.

    ``nodes (k,)`` are numbers of ``steps`` [pc] ``(j,)``, ``exits`` [pc] ``(n,)`` are
    where rays leave the box, and ``grown (j, n)`` is the extinction of the mean density
    to each step. At the nodes ``values (r, n, k)`` are non-decreasing, by rank
    (`RANKS`), ``variances (n, k)`` are those of logarithms, NaN beyond the exit, and
    ``order (s, n, k)`` is every sample's place among all; it may be empty. ``changes``
    [mag] ``(n,)`` are the largest ones of each ray's median by the ordering.
    """

    steps: np.ndarray
    nodes: np.ndarray
    exits: np.ndarray
    grown: np.ndarray
    values: np.ndarray
    variances: np.ndarray
    order: np.ndarray
    changes: np.ndarray

    def at(self, distance: np.ndarray, ray: np.ndarray) -> Ranked:
        """Return distributions at distances [pc] ``(m,)`` along the rays ``(m,)``."""
        return Ranked(self._between(self.values, distance, ray))

    def samples(self, distance: np.ndarray, ray: np.ndarray) -> np.ndarray:
        """Return non-decreasing samples at places as in `at`, shape ``(s, m)``."""
        curves = Ranked(self.values).samples(self.order)
        flat, count = curves.reshape(len(curves), -1), len(self.nodes)
        starts = count * np.arange(len(self.exits) + 1)
        rising = non_decreasing(flat, self.variances.ravel(), starts)
        return self._between(rising.reshape(curves.shape), distance, ray)

    def _between(
        self, values: np.ndarray, distance: np.ndarray, ray: np.ndarray
    ) -> np.ndarray:
        """Interpolate ``(r, n, k)`` between nodes."""
        end = np.minimum(distance, self.exits[ray])
        node = np.searchsorted(self.steps[self.nodes], end)
        low, high = self.nodes[np.maximum(node - 1, 0)], self.nodes[node]
        start = np.where(node > 0, self.grown[low, ray], 0.0)
        stop = self.grown[high, ray]
        whole = np.where(stop > start, stop - start, 1.0)
        # Without dust on the grid there is none to share out.
        share = np.where(stop > start, (self._grown(end, ray) - start) / whole, 1.0)
        near = np.where(node > 0, values[:, ray, np.maximum(node - 1, 0)], 0.0)
        far = values[:, ray, node]
        return near + share * (far - near)

    def _grown(self, distance: np.ndarray, ray: np.ndarray) -> np.ndarray:
        """Interpolate the extinction of the mean density."""
        step = np.searchsorted(self.steps, distance)
        begin = np.where(step > 0, self.steps[np.maximum(step - 1, 0)], 0.0)
        end = np.minimum(self.steps[step], self.exits[ray])
        near = np.where(step > 0, self.grown[np.maximum(step - 1, 0), ray], 0.0)
        far = self.grown[step, ray]
        share = (distance - begin) / np.where(end > begin, end - begin, 1.0)
        return near + np.minimum(share, 1.0) * (far - near)


def outward_curves(
    run: Run,
    directions: np.ndarray,
    stack: StackedKriging | None = None,
    *,
    draws: bool = False,
) -> Iterator[tuple[slice, OutwardCurves]]:
    """Yield curves for batches of rays, in order, of a positive density with samples.

    A ray's curves depend on its direction, a unit vector of ``(n, 3)``, and the run
    alone. ``stack`` is for map and kriging together; with ``draws`` curves have
    samples.
    """
    plan, posterior, residual = run.plan, run.posterior, run.posterior.residual
    # The mean density is taken to be even within half a grid step.
    steps = grid_steps(plan.nested_grids, 0.5)
    steps = np.append(steps, 2 * steps[-1])
    # With distances of nodes growing by a tenth errors of 3,000 stars on cells of
    # 120 pc, which leave most to neighbours, were 4% larger than those of single
    # places, and 19% with a fifth.
    nodes = [0]
    for number, step in enumerate(steps):
        if step >= 1.1 * steps[nodes[-1]] or number == len(steps) - 1:
            nodes.append(number)
    chosen = np.array(nodes)
    before = np.append(0.0, steps[chosen[:-1]])
    # Short segments need shorter steps than the stars' whole rays.
    fine = replace(plan, ray_step=plan.ray_step / 2)
    kept: list[Tensor] = []
    # Rays that leave a box with a face at the Sun end there to rounding.
    exits = np.maximum(run.box.exits(directions), ROUNDING * min(run.box.sides))
    # Counted in segments, not in bytes.
    for part in row_blocks(len(directions), len(steps), _SEGMENTS):
        ends = np.minimum(steps[:, None], exits[part])
        begins = np.concatenate([np.zeros_like(ends[:1]), ends[:-1]])
        crossed = begins < ends
        towards = directions[part]
        far, near = (
            torch.from_numpy((each[..., None] * towards)[crossed])
            for each in (ends, begins)
        )
        model = cast(LogNormal, posterior.model.at(rays(fine, far, near)))

        def outwards(values: Tensor, crossed=crossed) -> np.ndarray:
            """Return integrals to every step, ``(j, n)``."""
            total = np.zeros(crossed.shape)
            total[crossed] = values.double().cpu().numpy()
            return total.cumsum(axis=0)

        grown = np.zeros(crossed.shape)
        own = before < exits[part, None]
        values = np.empty((len(posterior.samples), int(own.sum())))
        unresolved = np.empty_like(values)
        for number, sample in enumerate(posterior.samples):
            cached = number < len(kept)
            density = kept[number] if cached else model.density(sample)
            if not cached and len(values) * density.nbytes <= _DENSITIES:
                kept.append(density)
            if residual is None:
                found, variance = map(outwards, model.predict_from_density(density))
                unresolved[number] = variance[chosen].T[own]
            else:
                found = outwards(model.weights.matvec(density))
            grown += found / len(values)
            values[number] = found[chosen].T[own]
        places = (ends[chosen].T[..., None] * towards[:, None])[own]
        corrected, variances = torch.from_numpy(values), torch.from_numpy(unresolved)
        if residual is not None:
            # Nearby stars constrain the unresolved part.
            corrected, variances = residual.correct(torch.from_numpy(places), corrected)
        moments = moments_over_samples(corrected, variances, positive=True)
        mean, std = moments.mean.numpy(), moments.std.numpy()
        if stack is not None:
            factor = stack.factor(torch.from_numpy(places), mean, std)
            mean, std = factor * mean, factor * std
        curves = Ranked.log_normal(mean, std).values
        spread = np.log1p((std / mean) ** 2)
        stops = np.append(0, own.sum(axis=1).cumsum())
        rising = non_decreasing(curves, spread, stops)
        change = np.abs(rising - curves)[np.flatnonzero(RANKS == 0)[0]]
        # Beyond the exit there is nothing more.
        last = np.minimum(np.arange(len(chosen)), own.sum(axis=1, keepdims=True) - 1)
        index = stops[:-1, None] + last
        order = np.empty((0, *index.shape), dtype=int)
        if draws:
            white = _white(run, places, own)
            order = sample_order(corrected, variances, white).numpy()[:, index]
        found = OutwardCurves(
            steps=steps,
            nodes=chosen,
            exits=exits[part],
            grown=grown,
            values=rising[:, index],
            variances=np.where(own, spread[index], np.nan),
            order=order,
            changes=np.maximum.reduceat(change, stops[:-1]),
        )
        yield part, found


def _white(run: Run, places: np.ndarray, own: np.ndarray) -> Float[Tensor, "s m"]:
    """Draw standard normals for structure below the grid, at the rays' nodes ``own``.

    A ray adds one number for each stretch between nodes, with the variance of its
    length; it is interpolated between independent ones in the corners of a lattice of
    the grid's cells, so that rays closer than a cell share most of it.
    """
    node, count = np.nonzero(own)[1], len(run.posterior.samples)
    cell = places / min(run.plan.grid.spacing)
    lowest = np.floor(cell)
    total, norm = torch.zeros(count, len(node), dtype=torch.float64), 0.0
    for corner in np.ndindex(2, 2, 2):
        at = lowest + corner
        weight = np.prod(1 - np.abs(cell - at), axis=1)
        keys = np.column_stack([node, at]).astype(np.int64)
        total += torch.from_numpy(weight) * keyed_normals(
            torch.from_numpy(keys), count, run.seed, Purpose.UNRESOLVED
        )
        norm = norm + weight**2
    distance = np.linalg.norm(places, axis=1)
    stretch = np.diff(distance, prepend=0.0)
    stretch[node == 0] = distance[node == 0]
    noise = np.zeros((count, *own.shape))
    noise[:, own] = total.numpy() * np.sqrt(stretch / norm)
    return torch.from_numpy(noise.cumsum(axis=2)[:, own] / np.sqrt(distance))


def ray_integrals(
    run: Run,
    directions: np.ndarray,
    edges: np.ndarray,
    stack: StackedKriging | None = None,
) -> Iterator[tuple[slice, Moments | Ranked, np.ndarray]]:
    """Yield distributions [mag] of ``∫_0^d ρ ds`` for batches of rays, in order.

    They have the shape ``(e, rays of the batch)``, NaN outside the box. Those of a
    positive density with samples are of `outward_curves`; what ordering them changed is
    the third result [mag], by ray. ``directions`` are unit vectors ``(n, 3)``,
    ``edges`` increasing distances [pc], ``(e,)`` or ``(e, n)``; ``stack`` is for map
    and kriging together.
    """
    edges = np.asarray(edges, dtype=np.float64).reshape(len(edges), -1)
    edges = np.broadcast_to(edges, (len(edges), len(directions)))
    inside = edges <= (1 + 2 * ROUNDING) * run.box.exits(directions)
    if has_curves(run):
        for part, curves in outward_curves(run, directions, stack):
            within = inside[:, part]
            found = curves.at(edges[:, part][within], np.nonzero(within)[1]).values
            values = np.full((len(found), *within.shape), np.nan)
            values[:, within] = found
            yield part, Ranked(values), curves.changes
        return
    # A segment needs 400 bytes, of which a point outside the box costs a fourth.
    for part in row_blocks(len(directions), len(edges), _SEGMENTS):
        within = torch.from_numpy(inside[:, part])
        far = torch.as_tensor(edges[:, part, None] * directions[part])
        parts = {}
        for name, found in _whole_moments(run, far, within).items():
            parts[name] = torch.full(within.shape, torch.nan, dtype=torch.float64)
            parts[name][within] = found
        yield part, Moments(**parts), np.zeros(within.shape[1])


def _whole_moments(run: Run, far: Tensor, within: Tensor) -> dict[str, Tensor]:
    """Return mean and std [mag] to points ``(e, n, 3)`` within the box.

    Samples are accumulated along every ray before moments are taken; the unresolved
    part is drawn jointly.
    """
    plan, posterior = run.plan, run.posterior
    if not plan.abilities.cheap_integrals:
        # Rows are exact there, and joint residuals too expensive: use whole rays.
        found = posterior.moments(rays(plan, far[within]))
        return {"mean": found.mean, "std": found.std}
    near = torch.cat([torch.zeros_like(far[:1]), far[:-1]])
    fine = replace(plan, ray_step=plan.ray_step / 2)
    model = posterior.model.at(rays(fine, far[within], near[within]))

    def outwards(values: Tensor) -> Tensor:
        """Accumulate along each ray up to the end of each segment."""
        total = torch.zeros(within.shape, dtype=torch.float64)
        total[within] = values.to(torch.float64).cpu()
        return total.cumsum(dim=0)[within]

    mean = outwards(model.apply(posterior.mean))
    if not len(posterior.samples):
        return {"mean": mean, "std": torch.full_like(mean, float("nan"))}
    variance = torch.zeros_like(mean)
    for sample in posterior.samples:
        variance += (outwards(model.apply(sample)) - mean) ** 2 / len(posterior.samples)
    # The same for all distances of a direction.
    generator = torch_stream(run.seed, Purpose.UNRESOLVED)
    for draw in model.residual_draws(posterior.mean.expand(DRAWS, -1), generator):
        variance += outwards(draw) ** 2 / DRAWS
    return {"mean": mean, "std": variance.sqrt()}


def stack_of(run: Run, estimate: str | None) -> tuple[StackedKriging | None, str]:
    """Return the kriging of an estimate of extinctions, if any, and the estimate.

    Raises `InputError` if the run has none and the estimate needs it.
    """
    stack = run.posterior.stack
    if estimate == "kriged" and stack is None:
        raise InputError(
            f"{run.path} has the map without kriging only: on stars that the fit had "
            "not seen, kriging did not improve it"
        )
    if estimate == "map" or stack is None:
        return None, "map"
    return stack, "kriged"


def has_curves(run: Run) -> bool:
    """Return true if a run has `outward_curves`."""
    posterior = run.posterior
    return posterior.model.positive and len(posterior.samples) > 0


def integrals_along(
    run: Run,
    directions: np.ndarray,
    edges: np.ndarray,
    stack: StackedKriging | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the moments of `ray_integrals` by name (float32), shape ``(e, n)``.

    The second result describes the changes by ordering curves, if any: the number
    of ``rays`` and of those ``changed``, and the largest and the median over rays of
    the largest change of the median [mag in the run's band].
    """
    arrays: dict[str, np.ndarray] = {}
    changes = np.zeros(len(directions))
    with Progress(
        description="integrated extinction", total=len(directions), unit="px"
    ) as progress:
        found = ray_integrals(run, directions, edges, stack)
        for part, moments, changes[part] in found:
            for name, values in summaries(moments).items():
                if name not in arrays:
                    shape = (len(edges), len(directions))
                    arrays[name] = np.empty(shape, dtype=np.float32)
                arrays[name][:, part] = values
            progress.update(part.stop - part.start)
    changed = int(np.count_nonzero(changes))
    if not changed:
        return arrays, {}
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
    return arrays, {REGRESSION: changed_by}
