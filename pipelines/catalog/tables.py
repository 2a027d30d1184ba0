"""Parquet tables with units and provenance, and conversion of Arrow columns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from astropy.coordinates import BaseCoordinateFrame, SkyCoord
from astropy.io import fits
from astropy.table import QTable, Table, represent_mixins_as_columns
from astropy.table.meta import get_yaml_from_table
from astropy.time import Time
from astropy.utils.masked import Masked
from pyarrow import interchange

from pipelines.base.errors import InputError
from pipelines.storage.atomic import MANIFEST, MARKER, atomic_file, check_manifest
from pipelines.storage.digests import visible_files

TABLE_VERSION = 1
METADATA_KEY = b"dustmap"
PROVENANCE = "provenance.json"
"""Name of the provenance of a folder of partitions."""
ROWS_PER_BATCH = 1 << 18
"""Rows read at once, and of a row group in parquet."""


@contextmanager
def reading(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Convert a parser's errors to `InputError`; ``names`` are the file's columns."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # the parsers' errors have no common base
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "conversion error" in reason:
            # Arrow numbers the columns of a CSV file.
            place = re.search(r"column #(\d+)", reason)
            if place and int(place[1]) < len(names):
                reason = reason.replace(place[0], f"column {names[int(place[1])]!r}")
            reason += " (an empty field or 'null' marks a missing value)"
        raise InputError(f"{path} cannot be read: {reason}") from error


class TableWriter:
    """A writer of batches of rows; ``meta``, the provenance, may be set at the end."""

    def __init__(self, path: Path, *, units: Mapping[str, str]) -> None:
        self._path, self._units = path, units
        self._writer: pq.ParquetWriter | None = None
        self.meta: Mapping[str, Any] = {}

    def write(self, columns: Mapping[str, np.ndarray] | pa.Table) -> None:
        """Append one batch of all columns, of equal length."""
        table: Any = columns
        if not isinstance(columns, pa.Table):
            table = pa.table({name: to_arrow(c) for name, c in columns.items()})
        if self._writer is None:
            fields = [
                field.with_metadata({"unit": self._units[field.name]})
                if field.name in self._units
                else field.remove_metadata()
                for field in table.schema
            ]
            self._writer = pq.ParquetWriter(
                self._path, pa.schema(fields), write_page_checksum=True
            )
        # Arrow's errors are ValueErrors, also those of different names.
        same = table.cast(self._writer.schema)
        self._writer.write_table(same, row_group_size=ROWS_PER_BATCH)

    def close(self) -> None:
        """Write units and provenance."""
        if self._writer is None:
            raise ValueError(f"{self._path} got no rows, expected at least one")
        names = self._writer.schema.names
        description = {
            "version": TABLE_VERSION,
            "units": {n: unit for n, unit in self._units.items() if n in names},
            "meta": self.meta,
        }
        text = json.dumps(description, allow_nan=False)
        self._writer.add_key_value_metadata({METADATA_KEY.decode(): text})
        self._writer.close()


@contextmanager
def open_table(
    path: str | os.PathLike[str], *, units: Mapping[str, str], overwrite: bool
) -> Iterator[TableWriter]:
    """Yield a writer of a parquet table that appears whole or not at all.

    ``units`` may name absent columns. The first batch sets columns and types; later
    ones are converted, or refused with `ValueError` if that would lose information.
    """
    with atomic_file(path, overwrite=overwrite) as temporary:
        table = TableWriter(temporary, units=units)
        yield table
        table.close()


def write_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, np.ndarray],
    *,
    units: Mapping[str, str],
    meta: Mapping[str, Any],
    overwrite: bool,
) -> None:
    """Write columns ``(N,)`` as one parquet file.

    Each field's metadata has its ``unit``; under the schema key ``dustmap`` is
    ``meta``, JSON-serialisable.

    Raises `InputError` if the file exists and ``overwrite`` is false, or the folder is
    read-only; `ValueError` if columns are of unequal length, or not one-dimensional.
    """
    with open_table(path, units=units, overwrite=overwrite) as table:
        table.write(columns)
        table.meta = meta


def read_table(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, Any]]:
    """Read columns, units and provenance of a table by `write_table`.

    ``path`` may be a folder of such files, joined in the order of their names; the
    provenance is then ``{"partitions": {file name: provenance}}``, or the folder's own
    if it was written as one. ``names`` selects columns.

    Raises `InputError` if a file is missing, unreadable or not one of ours, or
    partitions differ in their columns or units, or from the manifest.
    """
    path = Path(path)
    found = list(_tables(path, names, whole=True))
    units, meta = found[0][2:]
    if (path / PROVENANCE).is_file():
        meta = json.loads((path / PROVENANCE).read_text(encoding="utf-8"))
    elif path.is_dir():
        parts = {str(file.relative_to(path)): own for file, *_, own in found}
        meta = {"partitions": parts}
    tables = [table for _, table, *_ in found]
    return _arrays(pa.concat_tables(tables, promote_options="permissive")), units, meta


def read_batches(
    path: str | os.PathLike[str], names: Collection[str] | None = None
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, str]]]:
    """Yield columns and units of `ROWS_PER_BATCH` rows at a time, as `read_table`."""
    for _, table, units, _ in _tables(Path(path), names, whole=False):
        yield _arrays(table), units


def row_count(path: str | os.PathLike[str]) -> int:
    """Return the number of rows of a table; raises `InputError` as `read_table`."""
    path, total = Path(path), 0
    for file in partitions(path) if path.is_dir() else [path]:
        with _opened(file) as (source, _):
            total += source.metadata.num_rows
    return total


def _tables(
    path: Path, names: Collection[str] | None, *, whole: bool
) -> Iterator[tuple[Path, pa.Table, dict[str, str], dict[str, Any]]]:
    """Yield file, columns, units and provenance, of files or of their row groups."""
    first: tuple[Path, list[str], dict[str, str]] | None = None
    for file in partitions(path) if path.is_dir() else [path]:
        with _opened(file) as (source, description):
            there, units = source.schema_arrow.names, description["units"]
            there = [n for n in there if names is None or n in names]
            first = first or (file, there, units)
            if (there, units) != first[1:]:
                raise InputError(
                    f"{file} has columns {there} in {units}, but {first[0].name} has "
                    f"{first[1]} in {first[2]}: join them by "
                    "`dustmap ingest A.parquet B.parquet -o both.parquet`"
                )
            meta = description["meta"]
            if whole:
                yield file, source.read(there), units, meta
            # Batches by `iter_batches` would stay in memory.
            for group in range(0 if whole else source.num_row_groups):
                yield file, source.read_row_group(group, there), units, meta


@contextmanager
def _opened(path: Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """Yield a file by `write_table`, and its description."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    with open(path, "rb") as stream:
        if stream.read(4) != b"PAR1":
            raise InputError(f"{path} is not a parquet table: use `dustmap ingest`")
    checked: Any = {"page_checksum_verification": True}
    with reading(path), pq.ParquetFile(path, **checked) as source:
        metadata = source.metadata.metadata or {}
        description = json.loads(metadata.get(METADATA_KEY, b"{}"))
        if description.get("version") != TABLE_VERSION:
            raise InputError(
                f"{path} lacks this version's provenance: convert it by `dustmap "
                "ingest`"
            )
        yield source, description


def _arrays(table: pa.Table) -> dict[str, np.ndarray]:
    named = zip(table.column_names, table.columns)
    return {name: whole_column(column) for name, column in named}


def partitions(folder: Path) -> list[Path]:
    """Return the parquet files of a folder in the order of the table.

    Raises `InputError` if there are none, or some are missing or have another size than
    written.
    """
    files = [file for file in visible_files(folder) if file.suffix == ".parquet"]
    if any((folder / name).exists() for name in (PROVENANCE, MANIFEST, MARKER)):
        listed = check_manifest(folder, allow_extra=True, hashed=())
        names = [file.relative_to(folder).as_posix() for file in files]
        if extra := [name for name in names if name not in listed]:
            raise InputError(
                f"{folder} holds {len(extra)} .parquet files that were not written "
                f"with it, such as {extra[0]}: move them elsewhere"
            )
    if not files:
        raise InputError(f"{folder} holds no .parquet file: run `dustmap ingest` first")
    return files


def split_part(path: Path) -> tuple[Path, str]:
    """Divide ``FILE[TABLE]`` into the file and the name or number of its table."""
    found = None if path.exists() else re.fullmatch(r"(.+)\[([^\[\]]+)\]", str(path))
    return (Path(found[1]), found[2]) if found else (path, "")


def is_data(path: Path) -> bool:
    """Return false for markers, and for files that describe others."""
    marked = any(part.startswith((".", "_")) for part in path.parts)
    described = r"(?i)(read[-_]?me|licen[cs]e|changelog|.*\.md$)"
    return not marked and not re.match(described, path.name)


def find_files(path: Path) -> list[Path]:
    """Return the files of a source, a file or a folder, in order.

    Names that begin with a dot or an underscore, and a ReadMe, are skipped. In a folder
    with partitions, such as ``Norder=1/Npix=44.parquet`` of HATS, only these are read;
    in another one with parquet files, only the parquet files. Raises `InputError` if
    the path is absent, a folder holds no file, or a folder written by ``ingest`` is
    incomplete.
    """
    if not split_part(path)[0].exists():
        raise InputError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    if (path / PROVENANCE).is_file():
        return partitions(path)
    owns = [file.relative_to(path) for file in visible_files(path)]
    owns = [own for own in owns if is_data(own)]
    owns = [own for own in owns if "=" in str(own.parent)] or owns
    owns = [own for own in owns if own.suffix == ".parquet"] or owns
    if not owns:
        raise InputError(f"the folder {path} holds no file to read")
    return [path / own for own in owns]


def is_table(stars: Any) -> bool:
    """Return true for an object with named columns: a table, DataFrame or mapping."""
    if isinstance(stars, Mapping) or getattr(getattr(stars, "dtype", 0), "names", 0):
        return True
    known = ("columns", "__arrow_c_stream__", "__dataframe__")
    return any(hasattr(stars, name) for name in known)


def as_columns(table: Any) -> Any:
    """Return structured arrays and those of FITS, with their units, as a `Table`."""
    if isinstance(table, fits.FITS_rec):
        return Table.read(fits.BinTableHDU(table))
    return (
        Table(table) if isinstance(table, np.ndarray) and table.dtype.names else table
    )


@contextmanager
def as_file(table: Any) -> Iterator[Path]:
    """Yield a file with a table's columns and their units.

    The table is an `astropy.table.Table` or ``QTable``, a structured array, also of
    FITS, a DataFrame of pandas or polars or an Arrow table, without units, or a mapping
    of arrays and quantities by name. A column of coordinates ``c`` becomes ``c.l`` and
    ``c.b``, or the like; times become text.

    Raises `InputError` if a column is not an array with one value, or as many values,
    per row.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table in memory.parquet"
        try:
            if isinstance(table, fits.FITS_rec):
                path = path.with_suffix(".fits")
                fits.BinTableHDU(table).writeto(path)
            else:
                pq.write_table(_arrow_table(table), path)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(f"the table in memory cannot be read: {error}") from error
        yield path


def _arrow_table(table: Any) -> pa.Table:
    """Return a table in memory as an Arrow table with units."""
    if not hasattr(table, "iloc"):  # not pandas, whose numbers may be missing
        if hasattr(table, "__arrow_c_stream__"):
            return pa.table(table)
        if hasattr(table, "__dataframe__"):
            return interchange.from_dataframe(table)
    table = as_columns(table)
    columns: dict[str, Any] = {}
    meta: Any = (table.meta or {}).items() if isinstance(table, Table) else ()
    # Frames, of columns and in FITS' cards, for the reader of parquet files.
    header = QTable(meta={n: v for n, v in meta if isinstance(v, str | float | int)})
    for name in getattr(table, "colnames", table):
        column = table[name]
        if isinstance(column, Time):
            hidden: Any = column.mask
            column = np.ma.array(column.isot, mask=hidden)
        if isinstance(column, SkyCoord | BaseCoordinateFrame):
            header[str(name)] = SkyCoord(column)
        else:
            columns[str(name)] = column
    plain = represent_mixins_as_columns(header)
    columns |= plain.columns
    arrays = {name: _column_to_arrow(column) for name, column in columns.items()}
    units = [str(getattr(column, "unit", None) or "") for column in columns.values()]
    fields = [
        pa.field(name, array.type, metadata={"unit": unit})
        for (name, array), unit in zip(arrays.items(), units)
    ]
    about = {"table_meta_yaml": "\n".join(get_yaml_from_table(plain))}
    return pa.table(list(arrays.values()), pa.schema(fields, about))


def _column_to_arrow(column: Any) -> pa.Array:
    if not isinstance(getattr(column, "dtype", np.dtype(float)), np.dtype):
        # NumPy would round pandas' integers where one is missing.
        return pa.array(column, from_pandas=True)
    # Quantities, and the two kinds of masked arrays.
    masked = np.ma.isMA(column) or isinstance(column, Masked)
    mask = np.asarray(column.mask) if masked else None
    values = native(np.asarray(column))
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    if values.ndim > 1:
        flat = values.reshape(len(values), -1)
        held = pa.array(flat.ravel(), mask=None if mask is None else mask.ravel())
        return pa.FixedSizeListArray.from_arrays(held, flat.shape[1])
    try:
        return pa.array(values, mask=mask, from_pandas=values.dtype.kind == "O")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # Objects of several kinds, in a column that may well not be needed.
        words = [None if item is None else str(item) for item in values]
        return pa.array(words, pa.string(), mask=mask)


def to_arrow(column: np.ndarray) -> pa.Array:
    """Return a column as an Arrow array: objects as strings, nulls where masked."""
    mask = np.ma.getmaskarray(column) if np.ma.isMaskedArray(column) else None
    values = native(np.ma.getdata(column))
    if values.dtype.kind in "OU":
        return pa.array(values.astype(object), pa.string(), mask=mask)
    return pa.array(values, mask=mask)


def native(array: np.ndarray) -> np.ndarray:
    """Return an array in the byte order of the machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def whole_column(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of any length as NumPy, as `to_numpy`."""
    # One array of Arrow holds at most 2 GiB of text.
    if not column.null_count or pa.types.is_string(column.type):
        return column.to_numpy()
    # Arrow's own conversion would round 64-bit integers where one is missing.
    return to_numpy(column.combine_chunks())


def to_numpy(array: pa.Array) -> np.ndarray:
    """Return an Arrow array as NumPy, with NaN, None or a mask for missing values."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return to_numpy(array.dictionary_decode())
    if pa.types.is_fixed_size_list(kind):
        if array.null_count:
            # A missing row has no values in the flattened array.
            nothing = [None] * kind.list_size
            rows = [nothing if row is None else row for row in array.tolist()]
            array = pa.array(rows, kind)
        return to_numpy(array.flatten()).reshape(len(array), kind.list_size)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        missing = array.is_null().to_numpy(zero_copy_only=False)
        filled = array.fill_null(False if pa.types.is_boolean(kind) else 0)
        values = filled.to_numpy(zero_copy_only=False)
        return np.ma.array(values, mask=missing) if array.null_count else values
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    if pa.types.is_nested(kind):
        # NumPy would round the numbers in texts.
        array = pa.array([row if row is None else str(row) for row in array.tolist()])
    # Nulls of Arrow become NaN in NumPy.
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "Mm":
        # As objects nanoseconds would be numbers.
        zone = "Z" if getattr(kind, "tz", None) else ""
        words = [None if np.isnat(value) else f"{value}{zone}" for value in values]
        values = np.array(words, dtype=object)
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        words = [
            value and value.decode("utf-8", "backslashreplace") for value in values
        ]
        values = np.array(words, dtype=object)
    return values.astype(np.float64 if values.dtype.kind == "f" else object)
