"""Sky maps and lines of sight of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import healpy
import numpy as np
from scipy.spatial import KDTree

from dustmap.grid import ROUNDING
from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import summaries
from pipelines.catalog.schema import Stars, read_stars
from pipelines.cubes.cube import farthest
from pipelines.cubes.sky import LineOfSight, SkyMaps, check_distances, outside
from pipelines.maps.cells import in_memory
from pipelines.maps.integrals import integrals_along, ray_integrals, stack_of
from pipelines.maps.places import Places
from pipelines.maps.provenance import provenance
from pipelines.maps.rays import PixelRays, grid_steps, last_seen
from pipelines.run.folder import Run

# Finest default resolution.
_FINEST_NSIDE = 128


def default_distances(run: Run) -> np.ndarray:
    """Return about six even, round distances [pc] out to the box's furthest face."""
    reach = _furthest_face(run)
    power = 10.0 ** math.floor(math.log10(reach / 6))
    rounds = (factor * power for factor in (1, 2, 2.5, 5, 10))
    step = max(step for step in rounds if step <= reach / 6 * 1.0001)
    return step * np.arange(1, math.floor(reach / step + 1e-9) + 1)


def ray_distances(run: Run) -> np.ndarray:
    """Return every half grid step [pc] to the box's furthest corner, as grids have.

    These hold the nodes of the curves. Every second, third or so on if there are more
    than 160; `default_distances` with the published engine, which needs a solve for
    each.
    """
    if not run.plan.abilities.cheap_integrals:
        return default_distances(run)
    grids = run.plan.nested_grids
    every = len(grid_steps(grids, 0.5)) / 160
    return grid_steps(grids, 0.5 * max(1, math.ceil(every)))


def checked_distances(run: Run, distances: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return distances [pc] as float64.

    Raises `InputError` if they do not increase from above zero, or extend beyond the
    map.
    """
    checked = np.asarray(distances, dtype=np.float64)
    check_distances(checked)
    corner = farthest(run.plan.grid)
    if checked[-1] > corner:
        raise InputError(
            f"distances extend to {checked[-1]:g} pc, where no sight line is still "
            "inside the map: choose distances up to its furthest corner, "
            f"{corner:.6g} pc away"
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
    """Return the coarsest resolution, in 16..128, with pixels as fine as `grid_nside`.

    If residuals of neighbouring stars sharpen extinctions, pixels are no wider than the
    median separation of nearest stars either.
    """
    apart = math.inf
    if run.posterior.residual is not None:
        directions = run.posterior.residual.rays.directions.numpy()
        apart = float(np.median(KDTree(directions).query(directions, k=2)[0][:, 1]))
    return grid_nside(run, apart)


def grid_nside(run: Run, widest: float = math.inf) -> int:
    """Return the resolution, in 16..128, with a grid step or less at the furthest face.

    Interpolation between rays is then off by 0.17 standard deviations at the far side
    of a box of 85 cells, by 0.6 with half the resolution. With the published engine,
    which needs a solve for every pixel and distance: 8. Pixels are no wider than
    ``widest`` [rad].
    """
    cheap = run.plan.abilities.cheap_integrals
    nside = 16 if cheap else 8
    width = min(run.plan.grid.spacing) / _furthest_face(run) if cheap else math.inf
    while nside < _FINEST_NSIDE and healpy.nside2resol(nside) > min(width, widest):
        nside *= 2
    return nside


def _furthest_face(run: Run) -> float:
    """Return the distance to the furthest face of the box along an axis [pc]."""
    return float(np.abs([run.plan.grid.lower, run.plan.grid.upper]).max())


def integrated(
    run: Run,
    *,
    nside: int | None = None,
    distances: np.ndarray | None = None,
    estimate: str | None = None,
) -> SkyMaps:
    """Return moments of the integrated extinction by distance and pixel.

    The std is that of the integral, and curves never decrease (`outward_curves`). The
    ``estimate`` is "kriged" or "map", by default the former if the run has kriging.
    Defaults are `ray_distances` and `default_nside`, with values between pixels of
    `grid_nside` where these hold one star at most. Memory: 60 bytes per pixel and
    distance, and that of `ray_integrals`.
    """
    coarse = grid_nside(run) if nside is None else checked_nside(nside)
    nside = default_nside(run) if nside is None else nside
    wanted = ray_distances(run) if distances is None else distances
    edges = checked_distances(run, wanted)
    directions, towards = pixel_directions(nside), pixel_directions(coarse)
    stack, chosen = stack_of(run, estimate)
    if coarse == nside:
        arrays, regression = integrals_along(run, directions, edges, stack)
    else:
        assert run.posterior.residual is not None
        seen = Places.of_points(run.posterior.residual.rays.directions.numpy())
        near = healpy.ang2pix(coarse, seen.l, seen.b, nest=True, lonlat=True)
        stars = np.bincount(near, minlength=len(towards))
        dense = np.repeat(stars > 1, (nside // coarse) ** 2)
        # The neighbours of others reach the first distance.
        dense |= run.box.exits(directions) < 2 * edges[0]
        every = np.concatenate([towards, directions[dense]])
        found, regression = integrals_along(run, every, edges, stack)
        between = PixelRays(
            take=in_memory({f"extinction_{n}": v.T for n, v in found.items()}),
            box=run.box,
            nside=coarse,
            distance=edges,
            arrays=tuple(found),
        )
        rest, arrays = Places.of_points(directions[~dense]), {}
        beyond = edges[:, None] > (1 + 2 * ROUNDING) * run.box.exits(directions[~dense])
        for name, values in found.items():
            arrays[name] = np.empty((len(edges), len(dense)), dtype=np.float32)
            arrays[name][:, dense] = values[:, len(towards) :]
            curves = between.curves(name, rest).T
            arrays[name][:, ~dense] = np.where(beyond, np.nan, curves)
    return SkyMaps(
        distances=edges,
        arrays=arrays,
        last_star=last_star(run, directions),
        meta={**provenance(run), "estimate": chosen, **regression},
    )


def last_star(run: Run, directions: np.ndarray) -> np.ndarray:
    """Return `last_seen` along unit vectors through a run [pc], shape ``(n,)``."""
    return last_seen(run.support_at, run.plan.nested_grids, directions)


def lines_of_sight(
    run: Run,
    directions: Sequence[tuple[float, float]] | None = None,
    points: int = 60,
    *,
    estimate: str | None = None,
) -> list[LineOfSight]:
    """Return cumulative extinction along a few directions, and nearby stars.

    These are the 60 nearest stars, at most 1 deg away. Quantiles are those of the
    posterior of every integral, normal for a density that may be negative; they need
    posterior samples.
    """
    stars = read_stars(run.path / "stars.parquet")
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    chosen = default_directions(stars) if directions is None else list(directions)
    vectors = unit_vectors(*np.array(chosen).T)
    ends = run.box.exits(vectors)
    if not (ends > 0).all():
        raise outside(*chosen[int(np.argmin(ends))])
    edges = np.linspace(0, ends, points + 1)[1:]
    stack, _ = stack_of(run, estimate)
    parts = [
        summaries(moments, quantiles=len(run.posterior.samples) > 0)
        for _, moments, _ in ray_integrals(run, vectors, edges, stack)
    ]
    found = {n: np.concatenate([p[n] for p in parts], axis=1) for n in parts[0]}
    last = last_star(run, vectors)
    # Chords of 1 deg at most: clouds of 5 pc at 300 pc are as wide.
    count, most = min(60, len(stars)), 2 * math.sin(math.radians(1.0) / 2)
    tree = KDTree(unit_vectors(stars.l, stars.b))
    # A list of neighbours keeps the axis of a single star.
    ranks: Any = list(range(1, count + 1))
    chords, nearest = map(np.asarray, tree.query(vectors, k=ranks))
    lines = []
    for i, (lon, lat) in enumerate(chosen):
        close = chords[i] <= most
        near = nearest[i][close]
        chord = chords[i][close].max() if len(near) else most
        radius = math.degrees(2 * math.asin(chord / 2))
        line = LineOfSight(
            l=lon,
            b=lat,
            distance=edges[:, i],
            arrays={name: curves[:, i] for name, curves in found.items()},
            star_distance=stars.distance[near],
            star_extinction=stars.extinction[near],
            star_error=stars.extinction_error[near],
            # Round up, for the figure's title.
            radius=math.ceil(10 * radius - 1e-9) / 10,
            last_star=float(last[i]),
        )
        lines.append(line)
    return lines


def default_directions(stars: Stars) -> list[tuple[float, float]]:
    """Return six directions ``l, b`` [deg] of high extinction, spread over the sky.

    They are directions of stars, ranked by the median extinction of the seven nearest
    on the sky, and at least 30 deg apart (less in a small field).
    """
    assert stars.extinction is not None
    vectors = unit_vectors(stars.l, stars.b)
    _, near = KDTree(vectors).query(vectors, k=min(7, len(stars)))
    around = stars.extinction[near].reshape(len(stars), -1)
    order = np.argsort(np.median(around, axis=1))[::-1]
    separation = math.radians(30)
    chosen: list[int] = []
    while len(chosen) < 6 and separation > 1e-4:
        for index in order:
            if len(chosen) == 6:
                break
            cosines = vectors[chosen] @ vectors[index] if chosen else np.zeros(0)
            if (cosines < math.cos(separation)).all():
                chosen.append(int(index))
        separation /= 2
    return [(float(stars.l[i]), float(stars.b[i])) for i in chosen]
