"""Is a file what was written? One check for every kind of output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.saving.state_file import check_state, check_states, is_state
from pipelines.saving.workspace import SUFFIX, Workspace, unfinished
from pipelines.storage.atomic import MANIFEST, MARKER, check_manifest
from pipelines.storage.metrics import read_metrics
from pipelines.verify.products import verify_fits, verify_parquet, verify_zarr

# What a folder is, by the record in it.
_FOLDERS = {
    "run.json": "run",
    "summary.json": "run",
    "comparison.json": "comparison",
}
_SUFFIXES = {
    ".zarr": "zarr",
    ".fits": "fits",
    ".parquet": "parquet",
    ".samples": "zarr",
}
_WITHOUT_CHECKS = (".csv", ".ecsv", ".png", ".pdf", ".html")


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
    if kind is None and source.suffix in _WITHOUT_CHECKS:
        raise InputError(
            f"{source} is none of the outputs that can be verified: tables as text, "
            "pictures and pages carry no checks. Name a table .parquet to have some"
        )
    if kind is None:
        raise InputError(
            f"{source} is none of the outputs: expected a zarr store, a FITS cube, "
            "HEALPix maps, a parquet table, a checkpoint or the folder of a run or a "
            "comparison"
        )
    return _CHECKS[kind](source)


def _kind(path: Path) -> str | None:
    # The name decides where the content no longer can: a damaged export must not
    # pass as some other file.
    return _kind_by_content(path) or _SUFFIXES.get(path.suffix)


def _kind_by_content(path: Path) -> str | None:
    if path.is_dir():
        if (path / "zarr.json").exists():
            return "zarr"
        # Any file that a run has: without its record, what is left of a run must not
        # pass for plain tables.
        records = ("run.json", "summary.json", MANIFEST, MARKER)
        is_run = any((path / name).exists() for name in records)
        if is_run and path.suffix not in (".zarr", ".samples"):
            return "run"
        return "partitions" if any(path.glob("*.parquet")) else None
    if is_state(path):
        return "checkpoint"
    with path.open("rb") as stream:
        magic = stream.read(16)
    if magic.startswith(b"PAR1"):
        return "parquet"
    return "fits" if magic.startswith(b"SIMPLE  =") else None


def _verify_partitions(path: Path) -> str:
    return "\n".join(verify_parquet(part) for part in sorted(path.glob("*.parquet")))


def _verify_run(path: Path) -> str:
    listed = check_manifest(path, allow_extra=True)
    what = next((_FOLDERS[n] for n in _FOLDERS if n in listed), "folder of partitions")
    lines = [f"{path}: {what}, {len(listed)} files match their SHA-256"]
    return "\n".join(lines + [verify(item) for item in _exports(path)])


def _verify_unfinished(work: Workspace) -> str:
    lines = [f"{work.output}: a fit that is not finished, in {work.folder}"]
    lines += check_states(work.folder)
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


_CHECKS = {
    "checkpoint": check_state,
    "zarr": verify_zarr,
    "fits": verify_fits,
    "parquet": verify_parquet,
    "partitions": _verify_partitions,
    "run": _verify_run,
}
