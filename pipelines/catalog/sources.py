"""Source tables of every format, read in batches of rows.

The first bytes determine the format, not the name. CSV, ECSV, FITS, parquet and HDF5
are read in pieces. VOTables and gzipped FITS files are parsed whole: for many millions
of rows request plain FITS or parquet from the archive.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from astropy.io import fits
from astropy.io.votable import parse
from astropy.table import MaskedColumn, Table
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog.tables import native, reading, to_numpy
from pipelines.catalog.units import KINDS, convert

ROWS_PER_BATCH = 1 << 18
_BLOCK_BYTES = 1 << 24
_SHOWN = 30
_NUMBER = re.compile(r"(?!0\d)-?\d*(\.\d*)?([eE][-+]?\d+)?")
_INDEXED = re.compile(r"(?P<base>.+)\[(?P<index>\d+)\]")
NULLS = ("", "null", "NULL", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "None", "--")
"""Marks of a missing value in text."""
# Types of columns of text files by kind; others, such as identifiers, are inferred from
# the first rows.
_ARROW_TYPES = {
    "number": pa.float64(),
    "dex": pa.float64(),
    "value": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "hms": pa.string(),
    "dms": pa.string(),
}

Kinds = Mapping[str, str]
Batches = Iterator[dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as described in the file.

    ``unit`` and ``description`` are those of the file or None; ``width`` is the number
    of values per row of a two-dimensional column, else None.
    """

    unit: str | None = None
    width: int | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file with one table: its ``path`` and its ``columns`` by name, in order.

    ``read`` is the reader of the file's format; see `batches`.
    """

    path: Path
    columns: Mapping[str, ColumnInfo]
    read: Callable[[Kinds], Batches]

    def batches(self, kinds: Kinds) -> Batches:
        """Yield batches of the named columns, shapes ``(n,)`` or ``(n, width)``.

        ``kinds`` maps each column to its required kind; it matters only for text files,
        which have no types. Missing values are masked, None in text, or NaN.
        """
        with reading(self.path, list(self.columns)):
            yield from self.read(kinds)


Described = list[tuple[str, ColumnInfo]]
Opened = tuple[Described, Callable[[Kinds], Batches]]
"""Columns of a file in order, and a reader as for `Source.batches`."""


def _open_parquet(path: Path) -> Opened:
    """Open a parquet file.

    Units are in the fields' metadata (``unit`` or ``units``) or in astropy's header.
    """
    schema = pq.read_schema(path)
    header = (schema.metadata or {}).get(b"table_meta_yaml")
    units = _astropy_units(header.decode().split("\n")) if header else {}
    described: Described = []
    for field in schema:
        own = field.metadata or {}
        stated = (own.get(b"unit") or own.get(b"units") or b"").decode().strip()
        unit = stated or units.get(field.name) or None
        width = getattr(field.type, "list_size", None)
        described.append((field.name, ColumnInfo(unit=unit, width=width)))

    def read(kinds: Kinds) -> Batches:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(kinds)):
                yield {name: to_numpy(batch.column(name)) for name in kinds}

    return described, read


def _open_hdf5(path: Path) -> Opened:
    """Open the one- and two-dimensional data sets of an HDF5 file.

    The name of a column is its path in the file; fields of a compound data set are
    separate columns. Units are the attribute ``unit`` or ``units``, or those in
    astropy's header. Values equal to the attribute ``_FillValue``, or to a data set's
    own fill value if that is not zero, are missing.
    """
    places: dict[str, tuple[str, str]] = {}
    described: Described = []
    units: dict[str, str] = {}
    fills: dict[str, Any] = {}

    def visit(place: str, item: object) -> None:
        if not isinstance(item, h5py.Dataset) or item.ndim not in (1, 2):
            return
        if place.endswith(".__table_column_meta__"):
            lines = [line.decode() for line in np.asarray(item[:])]
            units.update(_astropy_units(lines))
            return
        stated = item.attrs.get("unit", item.attrs.get("units")) or ""
        text = stated.decode() if isinstance(stated, bytes) else stated
        width = item.shape[1] if item.ndim == 2 else None
        fill = item.attrs.get("_FillValue", item.fillvalue)
        # Data sets that state none have zero.
        if item.dtype.kind in "fiu" and np.any(fill):
            fills[place] = fill
        for field in item.dtype.names or ("",):
            places[field or place] = place, field
            unit = None if field else text.strip() or None
            described.append((field or place, ColumnInfo(unit=unit, width=width)))

    with h5py.File(path, "r") as file:
        file.visititems(visit)

    def read(kinds: Kinds) -> Batches:
        with h5py.File(path, "r") as file:
            held: dict[str, Any] = {name: file[places[name][0]] for name in kinds}
            rows = {name: len(dataset) for name, dataset in held.items()}
            if len(set(rows.values())) > 1:
                raise InputError(f"{path}: columns of different lengths: {rows}")
            for start in range(0, max(rows.values(), default=0), ROWS_PER_BATCH):
                piece = slice(start, start + ROWS_PER_BATCH)
                batch = {}
                for name, dataset in held.items():
                    field = places[name][1]
                    values = dataset[field, piece] if field else dataset[piece]
                    batch[name] = native(np.asarray(values))
                    if name in fills:
                        gone = batch[name] == fills[name]
                        batch[name] = np.ma.array(batch[name], mask=gone)
                yield batch

    return [(n, replace(c, unit=units.get(n, c.unit))) for n, c in described], read


def _open_fits(path: Path) -> Opened:
    """Open the one table (binary or ASCII) of a FITS file, mapped into memory."""
    if is_gzipped(path):
        with gzip.open(path, "rb") as stream:
            # Astropy reads the end of a truncated stream as the end of the table.
            stream.seek(0, os.SEEK_END)
    with fits.open(path, memmap=True, character_as_bytes=True) as file:
        kinds = fits.BinTableHDU | fits.TableHDU
        tables: list[Any] = [hdu for hdu in file if isinstance(hdu, kinds)]
        if len(tables) != 1:
            names = ", ".join(repr(hdu.name) for hdu in tables) or "only images"
            raise _not_one(path, f"{len(tables)} tables ({names})")
        options = {"mask_invalid": False, "unit_parse_strict": "silent"}
        table = Table.read(tables[0], format="fits", **options)
        for column in tables[0].columns:
            if column.null is not None and isinstance(table[column.name], MaskedColumn):
                # TNULL is of the stored integers; astropy looks for it in the scaled.
                scale, zero = column.bscale or 1, column.bzero or 0
                found = np.ma.getdata(table[column.name])
                table[column.name].mask = found == column.null * scale + zero
        return _from_astropy(table)


def _open_votable(path: Path) -> Opened:
    """Parse the one table of a VOTable."""
    tables = [table for table in parse(path).iter_tables() if not table.is_empty()]
    if len(tables) != 1:
        raise _not_one(path, f"{len(tables)} tables with rows")
    refuse_duplicates(path, [field.name for field in tables[0].fields])
    return _from_astropy(tables[0].to_table(use_names_over_ids=True))


def _not_one(path: Path, held: str) -> InputError:
    return InputError(
        f"{path} holds {held}, expected one: save the intended one in its own file"
    )


def _from_astropy(table: Table) -> Opened:
    described: Described = []
    columns: Mapping[str, Any] = table.columns
    for name, column in columns.items():
        is_vector = column.ndim > 1 and column.shape[1:] != (1,)
        info = ColumnInfo(
            unit=str(column.unit or "").strip() or None,
            width=int(np.prod(column.shape[1:])) if is_vector else None,
            description=column.description or None,
        )
        described.append((name, info))

    def plain(column: Any) -> np.ndarray:
        """Return a column as an array of native byte order, masked if necessary."""
        masked = np.ma.isMaskedArray(column)
        array = np.ma.asarray(column) if masked else np.array(column)
        if array.dtype.kind == "S":
            array = np.char.rstrip(np.char.decode(array, "utf-8"))
        if array.ndim > 1:
            array = array.reshape(len(array), -1)
            array = array[:, 0] if array.shape[1] == 1 else array
        return native(array)

    def read(kinds: Kinds) -> Batches:
        for start in range(0, len(table), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            yield {name: plain(table[name][rows]) for name in kinds}

    return described, read


def _open_text(path: Path) -> Opened:
    """Open a CSV or ECSV file, gzipped or not, with the Gaia archive's ``null``."""
    gzipped, comments, beginning = is_gzipped(path), [], []
    with (gzip.open if gzipped else open)(path, "rt", encoding="utf-8-sig") as file:
        for line in file:
            if not line.startswith("#"):
                beginning = [line, file.readline()]
                break
            comments.append(line[1:].removeprefix(" ").rstrip("\r\n"))
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    # ECSV has YAML in its comments.
    fields: dict[str, dict[str, str]] = {}
    if comments and comments[0].startswith("%ECSV"):
        try:
            header = get_header_from_yaml(comments[1:])
            delimiter = header.get("delimiter", " ")
            fields = {item["name"]: item for item in header["datatype"]}
        except Exception as error:  # the YAML library's errors have no common base
            raise InputError(f"{path} has a broken ECSV header: {error}") from error

    @contextmanager
    def opened(kinds: Kinds) -> Iterator[Any]:
        types = {n: _ARROW_TYPES[k] for n, k in kinds.items() if k in _ARROW_TYPES}
        # Arrow would read 007 as a number, and some names as dates.
        for name, value in zip(*csv.reader(beginning, delimiter=delimiter)):
            if kinds.get(name) == "identifier" and not _NUMBER.fullmatch(value):
                types[name] = pa.string()
        conversion = pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(kinds),
            null_values=list(NULLS),
            strings_can_be_null=True,
        )
        # With threads errors would not name the row.
        blocks = pacsv.ReadOptions(
            block_size=_BLOCK_BYTES, skip_rows=len(comments), use_threads=False
        )
        parsing = pacsv.ParseOptions(delimiter=delimiter)
        compression = "gzip" if gzipped else None
        with (
            pa.input_stream(str(path), compression=compression) as stream,
            pacsv.open_csv(stream, blocks, parsing, conversion) as reader,
        ):
            yield reader

    def read(kinds: Kinds) -> Batches:
        with opened(kinds) as batches:
            for batch in batches:
                yield {name: to_numpy(batch.column(name)) for name in kinds}

    with opened({}) as reader:
        names = reader.schema.names
    own = [(name, fields.get(name, {})) for name in names]
    return [
        (name, ColumnInfo(unit=f.get("unit"), description=f.get("description")))
        for name, f in own
    ], read


# First bytes and opener of each format.
_FORMATS = (
    ((b"PAR1",), _open_parquet),
    ((b"\x89HDF\r\n\x1a\n",), _open_hdf5),
    ((b"SIMPLE  =",), _open_fits),
    ((b"<?xml", b"<VOTABLE"), _open_votable),
    ((b"",), _open_text),
)


def open_source(path: Path) -> Source:
    """Open one file and read its columns' names, kinds and units.

    Raises
    ------
    InputError
        If the file is empty, truncated or not a table, or if two of its columns have
        one name.
    """
    with (
        reading(path),
        (gzip.open if is_gzipped(path) else open)(path, "rb") as file,
    ):
        start = file.read(512)
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise InputError(f"{path} is empty")
    opener = next(opener for starts, opener in _FORMATS if head.startswith(starts))
    if opener is _open_text and b"\x00" in start:
        raise InputError(
            f"{path} is not a CSV, ECSV, FITS, VOTable, parquet or HDF5 file"
        )
    with reading(path), warnings.catch_warnings():
        # Ignore odd headers, but refuse truncated files.
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*may have been truncated")
        described, read = opener(path)
    refuse_duplicates(path, [name for name, _ in described])
    return Source(path, dict(described), read)


def locate(source: Source, reference: str) -> tuple[str, int | None]:
    """Return the column of a reference, and the index into a two-dimensional one.

    Raises
    ------
    InputError
        If there is no such column (a match in other case is suggested), or the index is
        missing, superfluous or too large.
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


def part_names(name: str, width: int | None) -> list[str]:
    """Return one name for each value of a column in a row."""
    return [name] if width is None else [f"{name}_{index}" for index in range(width)]


def split_columns(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return columns of shape ``(n,)``, several for one of several values per row."""
    columns: dict[str, np.ndarray] = {}
    for name, found in batch.items():
        width = None if found.ndim == 1 else found.shape[1]
        each = [found] if width is None else found.T
        columns |= dict(zip(part_names(name, width), each, strict=True))
    return columns


def describe_absence(source: Source, name: str) -> str:
    """Describe a missing column: one of other case, or the columns there are."""
    near = [other for other in source.columns if other.lower() == name.lower()]
    if near and name not in near:
        return f"has no column {name!r}, but {near[0]!r}: the case must match"
    shown = ", ".join(list(source.columns)[:_SHOWN])
    more = ", ..." if len(source.columns) > _SHOWN else ""
    return f"has no column {name!r}; it has: {shown}{more}"


def read_columns(
    source: Source, requests: Collection[tuple[str, str]]
) -> Iterator[dict[tuple[str, str], np.ndarray]]:
    """Yield batches of the requested columns, each of shape ``(n,)``, by request.

    A request is a column's reference and the kind that is needed
    (`pipelines.catalog.units.convert`).

    Raises
    ------
    InputError
        If a column is not there or not of the kind, or the file breaks off.
    """
    places = {request: locate(source, request[0]) for request in requests}
    # A column may be needed twice: text is then read as the least convertible kind.
    order = sorted(requests, key=lambda request: (KINDS.index(request[1]), request[0]))
    kinds = {places[request][0]: request[1] for request in order}
    # Astropy writes a masked column to parquet and HDF5 as two, values and mask.
    masks = {base: f"{base}.mask" for base in kinds if f"{base}.mask" in source.columns}
    kinds |= dict.fromkeys(masks.values(), "boolean")
    for batch in source.batches(kinds):
        for base, mask in masks.items():
            batch[base] = np.ma.array(batch[base], mask=batch[mask].astype(bool))
        chosen = {}
        for request, (base, index) in places.items():
            column = batch[base] if index is None else batch[base][:, index]
            where = f"{source.path}, column {request[0]!r}"
            chosen[request] = convert(column, request[1], where)
        yield chosen


def refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if a name occurs twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{path} has more than one column {', '.join(map(repr, repeated))}: "
            "rename or drop the others"
        )


def is_gzipped(path: Path) -> bool:
    """Return true if a file has the signature of gzip."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _astropy_units(lines: Sequence[str]) -> dict[str, str]:
    """Return units by column from astropy's YAML header of a table."""
    fields = get_header_from_yaml(lines)["datatype"]
    return {item["name"]: item["unit"] for item in fields if "unit" in item}
