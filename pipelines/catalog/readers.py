"""Source tables of every format, read in batches of rows.

The format is told by the first bytes, not by the name. CSV, ECSV, FITS, parquet and
HDF5 are read piece by piece; a VOTable is parsed whole, and so is a FITS file that is
compressed as a whole, because their formats leave no other way.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.fits_reader import FitsSource
from pipelines.catalog.hats import hats_files, is_hats
from pipelines.catalog.hdf5_reader import Hdf5Source
from pipelines.catalog.parquet_reader import ParquetSource
from pipelines.catalog.source import ColumnInfo, Source
from pipelines.catalog.tables import PROVENANCE, partitions
from pipelines.catalog.text_reader import TextSource
from pipelines.catalog.votable_reader import VOTableSource

SUFFIXES = {
    ".csv": "text",
    ".ecsv": "text",
    ".tsv": "text",
    ".fits": "FITS",
    ".fit": "FITS",
    ".vot": "VOTable",
    ".votable": "VOTable",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".pq": "parquet",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
}
OPENERS: dict[str, Callable[[Path], Source]] = {
    "text": TextSource,
    "FITS": FitsSource,
    "VOTable": VOTableSource,
    "parquet": ParquetSource,
    "HDF5": Hdf5Source,
}
_INDEXED = re.compile(r"(?P<base>.+)\[(?P<index>\d+)\]")


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
            continue
        if (path / PROVENANCE).is_file():
            files += partitions(path)
            continue
        if is_hats(path):
            files += hats_files(path)
            continue
        inside = [
            item
            for item in sorted(path.rglob("*"))
            if item.is_file() and not _hidden(item.relative_to(path))
        ]
        if not inside:
            raise InputError(f"the folder {path} holds no file to read")
        files += inside
    return files


def open_source(path: Path) -> Source:
    """Open one file and read its columns' names, kinds and units.

    Raises
    ------
    InputError
        If the file is empty, truncated, no table, or of another format than its name
        says.
    """
    found = detect_format(path)
    suffixes = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    expected = SUFFIXES.get(suffixes[-1]) if suffixes else None
    if expected is not None and expected != found:
        raise InputError(
            f"{path} is named like {expected} but its content is {found}: the wrong "
            "or a broken file"
        )
    return OPENERS[found](path)


def detect_format(path: Path) -> str:
    """Return the key of `OPENERS` that the first bytes of a file call for."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
        compressed = start.startswith(b"\x1f\x8b")
        if compressed:
            with gzip.open(path, "rb") as file:
                start = file.read(512)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not start.strip():
        raise InputError(f"{path} is empty")
    found = _format_of(start, path)
    if compressed and found in ("parquet", "HDF5"):
        raise InputError(f"{path} is {found} inside gzip: decompress it first")
    return found


def _format_of(start: bytes, path: Path) -> str:
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return "HDF5"
    if start.startswith(b"SIMPLE  ="):
        return "FITS"
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"<?xml") or head[:8].upper() == b"<VOTABLE":
        return "VOTable"
    if b"\x00" in start:
        raise InputError(
            f"{path} is no table that is known here: expected CSV, ECSV, FITS, "
            "VOTable, parquet or HDF5"
        )
    return "text"


def locate(source: Source, reference: str) -> tuple[str, int | None]:
    """Return the column a reference names, and the index into a two-dimensional one.

    Raises
    ------
    InputError
        If there is no such column (the nearest by case is named), or the index is
        missing, not wanted or too large.
    """
    base, index = reference, None
    match = _INDEXED.fullmatch(reference)
    if match and reference not in source.columns:
        base, index = match["base"], int(match["index"])
    info = source.columns.get(base)
    if info is None:
        raise InputError(f"{source.path} {describe_absence(source, base)}")
    if info.width is None and index is not None:
        raise InputError(f"{source.path}: column {base!r} has one value per row")
    if info.width is not None and (index is None or index >= info.width):
        raise InputError(
            f"{source.path}: column {base!r} has {info.width} values per row: name "
            f"one, {base}[0] to {base}[{info.width - 1}], not {reference!r}"
        )
    return base, index


def describe_absence(source: Source, name: str) -> str:
    """Say that a column is missing, and which ones are there."""
    near = [other for other in source.columns if other.lower() == name.lower()]
    if near:
        return f"has no column {name!r}, but {near[0]!r}: the case must match"
    shown = ", ".join(list(source.columns)[:30])
    more = ", ..." if len(source.columns) > 30 else ""
    return f"has no column {name!r}; it has: {shown}{more}"


def read_columns(
    source: Source, requests: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of the requested columns, each of shape ``(n,)``.

    Parameters
    ----------
    requests
        Key in the batch to the column's reference and the kind that is wanted:
        ``number`` (float64, NaN where missing), ``value`` (the same, booleans as 0
        and 1), ``boolean``, ``string`` (object, None where missing), ``identifier``
        (int64 or strings, masked) or ``any``.

    Raises
    ------
    InputError
        If a column is not there or not of the kind, or the file breaks off.
    """
    places = {
        key: locate(source, reference) for key, (reference, _) in requests.items()
    }
    # A column may be wanted twice; text is then read as the least convertible kind.
    rank = list(CONVERSIONS).index
    order = sorted(requests, key=lambda key: rank(requests[key][1]))
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
            chosen[key] = CONVERSIONS[kind](column, where)
        yield chosen


def _number(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind not in "fiu":
        raise InputError(f"{where} holds {_say(column)}, expected numbers")
    values = np.ma.getdata(column).astype(np.float64)
    values[np.ma.getmaskarray(column)] = np.nan
    return values


def _value(column: np.ndarray, where: str) -> np.ndarray:
    return _number(column.astype(np.int8) if column.dtype == bool else column, where)


def _string(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind not in "OUS":
        raise InputError(f"{where} holds {_say(column)}, but is compared with text")
    return _text(column)


def _identifier(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind == "f":
        raise InputError(
            f"{where} is stored as floating point, which cannot hold a 64-bit "
            "identifier exactly: write it as integer or text"
        )
    if column.dtype.kind in "OUS":
        text = _text(column)
        return np.ma.array(text, mask=[item is None for item in text])
    if column.dtype.kind not in "iu":
        raise InputError(f"{where} holds {_say(column)}, expected integers or text")
    if column.dtype == np.uint64 and len(column) and column.max() > 2**63 - 1:
        raise InputError(f"{where} exceeds 2^63: write it as text")
    return np.ma.array(column).astype(np.int64)


def _any(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind == "f":
        return _number(column, where)
    return np.ma.array(_text(column)) if column.dtype.kind in "OUS" else column


def _text(column: np.ndarray) -> np.ndarray:
    text = np.empty(len(column), dtype=object)
    missing = np.ma.getmaskarray(column)
    for row, item in enumerate(np.ma.getdata(column)):
        if item is not None and not missing[row]:
            text[row] = item.decode() if isinstance(item, bytes) else str(item)
    return text


def _say(column: np.ndarray) -> str:
    names = {"b": "booleans", "O": "text", "U": "text", "S": "text", "c": "complex"}
    return names.get(column.dtype.kind, str(column.dtype))


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


CONVERSIONS: dict[str, Callable[[np.ndarray, str], np.ndarray]] = {
    "any": _any,
    "number": _number,
    "value": _value,
    "boolean": _value,
    "string": _string,
    "identifier": _identifier,
}

__all__ = [
    "ColumnInfo",
    "Source",
    "describe_absence",
    "detect_format",
    "find_files",
    "locate",
    "open_source",
    "read_columns",
]
