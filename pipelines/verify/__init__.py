"""Is a file what was written? One check for every kind of output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as pq
from astropy.io import fits

from pipelines.base.errors import InputError
from pipelines.formats.fits import read_fits
from pipelines.formats.hdus import open_checked
from pipelines.formats.healpix import read_healpix
from pipelines.formats.shells import TABLE, read_shells
from pipelines.formats.zarr import holds_integrated, read_integrated, read_zarr
from pipelines.formats.zarr_arrays import is_samples
from pipelines.maps.cube import Cube
from pipelines.maps.integrated import Integrated
from pipelines.samples import check_samples
from pipelines.saving.checkpoint import (
    check_checkpoint,
    check_checkpoints,
    is_checkpoint,
)
from pipelines.saving.workspace import SUFFIX, Workspace, unfinished
from pipelines.storage.atomic import MANIFEST, MARKER, check_manifest
from pipelines.storage.checksum import verify_checksum
from pipelines.storage.metrics import read_metrics

RUN_RECORD = "run.json"
_REGRESSION_RECORD = "summary.json"
# What a folder is, by the record in it.
_FOLDERS = {
    RUN_RECORD: "run",
    _REGRESSION_RECORD: "run",
    "comparison.json": "comparison",
}
_SUFFIXES = {
    ".zarr": "zarr",
    ".fits": "fits",
    ".parquet": "parquet",
    ".samples": "zarr",
}
_PROVENANCE = b"dustmap"
_KNOWN = (
    "a zarr store, a FITS cube, HEALPix maps, a parquet table, a "
    "checkpoint or the folder of a run or a comparison"
)


def verify(path: str | os.PathLike[str]) -> str:
    """Read an output in full and report what was checked, one line per file.

    A zarr store is compared with its manifest, FITS files with their checksums, a
    parquet table with the SHA-256 in its footer and is read through, and the folder of
    a run, of a map or a regression, is compared with its manifest and every
    export inside is verified. Of a fit that is not finished every checkpoint is read,
    and the iterations it has noted.

    Raises
    ------
    InputError
        If ``path`` is absent, of no known kind, incomplete or altered.
    """
    source = Path(path)
    work = unfinished(source)
    if work is not None and (not source.exists() or source.name.endswith(SUFFIX)):
        return _verify_unfinished(work)
    if not source.exists():
        raise InputError(f"{source} does not exist")
    kind = _kind(source)
    if kind is None and source.suffix in (".csv", ".ecsv", ".png", ".pdf", ".html"):
        raise InputError(
            f"{source} is none of the outputs that can be verified: tables as text, "
            "pictures and pages carry no checks. Name a table .parquet to have some"
        )
    if kind is None:
        raise InputError(f"{source} is none of the outputs: expected {_KNOWN}")
    return _CHECKS[kind](source)


def _kind(path: Path) -> str | None:
    # The name decides where the content no longer can: a damaged export must not
    # pass as some other file.
    return _kind_by_content(path) or _SUFFIXES.get(path.suffix)


def _kind_by_content(path: Path) -> str | None:
    if path.is_dir():
        if (path / "zarr.json").exists():
            return "zarr"
        if is_checkpoint(path):
            return "checkpoint"
        if path.suffix not in (".zarr", ".samples") and _is_run(path):
            return "run"
        return "partitions" if any(path.glob("*.parquet")) else None
    with path.open("rb") as stream:
        magic = stream.read(16)
    if magic.startswith(b"PAR1"):
        return "parquet"
    return "fits" if magic.startswith(b"SIMPLE  =") else None


def _is_run(folder: Path) -> bool:
    """Whether a map's or a regression's run was here, by any file that tells."""
    # Any: without its record, what is left of a run must not pass for plain tables.
    records = (RUN_RECORD, _REGRESSION_RECORD, MANIFEST, MARKER)
    return any((folder / name).exists() for name in records)


def _verify_zarr(path: Path) -> str:
    if is_samples(path):
        return check_samples(path)
    content = _describe(read_zarr(path))
    if holds_integrated(path):
        content += f"; {_describe_rays(read_integrated(path, verify=False))}"
    count = len(check_manifest(path, hashes=False))
    return f"{path}: zarr store, {content}; {count} files match their SHA-256"


def _verify_fits(path: Path) -> str:
    with open_checked(path) as hdus:
        is_table = any(isinstance(hdu, fits.BinTableHDU) for hdu in hdus)
        is_shells = any(hdu.name == TABLE for hdu in hdus)
        units = len(hdus)
    if not is_table:
        cube = read_fits(path)
        return f"{path}: FITS cube, {_describe(cube)}; {units} units match CHECKSUM"
    if is_shells:
        shells = read_shells(path)
        return (
            f"{path}: {len(shells.edges) - 1} HEALPix shells from {shells.edges[0]:g} "
            f"to {shells.edges[-1]:g} pc, nside {shells.nside}; {units} units match "
            "CHECKSUM"
        )
    maps = read_healpix(path)
    return (
        f"{path}: HEALPix maps to {len(maps.distances)} distances of "
        f"{maps.distances[0]:g} to {maps.distances[-1]:g} pc, {maps.mean.shape[1]} "
        f"pixels; {units} units match CHECKSUM"
    )


def _verify_partitions(path: Path) -> str:
    return "\n".join(_verify_parquet(part) for part in sorted(path.glob("*.parquet")))


def _verify_parquet(path: Path) -> str:
    rows = 0
    if _kind_by_content(path) != "parquet":
        raise InputError(f"{path} is damaged: it does not begin like a parquet file")
    verify_checksum(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as table:
            metadata = table.metadata.metadata or {}
            groups = table.num_row_groups
            for group in range(groups):
                for batch in table.iter_batches(row_groups=[group]):
                    rows += batch.num_rows
            expected = table.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is damaged: {error}. Restore it from a copy or write it again"
        ) from error
    if _PROVENANCE not in metadata:
        raise InputError(
            f"{path} has no metadata {_PROVENANCE.decode()!r}: it was not written by "
            "this program; use dustmap ingest"
        )
    if rows != expected:
        raise InputError(f"{path} announces {expected} rows and holds {rows}")
    return f"{path}: parquet table, {rows} rows in {groups} row groups, read in full"


def _verify_run(path: Path) -> str:
    listed = check_manifest(path, allow_extra=True)
    records = [name for name in _FOLDERS if name in listed]
    what = _FOLDERS[records[0]] if records else "folder of partitions"
    lines = [f"{path}: {what}, {len(listed)} files match their SHA-256"]
    return "\n".join(lines + [verify(item) for item in _exports(path)])


def _verify_unfinished(work: Workspace) -> str:
    lines = [f"{work.output}: a fit that is not finished, in {work.folder}"]
    lines += check_checkpoints(work.checkpoints)
    if work.metrics.is_file():
        try:
            count = len(read_metrics(work.metrics))
        except ValueError as error:
            raise InputError(str(error)) from error
        lines.append(f"{work.metrics}: {count} records")
    return "\n".join(lines)


def _exports(folder: Path) -> Iterator[Path]:
    for item in sorted(folder.iterdir()):
        if item.name.startswith("."):
            continue
        if _kind(item) is not None:
            yield item
        elif item.is_dir():
            yield from _exports(item)


def _describe_rays(maps: Integrated) -> str:
    distance = maps.distance
    return (
        f"integrated {', '.join(maps.arrays)} in {len(maps.last_star)} pixels to "
        f"{len(distance)} distances of {distance[0]:g} to {distance[-1]:g} pc"
    )


def _describe(cube: Cube) -> str:
    shape = " x ".join(str(len(axis)) for axis in (cube.x, cube.y, cube.z))
    faults = [
        f"{int(np.isnan(array).sum())} NaN in {name}"
        for name, array in cube.arrays.items()
        if np.isnan(array).any()
    ]
    return f"{', '.join(cube.arrays)} on {shape} cells (x y z)" + "".join(
        f", {fault}" for fault in faults
    )


_CHECKS = {
    "checkpoint": check_checkpoint,
    "zarr": _verify_zarr,
    "fits": _verify_fits,
    "parquet": _verify_parquet,
    "partitions": _verify_partitions,
    "run": _verify_run,
}
