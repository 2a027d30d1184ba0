"""Cumulative extinction over the whole sky."""

from __future__ import annotations

import numpy as np

from pipelines.maps.cube import SkyMaps
from pipelines.products.integrated import integrated
from pipelines.products.provenance import provenance
from pipelines.products.reach import default_distances, default_nside
from pipelines.run.folder import Run


def sky_maps(
    run: Run, *, distances: np.ndarray | None = None, nside: int | None = None
) -> SkyMaps:
    """Cumulative extinction and its std out to a list of distances, HEALPix NESTED.

    The std is that of the integral: samples and sub-grid residual are accumulated
    along every ray before the variance is taken. A positive density has quantiles.
    """
    distances = default_distances(run) if distances is None else distances
    nside = default_nside(run) if nside is None else nside
    return SkyMaps.of(
        integrated(run, nside=nside, distances=distances), provenance(run)
    )
