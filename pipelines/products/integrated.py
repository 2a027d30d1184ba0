"""Extinction integrated along the rays of a HEALPix grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.base.progress import Progress, say
from pipelines.cubes.sky import Integrated, SkyMaps
from pipelines.products.cumulative import RayIntegrals, outward_summaries
from pipelines.products.provenance import provenance
from pipelines.products.reach import (
    checked_distances,
    checked_nside,
    default_distances,
    default_nside,
    grid_steps,
    pixel_directions,
    ray_distances,
    ray_nside,
)
from pipelines.run.folder import Run

# Points of rays looked up at once for the support.
_POINTS = 2**22


def integrated(
    run: Run, *, nside: int | None = None, distances: np.ndarray | None = None
) -> Integrated:
    """Moments of the integrated extinction by pixel and distance.

    Mean, std, and of a positive density p2_5 to p97_5 as `outward_summaries` has
    them; the std is that of the integral. Distances are every finest
    grid step out to the box's furthest corner (160 at most) unless given, pixels those
    of `ray_nside`. Memory: 20 bytes per pixel and distance (0.6 GiB at most), and what
    `RayIntegrals` takes. The engine svi pays a solve per pixel and distance: it has
    few of both.
    """
    nside = checked_nside(ray_nside(run) if nside is None else nside)
    chosen = ray_distances(run) if distances is None else distances
    edges = checked_distances(run, chosen)
    directions = pixel_directions(nside)
    arrays, regression = integrals_along(run, directions, edges)
    last = last_star(run, directions)
    return Integrated(
        distance=edges, arrays=arrays, last_star=last, regression=regression
    )


def integrals_along(
    run: Run, directions: np.ndarray, edges: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Moments by name, shape ``(n, e)``, along unit vectors to distances [pc].

    The second result says what `outward_summaries` changed, if anything: the number of
    ``rays`` and of those ``changed``, and of the largest changes of the median along
    them the largest and the median [mag in the run's band].
    """
    asked = RayIntegrals(run, directions, edges)
    arrays: dict[str, np.ndarray] = {}
    changes = np.zeros(len(directions))
    with Progress(
        description="integrated extinction", total=len(directions), unit="px"
    ) as progress:
        for part in asked.parts():
            found, changes[part] = outward_summaries(asked.moments(part))
            for name, value in found.items():
                if name not in arrays:
                    arrays[name] = np.empty(asked.shape[::-1], dtype=np.float32)
                arrays[name][part] = value.T
            progress.update(part.stop - part.start)
    changed = int(np.count_nonzero(changes))
    if not changed:
        return arrays, {}
    largest, middle = float(changes.max()), float(np.median(changes))
    say(
        f"the median extinction fell along {changed:,} of {len(changes):,} rays: "
        f"isotonic regression changes it by {largest:.2g} mag at most, and by "
        f"{middle:.2g} mag along the median ray"
    )
    counts = {"rays": len(changes), "changed": changed}
    sizes = {"largest_change_mag": largest, "median_change_mag": middle}
    return arrays, {"isotonic_regression": {**counts, **sizes}}


def sky_maps(
    run: Run, *, distances: np.ndarray | None = None, nside: int | None = None
) -> SkyMaps:
    """`integrated` at a few distances, with the provenance of the run."""
    distances = default_distances(run) if distances is None else distances
    nside = default_nside(run) if nside is None else nside
    found = integrated(run, nside=nside, distances=distances)
    return SkyMaps.of(found, provenance(run))


def last_star(run: Run, directions: np.ndarray) -> np.ndarray:
    """Where the last stretch with sight lines ends along each ray [pc], shape ``(n,)``.

    Support is looked up in the cell nearest to points every half a grid step, so that
    this is good to a cell. Zero where a ray meets no support.
    """
    ends = grid_steps(run, 0.5)
    ends = np.append(ends, 2 * ends[-1] - ends[-2])
    along = (ends + np.append(0.0, ends[:-1])) / 2
    last = np.zeros(len(directions), dtype=np.float32)
    rows = max(1, _POINTS // len(along))
    for start in range(0, len(directions), rows):
        part = slice(start, start + rows)
        lit = run.support_at(along[:, None] * directions[part, None]) > 0
        final = len(along) - 1 - np.argmax(lit[:, ::-1], axis=1)
        last[part] = np.where(lit.any(axis=1), ends[final], 0.0)
    return last
