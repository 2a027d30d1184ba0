"""FITS tables (binary or ASCII) and VOTables, by way of `astropy.table`.

Plain FITS is mapped into memory. VOTables, and FITS inside gzip, are read whole: for
many millions of rows ask the archive for plain FITS or parquet.
"""

from __future__ import annotations

import gzip
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.io.votable import parse
from astropy.table import Table

from pipelines.base.errors import InputError
from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    Source,
    is_gzipped,
    refuse_duplicates,
)


class _AstropySource(Source):
    """A table that astropy holds; a format's `_load` reads the file's one table."""

    def _load(self) -> Table:
        raise NotImplementedError

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        self._table: Table | None = self._quietly()
        columns: Mapping[str, Any] = self._table.columns
        for name, column in columns.items():
            unit = str(column.unit or "").strip() or None
            text = column.description or None
            yield name, ColumnInfo(unit=unit, width=_width(column), description=text)

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        # It is let go after the last row, since it may be as large as the file.
        table = self._quietly() if self._table is None else self._table
        self._table = None
        for start in range(0, len(table), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            yield {name: _native(table[name][rows]) for name in kinds}

    def _quietly(self) -> Table:
        with warnings.catch_warnings():
            # Odd headers are no reason to stop, a truncated file is.
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", ".*may have been truncated")
            return self._load()

    def __getstate__(self) -> dict[str, Any]:
        # Another process reads it anew.
        return {**self.__dict__, "_table": None}

    def _not_one(self, held: str) -> InputError:
        return InputError(
            f"{self.path} holds {held}, expected one: save the one that is meant in "
            "its own file"
        )


class FitsSource(_AstropySource):
    """The one table of a FITS file."""

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

    def _load(self) -> Table:
        found = parse(self.path).iter_tables()
        tables = [table for table in found if not table.is_empty()]
        if len(tables) != 1:
            raise self._not_one(f"{len(tables)} tables with rows")
        refuse_duplicates(self.path, [field.name for field in tables[0].fields])
        return tables[0].to_table(use_names_over_ids=True)


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
