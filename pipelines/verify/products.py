"""One check for each format of a product: compared with its checksums, and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipelines.base.errors import InputError
from pipelines.catalog.source import reading
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import read_fits
from pipelines.formats.hdus import open_checked
from pipelines.formats.healpix import SHELLS, read_healpix, read_shells
from pipelines.formats.zarr import holds_integrated, read_integrated, read_zarr
from pipelines.storage.atomic import check_manifest
from pipelines.storage.checksum import verify_checksum


def verify_zarr(path: Path) -> str:
    """Check the store of a map; `InputError` if it is altered."""
    content = _describe(read_zarr(path))
    if holds_integrated(path):
        maps = read_integrated(path, verify=False)
        distance = maps.distance
        content += (
            f"; integrated {', '.join(maps.arrays)} in {len(maps.last_star)} pixels to "
            f"{len(distance)} distances of {distance[0]:g} to {distance[-1]:g} pc"
        )
    count = len(check_manifest(path, hashes=False))
    return f"{path}: zarr store, {content}; {count} files match their SHA-256"


def verify_fits(path: Path) -> str:
    """A cube, HEALPix maps or shells; `InputError` if a unit's CHECKSUM differs."""
    with open_checked(path) as hdus:
        units, names = len(hdus), [hdu.name for hdu in hdus]
        is_table = any("TFIELDS" in hdu.header for hdu in hdus)
    if not is_table:
        content = f"FITS cube, {_describe(read_fits(path))}"
    elif SHELLS in names:
        shells = read_shells(path)
        content = (
            f"{len(shells.edges) - 1} HEALPix shells from {shells.edges[0]:g} to "
            f"{shells.edges[-1]:g} pc, nside {shells.nside}"
        )
    else:
        maps = read_healpix(path)
        content = (
            f"HEALPix maps to {len(maps.distances)} distances of "
            f"{maps.distances[0]:g} to {maps.distances[-1]:g} pc, "
            f"{maps.mean.shape[1]} pixels"
        )
    return f"{path}: {content}; {units} units match CHECKSUM"


def verify_parquet(path: Path) -> str:
    """A table of this program; `InputError` if its SHA-256 differs."""
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            raise InputError(
                f"{path} is damaged: it does not begin like a parquet file"
            )
    verify_checksum(path)
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as table:
        rows = sum(batch.num_rows for batch in table.iter_batches())
        groups = table.num_row_groups
    return f"{path}: parquet table, {rows} rows in {groups} row groups, read in full"


def _describe(cube: Cube) -> str:
    shape = " x ".join(str(len(axis)) for axis in (cube.x, cube.y, cube.z))
    missing = {name: int(np.isnan(array).sum()) for name, array in cube.arrays.items()}
    faults = [f", {count} NaN in {name}" for name, count in missing.items() if count]
    return f"{', '.join(cube.arrays)} on {shape} cells (x y z)" + "".join(faults)
