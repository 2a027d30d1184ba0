"""Cumulative extinction over the whole sky."""

from __future__ import annotations

import healpy
import numpy as np

from pipelines.errors import InputError
from pipelines.export.cube import SkyMaps
from pipelines.products.cumulative import cumulative
from pipelines.products.provenance import provenance
from pipelines.products.reach import default_distances, default_nside, farthest
from pipelines.progress import Progress
from pipelines.run import Run
from pipelines.truth import unit_vectors

# Directions integrated at once: bounds the memory of the projection.
_DIRECTIONS = 16_384


def sky_maps(
    run: Run, *, distances: np.ndarray | None = None, nside: int | None = None
) -> SkyMaps:
    """Cumulative extinction and its std out to a list of distances, HEALPix NESTED.

    The std is that of the integral: samples and sub-grid residual are accumulated
    along every ray before the variance is taken.
    """
    edges = default_distances(run) if distances is None else np.asarray(distances)
    if not len(edges) or not (np.diff(edges) > 0).all() or not edges[0] > 0:
        raise InputError(f"distances must be positive and increasing, got {edges}")
    if edges[-1] > farthest(run):
        raise InputError(
            f"distances go to {edges[-1]:g} pc, where no sight line is still inside "
            f"the map: its furthest corner is {farthest(run):.6g} pc away"
        )
    nside = default_nside(run) if nside is None else nside
    if not healpy.isnsideok(nside, nest=True):
        raise InputError(f"nside must be a power of 2, got {nside}")
    pixels = healpy.nside2npix(nside)
    lon, lat = healpy.pix2ang(nside, np.arange(pixels), nest=True, lonlat=True)
    directions = unit_vectors(lon, lat)
    mean = np.full((len(edges), pixels), np.nan)
    std = np.full((len(edges), pixels), np.nan)
    with Progress(description="sky maps", total=pixels, unit="px") as progress:
        for start in range(0, pixels, _DIRECTIONS):
            part = slice(start, min(start + _DIRECTIONS, pixels))
            mean[:, part], std[:, part] = cumulative(run, directions[part], edges)
            progress.update(part.stop - part.start)
    return SkyMaps(distances=edges, mean=mean, std=std, meta=provenance(run))
