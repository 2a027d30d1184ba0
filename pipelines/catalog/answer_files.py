"""Writers of tables with answers in common formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from astropy.table import Table

from pipelines.base.errors import InputError
from pipelines.catalog.formats import ColumnInfo
from pipelines.catalog.tables import open_table, to_arrow
from pipelines.catalog.units import parse_unit
from pipelines.storage.atomic import atomic_file

Columns = dict[str, np.ndarray]
Write = Callable[[Columns], None]
# astropy's format name by file suffix.
_ASTROPY = {".ecsv": "ascii.ecsv", ".fits": "fits"}
_ASTROPY |= dict.fromkeys((".vot", ".votable"), "votable")
SUFFIXES = (".parquet", ".csv", *_ASTROPY)


@contextmanager
def answer_file(
    output: Path,
    own: Mapping[str, ColumnInfo],
    new: Mapping[str, ColumnInfo],
    about: Mapping[str, str],
    *,
    overwrite: bool,
) -> Iterator[Write]:
    """Yield a function that appends rows; the complete file appears at the end.

    ``own`` are a table's columns, ``new`` those beside them. Parquet and CSV are
    written in batches, others at the end. CSV holds no units, descriptions or
    ``about``. Raises `InputError` if a new column has the name of an own one, the
    suffix is unknown, or the output exists.
    """
    described = {**own, **new}
    if taken := own.keys() & new.keys():
        raise InputError(
            f"the table already has columns {', '.join(sorted(taken))}: rename the "
            "results with a prefix, such as --prefix map_"
        )
    if output.suffix not in SUFFIXES:
        raise InputError(
            f"{output}: expected a file name that ends in one of {', '.join(SUFFIXES)}"
        )
    if output.suffix == ".parquet":
        known = described.items()
        units = {name: info.unit for name, info in known if info.unit}
        texts = {name: info.description for name, info in known if info.description}
        with open_table(output, units=units, overwrite=overwrite) as table:
            table.meta = {**about, "columns": texts}
            yield lambda columns: table.write(_as_text(columns))
        return
    with atomic_file(output, overwrite=overwrite) as temporary:
        if output.suffix == ".csv":
            with temporary.open("wb") as file:
                yield lambda columns: _append_csv(file, _as_text(columns))
            return
        parts: list[Columns] = []
        yield lambda columns: parts.append(_as_text(columns))
        found = Table(meta={key: value for key, value in about.items() if value})
        for name in parts[0]:
            column = np.ma.concatenate([part[name] for part in parts])
            if column.dtype.kind == "O":
                missing = np.array([value is None for value in column.data])
                text = np.where(missing, "", column.data).astype(str)
                column = np.ma.array(text, mask=missing | np.ma.getmaskarray(column))
            masked = np.ma.getmaskarray(column).any()
            found[name] = column if masked else np.ma.getdata(column)
            written: Any = found[name]
            info = described[name]
            written.unit = parse_unit(info.unit) if info.unit else None
            written.description = info.description or None
        found.write(temporary, format=_ASTROPY[output.suffix], overwrite=True)


def _append_csv(file: BinaryIO, columns: Columns) -> None:
    """Append rows, with empty fields for NaN."""
    options = pacsv.WriteOptions(
        include_header=file.tell() == 0, quoting_style="needed", quoting_header="none"
    )
    arrays = {
        name: pa.array(np.ma.filled(column, np.nan), from_pandas=True)
        if column.dtype.kind == "f"
        else to_arrow(column)
        for name, column in columns.items()
    }
    pacsv.write_csv(pa.table(arrays), file, write_options=options)


def _as_text(columns: Columns) -> Columns:
    """Return dates and other objects as text, ``None`` for missing values."""
    found = {}
    for name, column in columns.items():
        found[name] = column
        if column.dtype.kind in "OM":
            text = [None if v is None else str(v) for v in column.astype(object)]
            found[name] = np.array(text, dtype=object)
    return found
