"""FITS tables, binary or ASCII."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from astropy.io import fits
from astropy.io.fits.verify import VerifyWarning
from astropy.utils.exceptions import AstropyUserWarning

from pipelines.base.errors import InputError
from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    refuse_duplicates,
    unreadable,
)


class FitsSource:
    """The one table of a FITS file; see `pipelines.catalog.source.Source`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _only_table(path) as table:
            columns = list(table.columns)
        refuse_duplicates(path, [column.name for column in columns])
        self.columns = {
            column.name: ColumnInfo(unit=column.unit, width=_width(column))
            for column in columns
        }

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        with _only_table(self.path) as table:
            names = list(table.columns.names)
            nulls = {name: table.columns[names.index(name)].null for name in kinds}
            for start in range(0, int(table.header["NAXIS2"]), ROWS_PER_BATCH):
                rows = table.data[start : start + ROWS_PER_BATCH]
                yield {
                    name: _native(rows.field(names.index(name)), nulls[name])
                    for name in kinds
                }


@contextmanager
def _only_table(path: Path) -> Iterator[Any]:
    """Yield the table's HDU; every way a FITS file can be broken is `InputError`."""
    with warnings.catch_warnings():
        # Truncation is checked below, and odd headers are no reason to stop.
        warnings.simplefilter("ignore", AstropyUserWarning)
        warnings.simplefilter("ignore", VerifyWarning)
        try:
            with fits.open(path, memmap=True) as file:
                yield _find_table(path, file)
        except InputError:
            raise
        except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
            raise unreadable(path, error) from error


def _find_table(path: Path, file: fits.HDUList) -> Any:
    length = _length(path)
    tables = [
        (place, hdu)
        for place, hdu in enumerate(file)
        if isinstance(hdu, fits.BinTableHDU | fits.TableHDU)
    ]
    if len(tables) != 1:
        names = ", ".join(f"{place} {hdu.name!r}" for place, hdu in tables)
        raise InputError(
            f"{path} holds {len(tables)} tables ({names or 'only images'}), expected "
            "one: save the one that is meant in its own file"
        )
    hdu = tables[0][1]
    needed = (hdu.fileinfo() or {})["datLoc"] + hdu.size
    if length < needed:
        raise InputError(
            f"{path} is truncated: {length} bytes, its header calls for {needed}"
        )
    return hdu


def _length(path: Path) -> int:
    with open(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return path.stat().st_size
    with gzip.open(path, "rb") as file:
        return file.seek(0, 2)


def _width(column: Any) -> int | None:
    shape = column.dtype.shape
    return int(np.prod(shape)) if shape and shape != (1,) else None


def _native(values: Any, null: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    array = array.astype(array.dtype.newbyteorder("="))
    if array.ndim > 1:
        array = array.reshape(len(array), -1)
        array = array[:, 0] if array.shape[1] == 1 else array
    if null is not None and array.dtype.kind in "iu":
        return np.ma.masked_equal(array, null)
    return array
