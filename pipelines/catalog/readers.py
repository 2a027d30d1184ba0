"""Source tables of every format, read in batches of rows.

The first bytes determine the format, not the name. CSV, ECSV, FITS, parquet and
HDF5 are read piece by piece; a VOTable is parsed whole, and so is a FITS file that is
compressed as a whole, because their formats leave no other way.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.astropy_reader import FitsSource, VOTableSource
from pipelines.catalog.conversions import KINDS, convert
from pipelines.catalog.hats import hats_files, is_hats
from pipelines.catalog.hdf5_reader import Hdf5Source
from pipelines.catalog.parquet_reader import ParquetSource
from pipelines.catalog.source import Source, is_gzipped, locate, reading
from pipelines.catalog.tables import PROVENANCE, partitions
from pipelines.catalog.text_reader import TextSource


class _Format(NamedTuple):
    """A reader, the names its files have, and the bytes that they begin with."""

    open: Callable[[Path], Source]
    suffixes: tuple[str, ...]
    starts: tuple[bytes, ...] = ()


PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
_FORMATS = {
    "parquet": _Format(ParquetSource, PARQUET_SUFFIXES, (b"PAR1",)),
    "HDF5": _Format(Hdf5Source, (".h5", ".hdf5"), (b"\x89HDF\r\n\x1a\n",)),
    "FITS": _Format(FitsSource, (".fits", ".fit"), (b"SIMPLE  =",)),
    "VOTable": _Format(VOTableSource, (".vot", ".votable"), (b"<?xml", b"<VOTABLE")),
    "text": _Format(TextSource, (".csv", ".ecsv", ".tsv")),
}
OTHER_SUFFIXES = {s for known in _FORMATS.values() for s in known.suffixes} | {".gz"}
OTHER_SUFFIXES -= set(PARQUET_SUFFIXES)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that the sources stand for: folders are read whole, in order.

    Names that begin with a dot or an underscore are markers and not read. A folder in
    the HATS layout is read in the order of the sky (`pipelines.catalog.hats`), one that
    ``ingest`` wrote only if it is whole.

    Raises
    ------
    InputError
        If a path is absent or a folder holds no file.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist")
        if not path.is_dir():
            files.append(path)
        elif (path / PROVENANCE).is_file():
            files += partitions(path)
        else:
            files += hats_files(path) if is_hats(path) else _files_inside(path)
    return files


def _files_inside(folder: Path) -> list[Path]:
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(p.startswith((".", "_")) for p in path.relative_to(folder).parts)
    ]
    if not files:
        raise InputError(f"the folder {folder} holds no file to read")
    return files


def open_source(path: Path) -> Source:
    """Open one file and read its columns' names, kinds and units.

    Raises
    ------
    InputError
        If the file is empty, truncated, no table, or of another format than its name
        says.
    """
    found = _detect_format(path)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    for expected, known in _FORMATS.items():
        if suffix in known.suffixes and expected != found:
            raise InputError(
                f"{path} is named like {expected} but its content is {found}: the "
                "wrong or a broken file"
            )
    return _FORMATS[found].open(path)


def _detect_format(path: Path) -> str:
    with reading(path):
        compressed = is_gzipped(path)
        with (gzip.open if compressed else open)(path, "rb") as file:
            start = file.read(512)
    if not start.strip():
        raise InputError(f"{path} is empty")
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    for name, known in _FORMATS.items():
        if any(head.startswith(each) for each in known.starts):
            if compressed and name in ("parquet", "HDF5"):
                raise InputError(f"{path} is {name} inside gzip: decompress it first")
            return name
    if b"\x00" in start:
        raise InputError(
            f"{path} is no table that is known here: expected CSV, ECSV, FITS, "
            "VOTable, parquet or HDF5"
        )
    return "text"


def read_columns(
    source: Source, requests: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of the requested columns, each of shape ``(n,)``.

    Parameters
    ----------
    requests
        Key in the batch to the column's reference and the kind that is wanted
        (`pipelines.catalog.conversions.convert`).

    Raises
    ------
    InputError
        If a column is not there or not of the kind, or the file breaks off.
    """
    places = {key: locate(source, column) for key, (column, _) in requests.items()}
    # A column may be wanted twice; text is then read as the least convertible kind.
    order = sorted(requests, key=lambda key: KINDS.index(requests[key][1]))
    wanted = {places[key][0]: requests[key][1] for key in order}
    # Astropy writes masked columns to parquet and HDF5 as two, values and mask.
    masks = {
        base: f"{base}.mask" for base in wanted if f"{base}.mask" in source.columns
    }
    wanted |= dict.fromkeys(masks.values(), "boolean")
    for batch in source.batches(wanted):
        for base, mask in masks.items():
            batch[base] = np.ma.array(batch[base], mask=batch[mask].astype(bool))
        chosen = {}
        for key, (base, index) in places.items():
            column = batch[base] if index is None else batch[base][:, index]
            reference, kind = requests[key]
            where = f"{source.path}, column {reference!r}"
            chosen[key] = convert(column, kind, where)
        yield chosen
