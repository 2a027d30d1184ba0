"""Writers of tables with answers in common formats."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
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


def check_columns(output: Path, parts: Iterable[Columns]) -> None:
    """Raise `InputError` if the format of ``output`` would change one of the columns.

    ``parts`` are all rows in batches. Missing and empty text are one, but in parquet.
    """
    # To Arrow the types alone matter.
    for part in islice(parts, 1 if output.suffix == ".parquet" else None):
        for name, column in _as_text(part).items():
            _check(output, name, column)


def _check(output: Path, name: str, column: np.ndarray) -> None:
    if fault := _fault(output.suffix, name, column):
        able = [suffix for suffix in SUFFIXES if not _fault(suffix, name, column)]
        raise InputError(
            f"{output}: column {name!r} has {fault}, which this format does not hold: "
            f"choose one of {', '.join(able)}, or leave the column out"
        )


def _fault(suffix: str, name: str, column: np.ndarray) -> str:
    """Return what of a column a format does not hold; empty for nothing."""
    kind, is_fits = column.dtype.kind, suffix == ".fits"
    gaps = is_fits and bool(np.ma.getmaskarray(column).any())
    if kind == "c" and suffix in (".parquet", ".csv", ".ecsv"):
        return "complex numbers"
    if kind == "b" and gaps:
        return "booleans and missing values"
    if kind == "u" and (gaps or suffix in (".csv", ".vot", ".votable")):
        large = (column > np.iinfo(np.int64).max).any()
        return "integers from 2^63 on" + gaps * " and missing values" if large else ""
    texts = (name, *(column.tolist() if kind in "OU" else ())) if is_fits else ()
    odd = (text for text in texts if text and not text.isascii())
    return next((f"text beyond ASCII, such as {text!r}" for text in odd), "")


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
        form = _ASTROPY[output.suffix]

        def plain(text: str | None) -> str:
            code = "ascii" if form == "fits" else "utf-8"
            return (text or "").encode(code, "backslashreplace").decode(code)

        found = Table(meta={key: plain(value) for key, value in about.items() if value})
        for name in parts[0]:
            column: Any = np.ma.concatenate([part[name] for part in parts])
            if column.dtype.kind == "O":
                missing = np.array([value is None for value in column.data])
                text = np.where(missing, "", column.data).astype(str)
                column = np.ma.array(text, mask=missing | np.ma.getmaskarray(column))
            # Gaps may be in one batch, large integers in another.
            _check(output, name, column)
            masked = np.ma.getmaskarray(column).any()
            kind, size = column.dtype.kind, column.dtype.itemsize
            wide = kind == "u" and (masked or form == "votable")
            if form != "ascii.ecsv" and kind in "iu" and (wide or size == 1):
                # FITS has no signed bytes, and no marks of missing unsigned integers.
                column = column.astype(f"i{min(2 * size, 8)}")
            if kind in "iu" and masked:
                # The mark of a missing value must be no other row's value.
                taken, ends = set(column.compressed().tolist()), np.iinfo(column.dtype)
                marks = range(ends.min, ends.max + 1)
                column.fill_value = next(mark for mark in marks if mark not in taken)
            found[name] = column if masked else np.ma.getdata(column)
            written: Any = found[name]
            info = described[name]
            written.unit = parse_unit(info.unit) if info.unit else None
            written.description = plain(info.description) or None
        with warnings.catch_warnings():
            # Of names that are no identifiers.
            warnings.simplefilter("ignore")
            found.write(temporary, format=form, overwrite=True)


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
    """Return bytes and objects as text, ``None`` for missing values."""
    found = {}
    for name, column in columns.items():
        found[name] = column
        if column.dtype.kind == "S":
            found[name] = np.char.decode(column, "utf-8", "backslashreplace")
        if column.dtype.kind == "O":
            text = [None if v is None else str(v) for v in column.astype(object)]
            found[name] = np.array(text, dtype=object)
    return found
