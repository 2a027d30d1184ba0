"""Checks of outputs: is a file what was written?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipelines.base.errors import InputError
from pipelines.catalog.tables import reading
from pipelines.cubes.cube import Cube
from pipelines.formats.fits import open_checked, read_fits
from pipelines.formats.healpix import read_healpix
from pipelines.formats.zarr import open_cube, read_integrated, read_zarr
from pipelines.maps.opening import form_of
from pipelines.saving.state_file import check_state
from pipelines.saving.workspace import STATE, SUFFIX, unfinished
from pipelines.storage.atomic import MANIFEST, MARKER, AnyPath, check_manifest
from pipelines.storage.digests import verify_checksum

# Kinds of folders, by the record in them.
_RECORDS = {"run.json": "run", "summary.json": "run", "comparison.json": "comparison"}
_SUFFIXES = {".zarr": "zarr", ".fits": "fits", ".parquet": "parquet"}


def verify(path: AnyPath) -> str:
    """Read an output in full and report what was checked, one line per file.

    A zarr store is compared with its manifest, FITS files with their checksums, a
    parquet table with the SHA-256 in its footer and is read through, and the folder of
    a run, of a map or a regression, is compared with its manifest and every
    export inside is verified. Of a fit that is not finished the checkpoint is read.

    Raises `InputError` if ``path`` is absent, of no known kind, incomplete or altered.
    """
    source = Path(path)
    work = unfinished(source)
    if work is not None and (not source.exists() or source.name.endswith(SUFFIX)):
        lines = [f"{work.output}: a fit that is not finished, in {work.folder}"]
        if work.state.is_file():
            lines.append(check_state(work.state))
        return "\n".join(lines)
    if not source.exists():
        raise InputError(f"{source} does not exist")
    kind = _kind(source)
    if kind is None:
        raise InputError(
            f"{source} is none of the outputs that can be verified: a zarr store, FITS "
            "or HEALPix file, parquet table, checkpoint, or the folder of a run or a "
            "comparison (tables as text, pictures and pages carry no checks)"
        )
    return _CHECKS[kind](source)


def _kind(path: Path) -> str | None:
    """Return the kind of an output by its content, or else by its name.

    The name decides where the content no longer can: a damaged export must not pass as
    some other file.
    """
    by_name = _SUFFIXES.get(path.suffix)
    if path.is_dir():
        form = form_of(path)
        if form == "store":
            return "zarr"
        # Any file that a run has: without its record, what is left of a run must not
        # pass for plain tables.
        records = ("run.json", "summary.json", MANIFEST, MARKER)
        if path.suffix != ".zarr" and any((path / name).exists() for name in records):
            return "run"
        return "partitions" if form == "stars" else by_name
    if path.name == STATE:
        return "checkpoint"
    with path.open("rb") as stream:
        magic = stream.read(9)
    if magic.startswith(b"PAR1"):
        return "parquet"
    return "fits" if magic == b"SIMPLE  =" else by_name


def _verify_run(path: Path) -> str:
    """Compare a folder with its manifest, and verify every export inside."""
    listed = check_manifest(path, allow_extra=True)
    kinds = [_RECORDS[name] for name in _RECORDS if name in listed]
    what = kinds[0] if kinds else "folder of partitions"
    first = f"{path}: {what}, {len(listed)} files match their SHA-256"
    return "\n".join([first, *map(verify, _exports(path))])


def _exports(folder: Path) -> Iterator[Path]:
    """Find the outputs in a run's folder and in plain folders inside it."""
    for item in sorted(folder.glob("[!.]*")):
        if _kind(item) is not None:
            yield item
        elif item.is_dir():
            yield from _exports(item)


def _verify_zarr(path: Path) -> str:
    """Compare a store with its manifest, and describe it."""
    content = _describe(read_zarr(path))
    if "integrated" in open_cube(path)[1]:
        maps = read_integrated(path, verify=False)
        content += f"; extinctions to {len(maps.distances)} distances"
    count = len(check_manifest(path, hashes=False))
    return f"{path}: zarr store, {content}; {count} files match their SHA-256"


def _verify_fits(path: Path) -> str:
    """Compare a cube or HEALPix maps with their CHECKSUMs."""
    with open_checked(path) as hdus:
        units = len(hdus)
        is_table = any("TFIELDS" in hdu.header for hdu in hdus)
    if not is_table:
        content = f"FITS cube, {_describe(read_fits(path))}"
    else:
        content = f"HEALPix maps to {len(read_healpix(path).distances)} distances"
    return f"{path}: {content}; {units} units match CHECKSUM"


def _verify_parquet(path: Path) -> str:
    """Compare a table of this program with its SHA-256, and read it."""
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


_CHECKS = {
    "zarr": _verify_zarr,
    "fits": _verify_fits,
    "parquet": _verify_parquet,
    "partitions": lambda path: "\n".join(
        map(_verify_parquet, sorted(path.glob("[!.]*.parquet")))
    ),
    "checkpoint": check_state,
    "run": _verify_run,
}
