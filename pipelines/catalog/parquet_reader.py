"""Parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.catalog.source import (
    ROWS_PER_BATCH,
    ColumnInfo,
    astropy_units,
    refuse_duplicates,
    unreadable,
)


class ParquetSource:
    """One parquet file; see `pipelines.catalog.source.Source`.

    Units are taken from the fields' metadata (``unit`` or ``units``) or from the
    description that astropy or this program writes.

    Parameters
    ----------
    groups
        Only these row groups.
    """

    def __init__(self, path: Path, groups: range | None = None) -> None:
        self.path, self.groups = path, groups
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise unreadable(path, error) from error
        refuse_duplicates(path, schema.names)
        units = _described_units(schema.metadata or {})
        for field in schema:
            metadata = field.metadata or {}
            said = metadata.get(b"unit") or metadata.get(b"units")
            units |= {field.name: said.decode()} if said else {}
        self.columns = {
            field.name: ColumnInfo(
                unit=units.get(field.name),
                width=field.type.list_size
                if pa.types.is_fixed_size_list(field.type)
                else None,
            )
            for field in schema
        }

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        try:
            with pq.ParquetFile(self.path, pre_buffer=False) as file:
                for batch in file.iter_batches(
                    ROWS_PER_BATCH, row_groups=self.groups, columns=list(kinds)
                ):
                    yield {name: to_numpy(batch.column(name)) for name in kinds}
        except (pa.ArrowException, OSError) as error:
            raise unreadable(self.path, error) from error


def split_groups(path: Path, rows: int) -> list[range]:
    """Cut a parquet file into runs of row groups of about ``rows`` rows each.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from error
    runs, start, held = [], 0, 0
    for group in range(footer.num_row_groups):
        held += footer.row_group(group).num_rows
        if held >= rows or group == footer.num_row_groups - 1:
            runs.append(range(start, group + 1))
            start, held = group + 1, 0
    return runs or [range(0)]


def to_numpy(array: pa.Array) -> np.ndarray:
    """Return an Arrow array as NumPy: NaN, None or a mask where values are missing."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return to_numpy(array.dictionary_decode())
    if pa.types.is_decimal(kind):
        return to_numpy(array.cast(pa.float64()))
    if pa.types.is_fixed_size_list(kind):
        if array.null_count:
            # A missing row has no values in the flattened array.
            nothing = [None] * kind.list_size
            rows = [nothing if row is None else row for row in array.tolist()]
            array = pa.array(rows, kind)
        return to_numpy(array.flatten()).reshape(len(array), kind.list_size)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = array.to_numpy(zero_copy_only=False).astype(np.float64)
        values[missing] = np.nan
        return values
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if not array.null_count:
            return array.to_numpy(zero_copy_only=False)
        filled = array.fill_null(False if pa.types.is_boolean(kind) else 0)
        return np.ma.array(filled.to_numpy(zero_copy_only=False), mask=missing)
    return array.to_numpy(zero_copy_only=False).astype(object)


def _described_units(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    if b"table_meta_yaml" in metadata:
        return astropy_units(metadata[b"table_meta_yaml"].decode().split("\n"))
    return dict(json.loads(metadata.get(b"dustmap", b'{"units": {}}'))["units"])
