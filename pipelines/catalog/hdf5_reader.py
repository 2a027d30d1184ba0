"""HDF5: one- and two-dimensional data sets, or one compound table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.source import ROWS_PER_BATCH, ColumnInfo, Source, astropy_units

ASTROPY_SUFFIX = ".__table_column_meta__"


class Hdf5Source(Source):
    """The data sets of an HDF5 file.

    A column is named by its path in the file; the fields of a compound data set are
    columns by themselves. Units are the attribute ``unit`` or ``units``, or what
    astropy wrote beside its tables.
    """

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        self._places: dict[str, tuple[str, str | None, int]] = {}
        found: list[tuple[str, str | None, int | None]] = []
        described: dict[str, str] = {}

        def visit(place: str, item: object) -> None:
            if not isinstance(item, h5py.Dataset) or item.ndim not in (1, 2):
                return
            if place.endswith(ASTROPY_SUFFIX):
                lines = [line.decode() for line in np.asarray(item[:])]
                described.update(astropy_units(lines))
                return
            width = item.shape[1] if item.ndim == 2 else None
            for field in item.dtype.names or (None,):
                name = place if field is None else field
                self._places[name] = (place, field, item.shape[0])
                found.append((name, _unit(item) if field is None else None, width))

        with h5py.File(self.path, "r") as file:
            file.visititems(visit)
        if not found:
            raise InputError(f"{self.path} holds no data set of one or two dimensions")
        for name, unit, width in found:
            yield name, ColumnInfo(unit=described.get(name, unit), width=width)

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        rows = {name: self._places[name][2] for name in kinds}
        if len(set(rows.values())) > 1:
            raise InputError(f"{self.path}: columns of different lengths: {rows}")
        with h5py.File(self.path, "r") as file:
            for start in range(0, max(rows.values(), default=0), ROWS_PER_BATCH):
                piece = slice(start, start + ROWS_PER_BATCH)
                yield {name: self._column(file, name, piece) for name in kinds}

    def _column(self, file: h5py.File, name: str, piece: slice) -> np.ndarray:
        place, field, _ = self._places[name]
        dataset: Any = file[place]
        values = np.asarray(dataset[piece] if field is None else dataset[field, piece])
        return values.astype(values.dtype.newbyteorder("="), copy=False)


def _unit(dataset: h5py.Dataset) -> str | None:
    value = dataset.attrs.get("unit", dataset.attrs.get("units"))
    text = value.decode() if isinstance(value, bytes) else value
    return text.strip() or None if text else None
