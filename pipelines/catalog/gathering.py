"""One partition: its stars from all spills, sorted over the sky, perhaps merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.catalog.counts import spreads_of
from pipelines.catalog.parquet_reader import to_numpy
from pipelines.catalog.repeats import rows_of
from pipelines.catalog.spill import PIXEL, joined, read_rows
from pipelines.catalog.spread import Spread
from pipelines.catalog.tables import write_table
from pipelines.catalog.tiles import Tile
from pipelines.merge import Cells, merge_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What is to be written where.

    Parameters
    ----------
    schema
        Of the rows; all are converted to its types.
    spills
        Number and stem of those that hold stars of the tile, in order.
    repeated
        File with the numbers of repeated rows; see `pipelines.catalog.repeats`.
    units
        Of columns, by name; may name others too.
    """

    path: Path
    tile: Tile
    schema: pa.Schema
    spills: tuple[tuple[int, Path], ...]
    repeated: Path
    units: dict[str, str]
    cells: Cells | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Stars of a partition, rows written, negative extinctions, outlying members.

    ``spreads`` are those of the stars' distances and extinctions.
    """

    stars: int
    rows: int
    negative: int
    outlying: int = 0
    spreads: dict[str, Spread] = field(default_factory=dict)


def gather(part: Partition) -> Gathered:
    """Write one partition, unless repeated rows were all it had."""
    table = _sorted_rows(part)
    stars = len(table)
    if not stars:
        return Gathered(stars=0, rows=0, negative=0)
    columns = {n: to_numpy(table[n].combine_chunks()) for n in table.column_names}
    negative = int((columns.get("extinction", np.zeros(1)) < 0).sum())
    outlying, spreads = 0, spreads_of(columns)
    if part.cells is not None:
        columns, outlying = merge_rows(columns, part.cells)
    write_table(
        part.path,
        columns,
        units={name: unit for name, unit in part.units.items() if name in columns},
        meta={"order": part.tile.order, "pixel": part.tile.pixel, "nested": True},
        kind="stars",
        overwrite=False,
    )
    rows = len(columns["l"])
    return Gathered(
        stars=stars,
        rows=rows,
        negative=negative,
        outlying=outlying,
        spreads=spreads,
    )


def _sorted_rows(part: Partition) -> pa.Table:
    repeated = np.load(part.repeated, mmap_mode="r")
    pieces = [part.schema.append(pa.field(PIXEL, pa.int64())).empty_table()]
    for number, stem in part.spills:
        rows, start = read_rows(stem, part.tile.first, part.tile.last)
        lost = rows_of(repeated, number) - start
        lost = lost[(lost >= 0) & (lost < len(rows))]
        if len(lost):
            rows = rows.take(pa.array(np.delete(np.arange(len(rows)), lost)))
        pieces.append(rows)
    table = joined(pieces)
    order = np.argsort(table[PIXEL].to_numpy(), kind="stable")
    return table.drop_columns([PIXEL]).take(pa.array(order))
