"""A table of any origin as named columns of numbers or text."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipelines.base.errors import InputError
from pipelines.catalog.sources import is_gzipped, refuse_duplicates
from pipelines.catalog.tables import unreadable

# What people write where a number is missing.
_MISSING = ("", "null", "NULL", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "None", "?")
_DELIMITERS = (",", ";", "\t", "|")
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns by name in the file's order, and what was noticed on reading them.

    Numbers (booleans as 0 and 1) are float64 with NaN where they are missing; text is
    an object array with ``None``; ``other`` names columns that are neither.
    """

    path: Path
    rows: int
    columns: dict[str, np.ndarray]
    other: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(n for n, c in self.columns.items() if c.dtype == np.float64)

    def column(self, name: str, role: str) -> np.ndarray:
        """A column by name.

        Raises
        ------
        InputError
            If there is none, with the names that there are.
        """
        if name in self.other:
            raise InputError(
                f"{self.path}: the {role} {name!r} holds neither numbers nor text"
            )
        if name not in self.columns:
            shown = ", ".join(list(self.columns)[:_SHOWN])
            more = " ..." if len(self.columns) > _SHOWN else ""
            raise InputError(
                f"{self.path} has no column {name!r} for the {role}: there are "
                f"{shown}{more}"
            )
        return self.columns[name]

    def numbers(self, name: str, role: str) -> np.ndarray:
        """A column of numbers by name.

        Raises
        ------
        InputError
            If there is none of the name, or it holds text.
        """
        values = self.column(name, role)
        if values.dtype == np.float64:
            return values
        wrong = (r for r, v in enumerate(values) if v is not None and not _is_number(v))
        row = next(wrong, 0)
        raise InputError(
            f"{self.path}: the {role} {name!r} must hold numbers, but row {row + 1} "
            f"holds {values[row]!r}: correct or remove it (empty marks a missing value)"
        )


def read_any(path: str | Path) -> Table:
    """Read CSV (also gzipped; separated by comma, semicolon, tab or bar) or parquet.

    Raises
    ------
    InputError
        If the file is missing, no such table, empty or has two columns of one name.
    """
    source, notes = Path(path), []
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {what}: name a CSV or parquet file")
    try:
        with source.open("rb") as stream:
            is_parquet = stream.read(4) == b"PAR1"
        parquet = pq.ParquetFile(source) if is_parquet else None
        table = parquet.read() if parquet else _text(source, notes)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise unreadable(source, error) from error
    named = [name for name in table.column_names if name.strip()]
    refuse_duplicates(source, named)
    if len(named) < table.num_columns:
        notes.append("a column without a name was left out")
    if not table.num_rows:
        raise InputError(f"{source} has no rows")
    found = {name: _values(table[name]) for name in named}
    return Table(
        path=source,
        rows=table.num_rows,
        columns={n: values for n, values in found.items() if values is not None},
        other=tuple(n for n, values in found.items() if values is None),
        notes=tuple(notes),
    )


def _text(path: Path, notes: list[str]) -> pa.Table:
    """CSV; columns of a file that begins with numbers get names."""
    opener = gzip.open if is_gzipped(path) else open
    with opener(path, "rt", encoding="utf-8-sig") as stream:
        first = stream.readline().rstrip("\r\n")
    if not first:
        raise InputError(f"{path} is empty: a table with a line of names was expected")
    delimiter = max(_DELIMITERS, key=first.count)
    fields = [field.strip().strip('"') for field in first.split(delimiter)]
    names = None
    if all(_is_number(field) for field in fields):
        names = [f"column_{i + 1}" for i in range(len(fields))]
        notes.append(
            f"the first line holds numbers only: the columns are called {names[0]} to "
            f"{names[-1]}"
        )
    with pa.input_stream(str(path), compression="detect") as stream:
        table = pacsv.read_csv(
            stream,
            read_options=pacsv.ReadOptions(column_names=names),
            parse_options=pacsv.ParseOptions(delimiter=delimiter),
            convert_options=pacsv.ConvertOptions(
                null_values=list(_MISSING), strings_can_be_null=True
            ),
        )
    return table.rename_columns([n.strip() for n in table.column_names])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _values(column: pa.ChunkedArray) -> np.ndarray | None:
    """Numbers or text; ``None`` if it is neither."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.to_numpy().astype(object)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        return None
    return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
