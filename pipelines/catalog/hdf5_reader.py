"""HDF5: one- and two-dimensional data sets, or one compound table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    astropy_units,
    refuse_duplicates,
    unreadable,
)

ASTROPY_SUFFIX = ".__table_column_meta__"


class Hdf5Source:
    """The data sets of an HDF5 file; see `pipelines.catalog.source.Source`.

    A column is named by its path in the file; the fields of a compound data set are
    columns by themselves. Units are the attribute ``unit`` or ``units``, or what
    astropy wrote beside its tables.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[str, str | None]] = {}
        self._rows: dict[str, int] = {}
        widths: dict[str, int | None] = {}
        units: dict[str, str | None] = {}
        described: dict[str, str] = {}
        names: list[str] = []

        def visit(place: str, item: object) -> None:
            if not isinstance(item, h5py.Dataset) or item.ndim not in (1, 2):
                return
            if place.endswith(ASTROPY_SUFFIX):
                lines = [line.decode() for line in np.asarray(item[:])]
                described.update(astropy_units(lines))
                return
            for field in item.dtype.names or (None,):
                name = place if field is None else field
                names.append(name)
                self._places[name] = (place, field)
                self._rows[name] = item.shape[0]
                widths[name] = item.shape[1] if item.ndim == 2 else None
                units[name] = _unit(item) if field is None else None

        try:
            with h5py.File(path, "r") as file:
                file.visititems(visit)
        except (OSError, RuntimeError, KeyError) as error:
            raise unreadable(path, error) from error
        refuse_duplicates(path, names)
        if not names:
            raise InputError(f"{path} holds no data set of one or two dimensions")
        units |= described
        self.columns = {
            name: ColumnInfo(unit=units[name], width=widths[name]) for name in names
        }

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        rows = {name: self._rows[name] for name in kinds}
        if len(set(rows.values())) > 1:
            raise InputError(f"{self.path}: columns of different lengths: {rows}")
        try:
            with h5py.File(self.path, "r") as file:
                for start in range(0, max(rows.values(), default=0), ROWS_PER_BATCH):
                    piece = slice(start, start + ROWS_PER_BATCH)
                    yield {name: self._read(file, name, piece) for name in kinds}
        except (OSError, RuntimeError, KeyError) as error:
            raise unreadable(self.path, error) from error

    def _read(self, file: h5py.File, name: str, piece: slice) -> np.ndarray:
        place, field = self._places[name]
        dataset: Any = file[place]
        values = np.asarray(dataset[piece] if field is None else dataset[field, piece])
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _unit(dataset: h5py.Dataset) -> str | None:
    value = dataset.attrs.get("unit", dataset.attrs.get("units"))
    return value.decode() if isinstance(value, bytes) else value
