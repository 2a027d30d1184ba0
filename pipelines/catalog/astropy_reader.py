"""FITS tables (binary or ASCII) and VOTables, by way of `astropy.table`.

Plain FITS is mapped into memory. VOTables, and FITS inside gzip, are read whole: for
many millions of rows ask the archive for plain FITS or parquet.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.io.votable import parse
from astropy.table import Table

from pipelines.base.errors import InputError
from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    is_gzipped,
    refuse_duplicates,
    unreadable,
)


class AstropySource:
    """A table that astropy holds; see `pipelines.catalog.source.Source`."""

    def __init__(self, path: Path, read: Callable[[Path], Table]) -> None:
        self.path, self._read = path, read
        self._table: Table | None = self._load()
        columns: Mapping[str, Any] = self._table.columns
        self.columns = {
            name: ColumnInfo(unit=str(column.unit or ""), width=_width(column))
            for name, column in columns.items()
        }

    def _load(self) -> Table:
        try:
            with warnings.catch_warnings():
                # Odd headers are no reason to stop, a truncated file is.
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", ".*may have been truncated")
                return self._read(self.path)
        except InputError:
            raise
        except Exception as error:  # the parsers' errors have no common base
            raise unreadable(self.path, error) from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process reads it anew.
        return type(self), (self.path, self._read)

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        # It is let go after the last row, since it may be as large as the file.
        table, self._table = self._load() if self._table is None else self._table, None
        for start in range(0, len(table), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            yield {name: _native(table[name][rows]) for name in kinds}


def open_fits(path: Path) -> AstropySource:
    """The one table of a FITS file."""
    return AstropySource(path, _read_fits)


def open_votable(path: Path) -> AstropySource:
    """The one table of a VOTable."""
    return AstropySource(path, _read_votable)


def _read_fits(path: Path) -> Table:
    if is_gzipped(path):
        with gzip.open(path, "rb") as stream:
            # Astropy takes the end of a truncated stream for the end of the table.
            stream.seek(0, os.SEEK_END)
    with fits.open(path, memmap=True, character_as_bytes=True) as file:
        tables: list[Any] = [
            hdu for hdu in file if isinstance(hdu, fits.BinTableHDU | fits.TableHDU)
        ]
        if len(tables) != 1:
            names = ", ".join(repr(hdu.name) for hdu in tables) or "only images"
            raise _not_one(path, f"{len(tables)} tables ({names})")
        refuse_duplicates(path, tables[0].columns.names)
        return Table.read(
            tables[0], format="fits", mask_invalid=False, unit_parse_strict="silent"
        )


def _read_votable(path: Path) -> Table:
    tables = [table for table in parse(path).iter_tables() if not table.is_empty()]
    if len(tables) != 1:
        raise _not_one(path, f"{len(tables)} tables with rows")
    refuse_duplicates(path, [field.name for field in tables[0].fields])
    return tables[0].to_table(use_names_over_ids=True)


def _not_one(path: Path, held: str) -> InputError:
    return InputError(
        f"{path} holds {held}, expected one: save the one that is meant in its own file"
    )


def _width(column: Any) -> int | None:
    width = int(np.prod(column.shape[1:]))
    return width if column.ndim > 1 and column.shape[1:] != (1,) else None


def _native(column: Any) -> np.ndarray:
    """A column as a plain array of native byte order, masked where values are."""
    array = np.ma.asarray(column) if np.ma.isMaskedArray(column) else np.array(column)
    if array.dtype.kind == "S":
        array = np.char.rstrip(np.char.decode(array, "utf-8"))
    if array.ndim > 1:
        array = array.reshape(len(array), -1)
        array = array[:, 0] if array.shape[1] == 1 else array
    return array.astype(array.dtype.newbyteorder("="), copy=False)
