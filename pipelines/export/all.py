"""A run exported to every format asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines.errors import InputError
from pipelines.export.fits import write_fits
from pipelines.export.healpix import write_healpix
from pipelines.export.zarr import write_zarr
from pipelines.products import integrated, map_cube, sky_maps
from pipelines.run import read_run


def export_run(
    run: Path,
    *,
    zarr: Path | None = None,
    fits: Path | None = None,
    healpix: Path | None = None,
    distances: Sequence[float] | None = None,
    nside: int | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write the formats whose path is given; returns what was written.

    Raises
    ------
    InputError
        If the run is incomplete or an output exists, before anything is computed.
    """
    wanted = [path for path in (zarr, fits, healpix) if path is not None]
    for path in wanted:
        if path.exists() and not overwrite:
            raise InputError(
                f"{path} exists: choose another output or pass --overwrite"
            )
    if len({path.resolve() for path in wanted}) < len(wanted):
        raise InputError(
            "two of --zarr, --fits and --healpix name the same path: one would "
            "replace the other"
        )
    fitted = read_run(run)
    if zarr is not None or fits is not None:
        cube = map_cube(fitted)
        if zarr is not None:
            write_zarr(zarr, cube, integrated(fitted), overwrite=overwrite)
        if fits is not None:
            write_fits(fits, cube, overwrite=overwrite)
    if healpix is not None:
        edges = None if distances is None else np.asarray(distances, dtype=np.float64)
        maps = sky_maps(fitted, distances=edges, nside=nside)
        write_healpix(healpix, maps, overwrite=overwrite)
    return wanted
