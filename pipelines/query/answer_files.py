"""Tables of answers in the formats that people open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from astropy.table import Column, MaskedColumn, Table

from pipelines.base.errors import InputError
from pipelines.catalog.tables import open_table, to_arrow
from pipelines.catalog.units import parse_unit
from pipelines.storage.atomic import atomic_file

Columns = dict[str, np.ndarray]
Write = Callable[[Columns], None]
# By the ending of a name: astropy's name of the format.
_ASTROPY = {
    ".ecsv": "ascii.ecsv",
    ".fits": "fits",
    ".vot": "votable",
    ".votable": "votable",
}
SUFFIXES = (".parquet", ".csv", *_ASTROPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A column's unit and what it holds; empty where nothing is known."""

    unit: str = ""
    text: str = ""


@contextmanager
def answer_file(
    output: Path,
    described: Mapping[str, Described],
    about: Mapping[str, str],
    *,
    overwrite: bool,
) -> Iterator[Write]:
    """Yield a function that appends rows; the file appears at the end, whole.

    Parquet and CSV are written batch by batch, others are held until the end. CSV holds
    no units, descriptions or ``about``.

    Raises
    ------
    InputError
        If the ending of its name is not known, or the output exists.
    """
    if output.suffix == ".parquet":
        units = {name: each.unit for name, each in described.items() if each.unit}
        texts = {name: each.text for name, each in described.items() if each.text}
        with open_table(
            output, units=units, kind="answers", overwrite=overwrite
        ) as table:
            table.meta = {**about, "columns": texts}
            yield lambda columns: table.write(
                {name: _as_text(column) for name, column in columns.items()}
            )
    elif output.suffix == ".csv":
        with (
            atomic_file(output, overwrite=overwrite) as temporary,
            temporary.open("wb") as file,
        ):

            def append(columns: Columns) -> None:
                options = pacsv.WriteOptions(
                    include_header=file.tell() == 0,
                    quoting_style="needed",
                    quoting_header="none",
                )
                arrays = {n: _or_empty(_as_text(c)) for n, c in columns.items()}
                pacsv.write_csv(pa.table(arrays), file, write_options=options)

            yield append
    elif output.suffix in SUFFIXES:
        parts: list[Columns] = []
        with atomic_file(output, overwrite=overwrite) as temporary:
            yield parts.append
            columns = {
                name: np.ma.concatenate([_as_text(part[name]) for part in parts])
                for name in parts[0]
            }
            table = _table(columns, described)
            table.meta = {key: value for key, value in about.items() if value}
            table.write(temporary, format=_ASTROPY[output.suffix], overwrite=True)
    else:
        raise InputError(
            f"{output}: the name of a table of answers ends in one of "
            f"{', '.join(SUFFIXES)}"
        )


def _or_empty(column: np.ndarray) -> pa.Array:
    """A column without NaN, so that a field is empty instead."""
    if column.dtype.kind != "f":
        return to_arrow(column)
    return pa.array(np.ma.filled(column, np.nan), from_pandas=True)


def _as_text(column: np.ndarray) -> np.ndarray:
    """Dates and other objects as text, ``None`` where there is no value."""
    if column.dtype.kind not in "OM":
        return column
    values = column.astype(object)
    return np.array([None if v is None else str(v) for v in values], dtype=object)


def _table(columns: Columns, described: Mapping[str, Described]) -> Table:
    """Return columns with units and descriptions, masked where there is no value."""
    table = Table()
    for name, column in columns.items():
        if column.dtype.kind == "O":
            missing = np.array([value is None for value in column.data])
            text = np.where(missing, "", column.data).astype(str)
            column = np.ma.array(text, mask=missing | np.ma.getmaskarray(column))
        if not np.ma.getmaskarray(column).any():
            column = np.ma.getdata(column)
        about = described[name]
        kind = MaskedColumn if np.ma.isMaskedArray(column) else Column
        table[name] = kind(
            column,
            unit=parse_unit(about.unit) if about.unit else None,
            description=about.text or None,
        )
    return table
