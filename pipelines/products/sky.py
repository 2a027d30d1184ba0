"""Cumulative extinction over the whole sky."""

from __future__ import annotations

import numpy as np

from pipelines.export.cube import SkyMaps
from pipelines.products.cumulative import RayIntegrals
from pipelines.products.integrated import last_star
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
    along every ray before the variance is taken. Of a positive density with its median.
    """
    chosen = default_distances(run) if distances is None else distances
    edges = checked_distances(run, chosen)
    nside = checked_nside(default_nside(run) if nside is None else nside)
    directions = pixel_directions(nside)
    asked = RayIntegrals(run, directions, edges)
    mean, std, median = (np.full(asked.shape, np.nan) for _ in range(3))
    positive = False
    with Progress(description="sky maps", total=mean.shape[1], unit="px") as progress:
        for part in asked.parts():
            moments = asked.moments(part)
            mean[:, part], std[:, part] = moments.mean.numpy(), moments.std.numpy()
            positive = moments.log_mean is not None
            if positive:
                median[:, part] = moments.quantile(0.5).numpy()
            progress.update(part.stop - part.start)
    return SkyMaps(
        distances=edges,
        mean=mean,
        std=std,
        median=median if positive else None,
        last_star=last_star(run, directions),
        meta=provenance(run),
    )
