"""Tables in memory, read as files are: by name and unit, faulty rows counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from astropy import units as u

from pipelines.base.errors import InputError

_NAME = "table in memory.parquet"


def is_table(stars: Any) -> bool:
    """Whether it has named columns: astropy's table, a DataFrame or a mapping."""
    return isinstance(stars, Mapping) or hasattr(stars, "columns")


@contextmanager
def as_file(table: Any) -> Iterator[Path]:
    """A table's columns with their units as a parquet file, while it is read.

    Parameters
    ----------
    table
        `astropy.table.Table` or ``QTable``, a DataFrame, or a mapping of arrays and
        quantities by name. Columns of a DataFrame have no units.

    Raises
    ------
    InputError
        If it holds a column that is no array of one value per row.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / _NAME
        names = list(getattr(table, "colnames", table))
        try:
            parts = [_column(str(name), table[name]) for name in names]
            fields = [
                pa.field(str(name), array.type, metadata={"unit": unit})
                for name, (array, unit) in zip(names, parts)
            ]
            arrays = [array for array, _ in parts]
            whole = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        except pa.ArrowException as error:
            raise InputError(f"the table in memory cannot be read: {error}") from error
        pq.write_table(whole, path)
        yield path


def _column(name: str, column: Any) -> tuple[pa.Array, str]:
    """A column and its unit, empty where it says none."""
    unit = str(getattr(column, "unit", None) or "")
    if isinstance(column, u.Quantity):
        column = column.value
    mask = np.ma.getmaskarray(column) if np.ma.isMaskedArray(column) else None
    values = np.asarray(column)
    if values.ndim != 1:
        raise InputError(
            f"column {name!r} has shape {values.shape}: expected one value per row"
        )
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return pa.array(values, mask=mask), unit
