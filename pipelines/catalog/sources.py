"""Source tables of every format, read in batches of rows.

The first bytes determine the format, not the name. CSV, ECSV, FITS, parquet and HDF5
are read piece by piece. A VOTable is parsed whole, and so is a FITS file inside gzip:
for many millions of rows ask the archive for plain FITS or parquet.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from astropy.io import fits
from astropy.io.votable import parse
from astropy.table import Table
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog.tables import METADATA_KEY, native, reading, to_numpy
from pipelines.catalog.units import KINDS, convert

ROWS_PER_BATCH = 1 << 18
_BLOCK_BYTES = 1 << 24
_SHOWN = 30
_INDEXED = re.compile(r"(?P<base>.+)\[(?P<index>\d+)\]")
# In text: what marks a missing value, and how identifiers are written.
_NULLS = ["", "null", "NULL", "nan", "NaN", "NAN"]
_INTEGER = r"^\s*-?(0|[1-9][0-9]*)\s*$"
_DECIMAL = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
# Columns of text files have no types: those that a kind is read as.
_ARROW_TYPES = {
    "number": pa.float64(),
    "value": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "hms": pa.string(),
    "dms": pa.string(),
    "identifier": pa.string(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as the file describes it.

    ``unit`` and ``description`` are as written there or None; ``width`` is the number
    of values per row of a two-dimensional column, None for one.
    """

    unit: str | None = None
    width: int | None = None
    description: str | None = None


class Source(ABC):
    """One file with a table in it: its ``path`` and its ``columns`` by name, in order.

    A format states the ``suffixes`` of its files and the bytes they begin with
    (``starts``), reads the header in `_describe` and the rows in `_read`.

    Raises
    ------
    InputError
        If the file is broken, or two of its columns have one name.
    """

    title: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    starts: ClassVar[tuple[bytes, ...]] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            described = list(self._describe())
        refuse_duplicates(path, [name for name, _ in described])
        self.columns: Mapping[str, ColumnInfo] = dict(described)

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield some rows of the named columns, shapes ``(n,)`` or ``(n, width)``.

        ``kinds`` says as what each column is needed; only text, which has no types of
        its own, depends on it. Missing values are masked, None in text, or NaN.
        """
        with reading(self.path, list(self.columns)):
            yield from self._read(kinds)

    @abstractmethod
    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]: ...

    @abstractmethod
    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]: ...


class ParquetSource(Source):
    """One parquet file.

    Units are in the fields' metadata (``unit`` or ``units``) or in the description
    that astropy or this program writes.
    """

    title, suffixes, starts = "parquet", (".parquet", ".parq", ".pq"), (b"PAR1",)

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        schema = pq.read_schema(self.path)
        metadata = schema.metadata or {}
        if b"table_meta_yaml" in metadata:
            units = _astropy_units(metadata[b"table_meta_yaml"].decode().split("\n"))
        else:
            units = json.loads(metadata.get(METADATA_KEY, b'{"units": {}}'))["units"]
        for field in schema:
            own = field.metadata or {}
            stated = (own.get(b"unit") or own.get(b"units") or b"").decode().strip()
            is_vector = pa.types.is_fixed_size_list(field.type)
            yield (
                field.name,
                ColumnInfo(
                    unit=stated or units.get(field.name) or None,
                    width=field.type.list_size if is_vector else None,
                ),
            )

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        with pq.ParquetFile(self.path, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(kinds)):
                yield {name: to_numpy(batch.column(name)) for name in kinds}


class Hdf5Source(Source):
    """The one- and two-dimensional data sets of an HDF5 file, or a compound table.

    A column is named by its path in the file; the fields of a compound data set are
    columns by themselves. Units are the attribute ``unit`` or ``units``, or those that
    astropy wrote beside its tables.
    """

    title, suffixes, starts = "HDF5", (".h5", ".hdf5"), (b"\x89HDF\r\n\x1a\n",)

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        self._places: dict[str, tuple[str, str | None, int]] = {}
        found: list[tuple[str, str | None, int | None]] = []
        described: dict[str, str] = {}

        def visit(place: str, item: object) -> None:
            if not isinstance(item, h5py.Dataset) or item.ndim not in (1, 2):
                return
            if place.endswith(".__table_column_meta__"):
                lines = [line.decode() for line in np.asarray(item[:])]
                described.update(_astropy_units(lines))
                return
            stated = item.attrs.get("unit", item.attrs.get("units"))
            text = stated.decode() if isinstance(stated, bytes) else stated
            width = item.shape[1] if item.ndim == 2 else None
            for field in item.dtype.names or (None,):
                name = place if field is None else field
                self._places[name] = (place, field, item.shape[0])
                unit = text.strip() if text and field is None else None
                found.append((name, unit or None, width))

        with h5py.File(self.path, "r") as file:
            file.visititems(visit)
        if not found:
            raise InputError(f"{self.path} holds no data set of one or two dimensions")
        for name, unit, width in found:
            yield name, ColumnInfo(unit=described.get(name, unit), width=width)

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        rows = {name: self._places[name][2] for name in kinds}
        if len(set(rows.values())) > 1:
            raise InputError(f"{self.path}: columns of different lengths: {rows}")
        with h5py.File(self.path, "r") as file:
            for start in range(0, max(rows.values(), default=0), ROWS_PER_BATCH):
                piece = slice(start, start + ROWS_PER_BATCH)
                batch = {}
                for name in kinds:
                    place, field, _ = self._places[name]
                    dataset: Any = file[place]
                    values = dataset[piece] if field is None else dataset[field, piece]
                    batch[name] = native(np.asarray(values))
                yield batch


class _AstropySource(Source):
    """A table that astropy holds; a format's `_load` reads the file's one table."""

    _table: Table | None

    @abstractmethod
    def _load(self) -> Table: ...

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        self._table = self._quietly()
        columns: Mapping[str, Any] = self._table.columns
        for name, column in columns.items():
            unit = str(column.unit or "").strip() or None
            is_vector = column.ndim > 1 and column.shape[1:] != (1,)
            width = int(np.prod(column.shape[1:])) if is_vector else None
            text = column.description or None
            yield name, ColumnInfo(unit=unit, width=width, description=text)

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        # It is let go after the last row, since it may be as large as the file.
        table = self._quietly() if self._table is None else self._table
        self._table = None
        for start in range(0, len(table), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            yield {name: self._plain(table[name][rows]) for name in kinds}

    def _plain(self, column: Any) -> np.ndarray:
        """Return a column as an array of native byte order, masked if values are."""
        masked = np.ma.isMaskedArray(column)
        array = np.ma.asarray(column) if masked else np.array(column)
        if array.dtype.kind == "S":
            array = np.char.rstrip(np.char.decode(array, "utf-8"))
        if array.ndim > 1:
            array = array.reshape(len(array), -1)
            array = array[:, 0] if array.shape[1] == 1 else array
        return native(array)

    def _quietly(self) -> Table:
        with warnings.catch_warnings():
            # Odd headers are no reason to stop, a truncated file is.
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", ".*may have been truncated")
            return self._load()

    def _not_one(self, held: str) -> InputError:
        return InputError(
            f"{self.path} holds {held}, expected one: save the one that is meant in "
            "its own file"
        )


class FitsSource(_AstropySource):
    """The one table (binary or ASCII) of a FITS file, mapped into memory."""

    title, suffixes, starts = "FITS", (".fits", ".fit"), (b"SIMPLE  =",)

    def _load(self) -> Table:
        if is_gzipped(self.path):
            with gzip.open(self.path, "rb") as stream:
                # Astropy takes the end of a truncated stream for the end of the table.
                stream.seek(0, os.SEEK_END)
        with fits.open(self.path, memmap=True, character_as_bytes=True) as file:
            kinds = fits.BinTableHDU | fits.TableHDU
            tables: list[Any] = [hdu for hdu in file if isinstance(hdu, kinds)]
            if len(tables) != 1:
                names = ", ".join(repr(hdu.name) for hdu in tables) or "only images"
                raise self._not_one(f"{len(tables)} tables ({names})")
            refuse_duplicates(self.path, tables[0].columns.names)
            return Table.read(
                tables[0], format="fits", mask_invalid=False, unit_parse_strict="silent"
            )


class VOTableSource(_AstropySource):
    """The one table of a VOTable."""

    title, suffixes = "VOTable", (".vot", ".votable")
    starts = (b"<?xml", b"<VOTABLE")

    def _load(self) -> Table:
        found = parse(self.path).iter_tables()
        tables = [table for table in found if not table.is_empty()]
        if len(tables) != 1:
            raise self._not_one(f"{len(tables)} tables with rows")
        refuse_duplicates(self.path, [field.name for field in tables[0].fields])
        return tables[0].to_table(use_names_over_ids=True)


class TextSource(Source):
    """A CSV or ECSV file, gzipped or not, with the Gaia archive's ``null``."""

    title, suffixes = "text", (".csv", ".ecsv", ".tsv")

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        comments = []
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        self._delimiter = "\t" if ".tsv" in suffixes else ","
        opener = gzip.open if is_gzipped(self.path) else open
        with opener(self.path, "rt", encoding="utf-8-sig") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                comments.append(line[1:].removeprefix(" ").rstrip("\r\n"))
        self._comments = len(comments)
        # ECSV has YAML in its comments.
        self._fields: dict[str, dict[str, str]] = {}
        if comments and comments[0].startswith("%ECSV"):
            try:
                header = get_header_from_yaml(comments[1:])
                fields = header["datatype"]
                assert all({"name", "datatype"} <= set(item) for item in fields)
            except Exception as error:  # the YAML library's errors have no common base
                raise InputError(
                    f"{self.path} has a broken ECSV header: {error}"
                ) from error
            self._delimiter = header.get("delimiter", " ")
            self._fields = {item["name"]: item for item in fields}
        with self._reader({}) as reader:
            names = reader.schema.names
        if self._fields and list(self._fields) != names:
            raise InputError(
                f"{self.path}: the ECSV header describes {list(self._fields)} but the "
                f"columns are {names}"
            )
        for name in names:
            own = self._fields.get(name, {})
            unit, text = own.get("unit"), own.get("description")
            yield name, ColumnInfo(unit=unit, description=text)

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        types = {n: _ARROW_TYPES[k] for n, k in kinds.items() if k in _ARROW_TYPES}
        # The first batch decides whether identifiers are integers or names.
        integers: dict[str, bool] = {}
        with self._reader(types, list(kinds)) as reader:
            for batch in reader:
                columns = {name: batch.column(name) for name in kinds}
                for name in (n for n, kind in kinds.items() if kind == "identifier"):
                    if name not in integers:
                        integers[name] = self._holds_integers(name, columns[name])
                    if integers[name]:
                        trimmed = pc.call_function(
                            "utf8_trim_whitespace", [columns[name]]
                        )
                        columns[name] = pc.cast(trimmed, pa.int64())
                yield {name: to_numpy(column) for name, column in columns.items()}

    def _holds_integers(self, name: str, text: pa.Array) -> bool:
        declared = self._fields.get(name, {}).get("datatype", "")
        whole = _all_match(text, _INTEGER)
        decimal = not declared and not whole and _all_match(text, _DECIMAL)
        if declared.startswith("float") or decimal:
            raise InputError(
                f"{self.path}, column {name!r} holds identifiers as floating point "
                f"(like {text.drop_null()[0]}): write them as integers or text"
            )
        return whole

    @contextmanager
    def _reader(
        self, types: Mapping[str, pa.DataType], names: list[str] | None = None
    ) -> Iterator[Any]:
        read = pacsv.ReadOptions(block_size=_BLOCK_BYTES, skip_rows=self._comments)
        conversion = pacsv.ConvertOptions(
            column_types=dict(types),
            include_columns=names,
            null_values=_NULLS,
            strings_can_be_null=True,
        )
        parsing = pacsv.ParseOptions(delimiter=self._delimiter)
        compression = "gzip" if is_gzipped(self.path) else None
        with (
            pa.input_stream(str(self.path), compression=compression) as stream,
            pacsv.open_csv(stream, read, parsing, conversion) as reader,
        ):
            yield reader


FORMATS: tuple[type[Source], ...] = (
    ParquetSource,
    Hdf5Source,
    FitsSource,
    VOTableSource,
    TextSource,
)


def open_source(path: Path) -> Source:
    """Open one file and read its columns' names, kinds and units.

    Raises
    ------
    InputError
        If the file is empty, truncated, no table, or of another format than its name
        says.
    """
    with reading(path):
        compressed = is_gzipped(path)
        with (gzip.open if compressed else open)(path, "rb") as file:
            start = file.read(512)
    if not start.strip():
        raise InputError(f"{path} is empty")
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    known = (form for form in FORMATS if form.starts and head.startswith(form.starts))
    found = next(known, TextSource)
    if compressed and found in (ParquetSource, Hdf5Source):
        raise InputError(f"{path} is {found.title} inside gzip: decompress it first")
    if found is TextSource and b"\x00" in start:
        raise InputError(
            f"{path} is no table that is known here: expected CSV, ECSV, FITS, "
            "VOTable, parquet or HDF5"
        )
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    for form in FORMATS:
        if suffix in form.suffixes and form is not found:
            raise InputError(
                f"{path} is named like {form.title} but its content is {found.title}: "
                "the wrong or a broken file"
            )
    return found(path)


def locate(source: Source, reference: str) -> tuple[str, int | None]:
    """Return the column a reference names, and the index into a two-dimensional one.

    Raises
    ------
    InputError
        If there is no such column (the nearest by case is named), or the index is
        missing, out of place or too large.
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
    """Describe a missing column: one of other case, or the columns there are."""
    near = [other for other in source.columns if other.lower() == name.lower()]
    if near:
        return f"has no column {name!r}, but {near[0]!r}: the case must match"
    shown = ", ".join(list(source.columns)[:_SHOWN])
    more = ", ..." if len(source.columns) > _SHOWN else ""
    return f"has no column {name!r}; it has: {shown}{more}"


def read_columns(
    source: Source, requests: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of the requested columns, each of shape ``(n,)``.

    Parameters
    ----------
    requests
        Key in the batch to the column's reference and the kind that is needed
        (`pipelines.catalog.units.convert`).

    Raises
    ------
    InputError
        If a column is not there or not of the kind, or the file breaks off.
    """
    places = {key: locate(source, column) for key, (column, _) in requests.items()}
    # A column may be needed twice; text is then read as the least convertible kind.
    order = sorted(requests, key=lambda key: KINDS.index(requests[key][1]))
    kinds = {places[key][0]: requests[key][1] for key in order}
    # Astropy writes masked columns to parquet and HDF5 as two, values and mask.
    masks = {base: f"{base}.mask" for base in kinds if f"{base}.mask" in source.columns}
    kinds |= dict.fromkeys(masks.values(), "boolean")
    for batch in source.batches(kinds):
        for base, mask in masks.items():
            batch[base] = np.ma.array(batch[base], mask=batch[mask].astype(bool))
        chosen = {}
        for key, (base, index) in places.items():
            column = batch[base] if index is None else batch[base][:, index]
            reference, kind = requests[key]
            where = f"{source.path}, column {reference!r}"
            chosen[key] = convert(column, kind, where)
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
    """Return whether a file begins like one that gzip wrote."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _astropy_units(lines: Sequence[str]) -> dict[str, str]:
    """Return units by column from the YAML header that astropy writes with tables."""
    fields = get_header_from_yaml(lines)["datatype"]
    return {item["name"]: item["unit"] for item in fields if "unit" in item}


def _all_match(text: pa.Array, pattern: str) -> bool:
    options = pc.MatchSubstringOptions(pattern)
    matches = pc.call_function("match_substring_regex", [text.drop_null()], options)
    return bool(matches.to_numpy(zero_copy_only=False).all())
