"""Cumulative extinction over the whole sky."""

from __future__ import annotations

import numpy as np

from pipelines.export.cube import SkyMaps
from pipelines.products.cumulative import RayIntegrals
from pipelines.products.provenance import provenance
from pipelines.products.reach import (
    checked_distances,
    checked_nside,
    default_distances,
    default_nside,
    pixel_directions,
)
from pipelines.progress import Progress
from pipelines.run import Run


def sky_maps(
    run: Run, *, distances: np.ndarray | None = None, nside: int | None = None
) -> SkyMaps:
    """Cumulative extinction and its std out to a list of distances, HEALPix NESTED.

    The std is that of the integral: samples and sub-grid residual are accumulated
    along every ray before the variance is taken.
    """
    chosen = default_distances(run) if distances is None else distances
    edges = checked_distances(run, chosen)
    nside = checked_nside(default_nside(run) if nside is None else nside)
    asked = RayIntegrals(run, pixel_directions(nside), edges)
    mean, std = np.full(asked.shape, np.nan), np.full(asked.shape, np.nan)
    with Progress(description="sky maps", total=mean.shape[1], unit="px") as progress:
        for part in asked.parts():
            moments = asked.moments(part)
            mean[:, part], std[:, part] = moments.mean.numpy(), moments.std.numpy()
            progress.update(part.stop - part.start)
    return SkyMaps(distances=edges, mean=mean, std=std, meta=provenance(run))
