"""VOTables, parsed whole."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from astropy.io.votable import parse

from pipelines.base.errors import InputError
from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    refuse_duplicates,
    unreadable,
)


class VOTableSource:
    """The one table of a VOTable; see `pipelines.catalog.source.Source`.

    The format is XML and the parser holds the table in memory: for many millions of
    rows ask the archive for FITS or parquet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tables = [t for t in parse(path).iter_tables() if not t.is_empty()]
        except Exception as error:  # the XML parser's errors have no common base
            raise unreadable(path, error) from error
        if len(tables) != 1:
            raise InputError(
                f"{path} holds {len(tables)} tables with rows, expected one: save the "
                "one that is meant in its own file"
            )
        fields = tables[0].fields
        refuse_duplicates(path, [field.name for field in fields])
        self._array = tables[0].array
        self._names = dict(
            zip([field.name for field in fields], self._array.dtype.names or ())
        )
        self.columns = {
            field.name: ColumnInfo(
                unit=None if field.unit is None else str(field.unit),
                width=_width(self._array.dtype[self._names[field.name]]),
            )
            for field in fields
        }

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(self._array), ROWS_PER_BATCH):
            rows = self._array[start : start + ROWS_PER_BATCH]
            yield {name: rows[self._names[name]] for name in kinds}


def _width(kind: np.dtype) -> int | None:
    return int(np.prod(kind.shape)) if kind.shape else None
