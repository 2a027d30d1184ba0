"""A table of any origin, and the columns and rows of it that a regression takes."""

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
        """Return a column by name.

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
        """Return a column of numbers by name.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows to fit and to test, in the table's own units.

    Parameters
    ----------
    x, y
        Inputs (N, D) and target (N,), finite; two classes are 0 and 1.
    row
        Number of every row in the table, from 0.
    test
        Whether it is held out.
    inputs, target
        Names of the columns.
    classes
        What stands for 0 and 1 in the target of two classes.
    missing
        Rows left out for a missing or infinite value, by column.
    left_out
        Rows left out in all.
    notes
        Choices made on the way, for people.
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
        If the file is missing, no such table, empty or has two columns of one name.
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
        Whether the target has two classes.
    test_fraction, seed
        Share of the rows that is held out, at random.
    split_column
        Holds 1 for rows to test and 0 for rows to fit, instead.

    Raises
    ------
    InputError
        If a column is absent or of no use, or no row remains on one side.
    """
    notes = list(table.notes)
    y = table.column(target, "target")
    if not 0 < test_fraction < 1:
        raise InputError(
            "the test fraction lies between 0 and 1, both excluded, got "
            f"{test_fraction}"
        )
    if inputs is None:
        own = (target, split_column)
        inputs = tuple(n for n in table.numeric if n not in own)
        others = (n for n in (*table.columns, *table.other) if n not in table.numeric)
        text = [n for n in others if n not in own]
        if text:
            notes.append(f"columns without numbers are left out: {', '.join(text)}")
        if not inputs:
            raise InputError(
                f"{table.path} has no column of numbers beside the target {target!r}: "
                "a regression needs an input"
            )
    repeated = sorted({n for n in inputs if inputs.count(n) > 1})
    if not inputs:
        raise InputError("--inputs names no column: give names or leave it out")
    if repeated:
        raise InputError(f"--inputs names {', '.join(repeated)} twice")
    if target in inputs:
        raise InputError(
            f"the target {target!r} is among the inputs: leave it out there"
        )
    columns = {name: table.numbers(name, "input") for name in inputs}
    is_text = y.dtype != np.float64
    known = np.array([v is not None for v in y]) if is_text else np.isfinite(y)
    two = len(np.unique(y[known].astype(str) if is_text else y[known])) == 2
    if not classes and is_text and two:
        raise InputError(
            f"{table.path}: the target {target!r} holds two words: use --likelihood "
            "bernoulli to predict which"
        )
    if not classes:
        y = table.numbers(target, "target")
    if not classes and two:
        notes.append(
            f"{target} has two values only: --likelihood bernoulli would take them for "
            "classes"
        )
    bad = {name: ~np.isfinite(values) for name, values in columns.items()}
    bad[target] = ~known
    if split_column is not None:
        bad[split_column] = ~np.isfinite(table.numbers(split_column, "split column"))
    missing = {name: int(rows.sum()) for name, rows in bad.items() if rows.any()}
    for name, count in missing.items():
        if count == table.rows:
            raise InputError(
                f"{table.path}: no row has a finite value of {name!r}: leave the "
                "column out with --inputs, or correct the file"
            )
    kept = ~np.any(list(bad.values()), axis=0)
    if not kept.any():
        counts = ", ".join(f"{n} in {c}" for c, n in missing.items())
        raise InputError(
            f"{table.path}: every row lacks some value (missing by column: {counts}): "
            "choose --inputs with fewer gaps"
        )
    named = None
    if classes:
        codes, found = classes_of(y[known])
        y = np.full(table.rows, np.nan)
        y[known] = codes
        low, high = (str(v) if is_text else f"{v:g}" for v in found)
        named = (low, high)
        if named != ("0", "1"):
            notes.append(f"classes of {target}: {named[0]} is 0, {named[1]} is 1")
    if split_column is None:
        order = np.random.default_rng(seed).permutation(int(kept.sum()))
        test = order.argsort() < max(1, round(test_fraction * len(order)))
    else:
        marks = table.columns[split_column][kept]
        odd = marks[(marks != 0) & (marks != 1)]
        if len(odd):
            raise InputError(
                f"{table.path}: the split column {split_column!r} holds 0 for rows to "
                f"fit and 1 for rows to test, {len(odd)} rows hold something else, the "
                f"first {odd[0]:g}"
            )
        test = marks == 1
    if test.all() or not test.any():
        raise InputError(
            f"{table.path}: {int((~test).sum())} rows to fit and {int(test.sum())} to "
            f"test remain of {table.rows}: both are needed"
        )
    train = np.flatnonzero(kept)[~test]
    constant = [n for n in inputs if np.ptp(columns[n][train]) == 0]
    inputs = tuple(n for n in inputs if n not in constant)
    if not inputs:
        raise InputError(
            f"{table.path}: every input is constant ({', '.join(constant)}): name "
            "others with --inputs"
        )
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
