"""A table of any origin, and the selection of its columns and rows."""

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
from pipelines.regress.regressor import classes_of

# Marks of missing numbers.
_MISSING = ["", "null", "NULL", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "None", "?"]
_DELIMITERS = (",", ";", "\t", "|")
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns by name in the file's order, and notes on reading them.

    Numbers (booleans as 0 and 1) are float64 with NaN for missing values; text is an
    object array with ``None``; other columns are ``None``.
    """

    path: Path
    rows: int
    columns: dict[str, np.ndarray | None]
    notes: tuple[str, ...] = ()

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(
            name
            for name, values in self.columns.items()
            if values is not None and values.dtype == np.float64
        )

    def column(self, name: str, role: str, *, text: bool = False) -> np.ndarray:
        """Return a column of numbers, or of ``text`` if allowed, by name.

        Raises
        ------
        InputError
            If there is no such column, or it has another type.
        """
        if name not in self.columns:
            names = list(self.columns)
            shown = ", ".join(names[:_SHOWN]) + " ..." * (len(names) > _SHOWN)
            raise InputError(
                f"{self.path} has no column {name!r} for the {role}: there are {shown}"
            )
        values = self.columns[name]
        if values is not None and (text or values.dtype == np.float64):
            return values
        message = f"{self.path}: the {role} {name!r} must hold numbers"
        if values is not None:
            wrong = (r for r, v in enumerate(values) if v and not _is_number(v))
            row = next(wrong, 0)
            message += (
                f", but row {row + 1} holds {values[row]!r}: correct or remove it"
            )
        raise InputError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows to fit and to test, in the table's own units.

    Inputs x (N, D) and target y (N,) are finite; y is 0 and 1 for two ``classes``.
    ``row`` numbers rows of the table from 0; ``missing`` and ``left_out`` count rows
    without a finite value, by column and in all; ``notes`` are for the user.
    """

    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    test: np.ndarray
    inputs: tuple[str, ...]
    target: str
    classes: tuple[str, str] | None
    missing: dict[str, int]
    left_out: int
    notes: tuple[str, ...]

    def part(self, test: bool) -> dict[str, np.ndarray]:
        """Return the inputs of the rows to test, or to fit, by name."""
        return dict(zip(self.inputs, self.x[self.test == test].T, strict=True))


def read_any(path: str | Path) -> Table:
    """Read CSV (also gzipped; separated by comma, semicolon, tab or bar) or parquet.

    Raises
    ------
    InputError
        If the file is missing, empty, of another format or has duplicate columns.
    """
    source, notes = Path(path), []
    if not source.is_file():
        what = "is a folder" if source.is_dir() else "does not exist"
        raise InputError(f"{source} {what}: name a CSV or parquet file")
    try:
        with source.open("rb") as stream:
            is_parquet = stream.read(4) == b"PAR1"
        table = pq.ParquetFile(source).read() if is_parquet else _text(source, notes)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise unreadable(source, error) from error
    named = [name for name in table.column_names if name.strip()]
    refuse_duplicates(source, named)
    if len(named) < table.num_columns:
        notes.append("a column without a name was left out")
    if not table.num_rows:
        raise InputError(f"{source} has no rows")
    return Table(
        path=source,
        rows=table.num_rows,
        columns={name: _values(table[name]) for name in named},
        notes=tuple(notes),
    )


def _text(path: Path, notes: list[str]) -> pa.Table:
    """Read CSV, and name the columns of a file without a header."""
    opener = gzip.open if is_gzipped(path) else open
    with opener(path, "rt", encoding="utf-8-sig") as stream:
        first = stream.readline().rstrip("\r\n")
    if not first:
        raise InputError(f"{path} is empty")
    delimiter = max(_DELIMITERS, key=first.count)
    fields = [field.strip().strip('"') for field in first.split(delimiter)]
    names = None
    if all(map(_is_number, fields)):
        names = [f"column_{i + 1}" for i in range(len(fields))]
        notes.append(f"the first line has no names: {names[0]} to {names[-1]}")
    with pa.input_stream(str(path), compression="detect") as stream:
        table = pacsv.read_csv(
            stream,
            read_options=pacsv.ReadOptions(column_names=names),
            parse_options=pacsv.ParseOptions(delimiter=delimiter),
            convert_options=pacsv.ConvertOptions(
                null_values=_MISSING, strings_can_be_null=True
            ),
        )
    return table.rename_columns([n.strip() for n in table.column_names])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _values(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return numbers or text, ``None`` for other types."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.to_numpy().astype(object)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        return None
    try:
        return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
    except pa.ArrowException:
        return None


def split(
    table: Table,
    target: str,
    inputs: tuple[str, ...] | None = None,
    *,
    classes: bool = False,
    test_fraction: float = 0.2,
    split_column: str | None = None,
    seed: int = 0,
) -> Rows:
    """Choose columns and complete rows, and hold some of them out.

    Parameters
    ----------
    inputs
        Names of columns; all other columns of numbers if ``None``.
    classes
        True if the target has two classes.
    test_fraction, seed, split_column
        Share of the rows to hold out at random; or a column with 1 for rows to test and
        0 for rows to fit.

    Raises
    ------
    InputError
        If a column is absent or unusable, or no row remains to fit or to test.
    """
    notes, path = list(table.notes), table.path
    y = table.column(target, "target", text=True)
    if not 0 < test_fraction < 1:
        raise InputError(f"the test fraction lies between 0 and 1, got {test_fraction}")
    if inputs is None:
        rest = [n for n in table.columns if n not in (target, split_column)]
        inputs = tuple(n for n in rest if n in table.numeric)
        if others := [n for n in rest if n not in inputs]:
            notes.append(f"columns without numbers are left out: {', '.join(others)}")
        if not inputs:
            raise InputError(f"{path} has no column of numbers beside {target!r}")
    if not inputs:
        raise InputError("--inputs names no column: give names or leave it out")
    if repeated := sorted({n for n in inputs if inputs.count(n) > 1}):
        raise InputError(f"--inputs names {', '.join(repeated)} twice")
    if target in inputs:
        raise InputError(f"the target {target!r} is among the inputs: leave it out")
    columns = {name: table.column(name, "input") for name in inputs}
    is_text = y.dtype != np.float64
    known = np.array([v is not None for v in y]) if is_text else np.isfinite(y)
    two = len(np.unique(y[known].astype(str) if is_text else y[known])) == 2
    if two and not classes:
        hint = f"{target} has two values only: --likelihood bernoulli takes classes"
        if is_text:
            raise InputError(f"{path}: the target {hint}")
        notes.append(hint)
    if not classes:
        y = table.column(target, "target")
    bad = {name: ~np.isfinite(values) for name, values in columns.items()}
    bad[target] = ~known
    if split_column is not None:
        marks = table.column(split_column, "split column")
        bad[split_column] = ~np.isfinite(marks)
    missing = {name: int(rows.sum()) for name, rows in bad.items() if rows.any()}
    kept = ~np.any(list(bad.values()), axis=0)
    if not kept.any():
        counts = ", ".join(f"{n} in {c}" for c, n in missing.items())
        raise InputError(
            f"{path}: every one of {table.rows} rows lacks some finite value (missing "
            f"by column: {counts}): choose --inputs with fewer gaps"
        )
    named = None
    if classes:
        codes, found = classes_of(y[known])
        y = np.full(table.rows, np.nan)
        y[known] = codes
        low, high = (str(v) if is_text else f"{v:g}" for v in found)
        named = (low, high)
        if named != ("0", "1"):
            notes.append(f"classes of {target}: {low} is 0, {high} is 1")
    if split_column is None:
        order = np.random.default_rng(seed).permutation(int(kept.sum()))
        test = order.argsort() < max(1, round(test_fraction * len(order)))
    else:
        marks = marks[kept]
        odd = marks[(marks != 0) & (marks != 1)]
        if len(odd):
            raise InputError(
                f"{path}: {split_column!r} must hold 0 for rows to fit and 1 for rows "
                f"to test, {len(odd)} rows hold something else, the first {odd[0]:g}"
            )
        test = marks == 1
    if test.all() or not test.any():
        raise InputError(
            f"{path}: {int((~test).sum())} rows to fit and {int(test.sum())} to test "
            f"remain of {table.rows}: both are needed"
        )
    train = np.flatnonzero(kept)[~test]
    constant = [n for n in inputs if np.ptp(columns[n][train]) == 0]
    inputs = tuple(n for n in inputs if n not in constant)
    if not inputs:
        raise InputError(f"{path}: every input is constant ({', '.join(constant)})")
    if constant:
        notes.append(f"constant inputs are left out: {', '.join(constant)}")
    return Rows(
        x=np.stack([columns[name][kept] for name in inputs], axis=1),
        y=y[kept],
        row=np.flatnonzero(kept),
        test=test,
        inputs=inputs,
        target=target,
        classes=named,
        missing=missing,
        left_out=int((~kept).sum()),
        notes=tuple(notes),
    )
