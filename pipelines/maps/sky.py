"""Sky maps, shells and lines of sight of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import healpy
import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.moments import Moments, moments_over_samples
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.progress import Progress
from pipelines.base.quantiles import NAMES, summaries
from pipelines.catalog.schema import Stars, read_stars
from pipelines.cubes.cube import farthest
from pipelines.cubes.sky import LineOfSight, ShellMaps, SkyMaps, check_distances
from pipelines.maps.integrals import (
    integrals_along,
    outward_summaries,
    ray_integrals,
    segment_moments,
)
from pipelines.maps.provenance import provenance
from pipelines.maps.rays import grid_steps, last_seen
from pipelines.run.folder import Run

# Most distances along a ray; larger boxes use every second or third grid step.
_MOST_DISTANCES = 160
# Finest default resolution.
_FINEST_NSIDE = 128
# Default lines of sight, and stars whose median extinction ranks a direction.
_LINES = 6
_NEAR = 7
# Ray segments per batch: some 400 bytes each while W is built.
_SEGMENTS = 2**20
# Most rays across a pixel.
_ACROSS = 8


def default_distances(run: Run) -> np.ndarray:
    """Return about six even, round distances [pc] out to the box's furthest face."""
    reach = _furthest_face(run)
    power = 10.0 ** math.floor(math.log10(reach / 6))
    rounds = (factor * power for factor in (1, 2, 2.5, 5, 10))
    step = max(step for step in rounds if step <= reach / 6 * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def ray_distances(run: Run) -> np.ndarray:
    """Return every grid step [pc] to the box's furthest corner, finer on finer grids.

    Every second or third if there are more than 160; `default_distances` with the
    published engine, which needs a solve for each.
    """
    if not run.plan.is_full_batch:
        return default_distances(run)
    grids = run.plan.nested_grids
    every = len(grid_steps(grids, 1.0)) / _MOST_DISTANCES
    return grid_steps(grids, max(1.0, math.ceil(every)))


def checked_distances(
    run: Run, distances: Sequence[float] | np.ndarray, *, edges: bool = False
) -> np.ndarray:
    """Return distances, or edges of shells, [pc] as float64.

    Raises `InputError` if they do not increase from above zero (edges: from zero), or
    extend beyond the map.
    """
    checked = np.asarray(distances, dtype=np.float64)
    check_distances(checked, edges=edges)
    corner = farthest(run.plan.grid)
    if checked[-1] > corner:
        raise InputError(
            f"{'shells' if edges else 'distances'} extend to {checked[-1]:g} pc, where "
            "no sight line is still inside the map: choose distances up to its "
            f"furthest corner, {corner:.6g} pc away"
        )
    return checked


def checked_nside(nside: int) -> int:
    """Return ``nside``; raises `InputError` unless it is a power of 2."""
    if not healpy.isnsideok(nside, nest=True):
        raise InputError(f"nside must be a power of 2, got {nside}")
    return nside


def pixel_directions(nside: int) -> np.ndarray:
    """Return unit vectors to all pixels' centres (NESTED, Galactic), ``(npix, 3)``."""
    pixels = np.arange(healpy.nside2npix(nside))
    return unit_vectors(*healpy.pix2ang(nside, pixels, nest=True, lonlat=True))


def default_nside(run: Run) -> int:
    """Return the coarsest resolution, in 16..128, with pixels of a grid step or less.

    The grid step is seen at half the distance to the furthest face. If residuals of
    neighbouring stars sharpen extinctions, pixels are no wider than the median
    separation of nearest stars. With the published engine, which needs a solve for
    every pixel and distance: 8.
    """
    apart = math.inf
    if run.posterior.residual is not None:
        directions = run.posterior.residual.rays.directions.numpy()
        apart = float(np.median(KDTree(directions).query(directions, k=2)[0][:, 1]))
    return _nside(run, _furthest_face(run) / 2, apart)


def ray_nside(run: Run) -> int:
    """Return the resolution, in 16..128, with a grid step or less at the furthest face.

    Interpolation between rays is then off by 0.17 standard deviations at the far side
    of a box of 85 cells, by 0.6 with half the resolution. With the published engine: 8.
    """
    return _nside(run, _furthest_face(run))


def _furthest_face(run: Run) -> float:
    """Return the distance to the furthest face of the box along an axis [pc]."""
    return float(np.abs([run.plan.grid.lower, run.plan.grid.upper]).max())


def _nside(run: Run, distance: float, widest: float = math.inf) -> int:
    """Return the coarsest resolution with pixels of a grid step at a distance [pc]."""
    full = run.plan.is_full_batch
    nside = 16 if full else 8
    width = min(run.plan.grid.spacing) / distance if full else math.inf
    while nside < _FINEST_NSIDE and healpy.nside2resol(nside) > min(width, widest):
        nside *= 2
    return nside


def integrated(
    run: Run, *, nside: int | None = None, distances: np.ndarray | None = None
) -> SkyMaps:
    """Return moments of the integrated extinction by distance and pixel.

    The std is that of the integral, and curves never decrease (`outward_summaries`).
    Defaults are `ray_distances` and `ray_nside`. Memory: 20 bytes per pixel and
    distance (0.6 GiB at most), and that of `ray_integrals`.
    """
    nside = checked_nside(ray_nside(run) if nside is None else nside)
    chosen = ray_distances(run) if distances is None else distances
    edges = checked_distances(run, chosen)
    directions = pixel_directions(nside)
    arrays, regression = integrals_along(run, directions, edges)
    return SkyMaps(
        distances=edges,
        arrays=arrays,
        last_star=last_star(run, directions),
        meta={**provenance(run), **regression},
    )


def last_star(run: Run, directions: np.ndarray) -> np.ndarray:
    """Return `last_seen` along unit vectors through a run [pc], shape ``(n,)``."""
    return last_seen(run.support_at, run.plan.nested_grids, directions)


def shell_maps(
    run: Run, *, edges: np.ndarray | None = None, nside: int | None = None
) -> ShellMaps:
    """Return the mean density between successive ``edges`` [pc] by pixel, and its std.

    A pixel's value is the average of ``∫ ρ ds / (d1 − d0)`` over rays through it: one
    at its centre, or up to 8 × 8 no further apart than a grid step at the outer sphere
    (one with the engine svi, which needs a solve for each). All parts of a ray have
    equal weight, unlike in a mean by volume.

    The std is that of the average: samples are averaged before the variance is taken.
    The unresolved part is assumed equal for all rays of a pixel, which gives an upper
    limit. The default edges are 0 and `default_distances`.

    Raises `InputError` if edges are not increasing or begin beyond the map, or nside is
    not a power of 2.
    """
    if edges is None:
        edges = np.concatenate([[0.0], default_distances(run)])
    edges = checked_distances(run, edges, edges=True)
    nside = checked_nside(default_nside(run) if nside is None else nside)
    kept: list[Tensor] = []
    with Progress(description="shells", total=len(edges) - 1, unit="shell") as progress:
        shells = []
        for low, high in pairwise(edges):
            shells.append(_shell(run, kept, low, high, nside))
            progress.update(1)
    arrays = {name: np.stack([shell[name] for shell in shells]) for name in shells[0]}
    return ShellMaps(edges=edges, arrays=arrays, meta=provenance(run))


def rays_across(run: Run, distance: float, nside: int) -> int:
    """Return the rays along a pixel's side, at most a grid step apart at a distance."""
    across = 1
    if run.plan.is_full_batch:
        steps = healpy.nside2resol(nside) * distance / run.plan.step_at(distance)
        while across < min(steps, _ACROSS):
            across *= 2
    return across


def _shell(
    run: Run, kept: list[Tensor], low: float, high: float, nside: int
) -> dict[str, np.ndarray]:
    """Return mean, std and quantiles of one shell, shape ``(npix,)`` each."""
    across = rays_across(run, high, nside)
    each, npix = across**2, 12 * nside**2
    step = max(1, _SEGMENTS // each)

    def average(values: Tensor) -> Tensor:
        return values.reshape(-1, each).mean(dim=1)

    arrays: dict[str, np.ndarray] = {}
    for start in range(0, npix, step):
        part = np.arange(start, min(start + step, npix))
        # The centres of each pixel's parts.
        children = each * part[:, None] + np.arange(each)
        places = healpy.pix2ang(nside * across, children, nest=True, lonlat=True)
        along = torch.as_tensor(unit_vectors(*places))
        ends = high * along
        inside = run.plan.grid.contains(ends.reshape(-1, 3)).reshape(-1, each).all(1)
        along = along[inside].reshape(-1, 3)
        if run.posterior.residual is None:
            pieces = high * along, low * along
            moments = segment_moments(run, *pieces, average, kept)
        else:
            moments = _corrected(run, along, (low, high), average)
        for name, value in summaries(moments).items():
            whole = arrays.setdefault(name, np.full(npix, np.nan, dtype=np.float32))
            whole[part[inside.numpy()]] = value / (high - low)
    return arrays


def _corrected(
    run: Run,
    along: Tensor,
    edges: tuple[float, float],
    average: Callable[[Tensor], Tensor],
) -> Moments:
    """Integrate the corrected density between two spheres [mag].

    Uses the midpoint rule with at most a grid step. The unresolved part is assumed
    equal within a pixel and independent along rays.
    """
    low, high = edges
    count = math.ceil((high - low) / run.plan.step_at(low))
    step = (high - low) / count
    total, variance = torch.zeros(()), torch.zeros(())
    for number in range(count):
        points = PointValues((low + (number + 0.5) * step) * along)
        values, unresolved = run.posterior.sampled(points)
        parts = zip(values, unresolved.sqrt(), strict=True)
        found = [(average(value), average(std)) for value, std in parts]
        mean, std = (torch.stack(part) for part in zip(*found, strict=True))
        total, variance = total + step * mean, variance + (step * std) ** 2
    return moments_over_samples(total, variance, positive=True)


def lines_of_sight(
    run: Run, directions: Sequence[tuple[float, float]] | None = None, points: int = 60
) -> list[LineOfSight]:
    """Return cumulative extinction along a few directions, and nearby stars.

    These are the 60 nearest stars, at most 3 deg away. Quantiles are those of the
    posterior of every integral, normal for a density that may be negative; they need
    posterior samples.
    """
    stars = read_stars(run.path / "stars.parquet")
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    chosen = default_directions(stars) if directions is None else list(directions)
    vectors = unit_vectors(*np.array(chosen).T)
    edges = np.linspace(0, run.box.exits(vectors), points + 1)[1:]
    ((_, moments),) = ray_integrals(run, vectors, edges)
    sampled = len(run.posterior.samples) > 0
    found, _ = outward_summaries(moments, quantiles=sampled)
    last = last_star(run, vectors)
    lines = []
    for i, (lon, lat) in enumerate(chosen):
        cosine = np.clip(unit_vectors(stars.l, stars.b) @ vectors[i], -1.0, 1.0)
        angle = np.degrees(np.arccos(cosine))
        nearest = np.argsort(angle)[:60]
        near = nearest[angle[nearest] <= 3.0]
        radius = float(angle[near].max()) if len(near) else 3.0
        bands = {}
        if sampled:
            low, left, median, right, high = (found[name][:, i] for name in NAMES)
            bands = {"median": median, "inner": (left, right), "outer": (low, high)}
        line = LineOfSight(
            l=lon,
            b=lat,
            distance=edges[:, i],
            mean=found["mean"][:, i],
            std=found["std"][:, i],
            star_distance=stars.distance[near],
            star_extinction=stars.extinction[near],
            star_error=stars.extinction_error[near],
            # Round up, for the figure's title.
            radius=math.ceil(10 * radius) / 10,
            last_star=float(last[i]),
            **bands,
        )
        lines.append(line)
    return lines


def default_directions(stars: Stars) -> list[tuple[float, float]]:
    """Return six directions ``l, b`` [deg] of high extinction, spread over the sky.

    They are directions of stars, ranked by the median extinction of their neighbours on
    the sky, and at least 30 deg apart (less in a small field).
    """
    assert stars.extinction is not None
    vectors = unit_vectors(stars.l, stars.b)
    _, near = KDTree(vectors).query(vectors, k=min(_NEAR, len(stars)))
    around = stars.extinction[near].reshape(len(stars), -1)
    order = np.argsort(np.median(around, axis=1))[::-1]
    separation = math.radians(30)
    chosen: list[int] = []
    while len(chosen) < _LINES and separation > 1e-4:
        for index in order:
            if len(chosen) == _LINES:
                break
            cosines = vectors[chosen] @ vectors[index] if chosen else np.zeros(0)
            if (cosines < math.cos(separation)).all():
                chosen.append(int(index))
        separation /= 2
    return [(float(stars.l[i]), float(stars.b[i])) for i in chosen]
