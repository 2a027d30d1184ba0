"""Partitions of about equal size: HEALPix pixels of the orders that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.catalog.counts import KeptRows
from pipelines.catalog.parquet_reader import to_numpy
from pipelines.catalog.repeats import rows_of
from pipelines.catalog.sorted_runs import (
    COUNT_ORDER,
    DEEPEST,
    KEY,
    SortedRun,
    joined,
    read_run,
)
from pipelines.catalog.tables import write_table
from pipelines.merge import Cells, merge_rows


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """HEALPix pixel (NESTED, Galactic) whose stars make a partition."""

    order: int
    pixel: int

    @property
    def first(self) -> int:
        """Its first descendant at the order by which stars are sorted."""
        return self.pixel << 2 * (DEEPEST - self.order)

    @property
    def last(self) -> int:
        """One past its last descendant."""
        return (self.pixel + 1) << 2 * (DEEPEST - self.order)


def tile(counts: np.ndarray, limit: int, deepest: int = COUNT_ORDER) -> list[Tile]:
    """Cover all stars by the largest pixels with at most ``limit`` of them.

    Parameters
    ----------
    counts
        Stars in each pixel at order `COUNT_ORDER`, shape ``(12 · 4^order,)``.
    deepest
        Order beyond which no pixel is divided, whatever it holds.

    Returns
    -------
    Tiles that hold stars, in the order of the sky.
    """
    tiles: list[Tile] = []
    whole = np.ones(12, dtype=bool)
    for order in range(deepest + 1):
        count = counts.reshape(12 * 4**order, -1).sum(axis=1)
        small = (count <= limit) | (order == deepest)
        chosen = np.flatnonzero(whole & small & (count > 0))
        tiles += [Tile(order, int(pixel)) for pixel in chosen]
        whole = np.repeat(whole & ~small, 4)
    return sorted(tiles, key=lambda item: item.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all partitions have in common.

    Parameters
    ----------
    schema
        Of the rows; all are converted to its types.
    repeated
        File with the numbers of repeated rows; see `pipelines.catalog.repeats`.
    units
        Of columns, by name; may name others too.
    cells
        In which stars are merged, if at all.
    """

    folder: Path
    schema: pa.Schema
    repeated: Path
    units: dict[str, str]
    cells: Cells | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Where a tile is written, and the runs by number that hold stars of it."""

    layout: Layout
    path: Path
    tile: Tile
    runs: dict[int, Path]


def partitions_of(
    layout: Layout, tiles: Sequence[Tile], runs: Sequence[SortedRun]
) -> Iterator[Partition]:
    """One partition for each tile; their names sort in the order of the sky."""
    for number, place in enumerate(tiles):
        name = f"part-{number:05d}-order-{place.order}-pixel-{place.pixel}.parquet"
        within = {
            which: run.stem
            for which, run in enumerate(runs)
            if run.first < place.last and run.last >= place.first
        }
        yield Partition(
            layout=layout, path=layout.folder / name, tile=place, runs=within
        )


def write_partition(part: Partition) -> KeptRows:
    """Write one partition, unless repeated rows were all it had."""
    columns = to_columns(_sorted_rows(part))
    kept = KeptRows()
    kept.note(columns)
    if not kept.stars:
        return kept
    if part.layout.cells is not None:
        columns, kept.outlying = merge_rows(columns, part.layout.cells)
        kept.rows = len(columns["l"])
    write_table(
        part.path,
        columns,
        units={
            name: unit for name, unit in part.layout.units.items() if name in columns
        },
        meta={"order": part.tile.order, "pixel": part.tile.pixel, "nested": True},
        kind="stars",
        overwrite=False,
    )
    return kept


def _sorted_rows(part: Partition) -> pa.Table:
    repeated = np.load(part.layout.repeated, mmap_mode="r")
    pieces = [
        read_run(stem, part.tile.first, part.tile.last, rows_of(repeated, number))
        for number, stem in part.runs.items()
    ]
    schema = part.layout.schema.append(pa.field(KEY, pa.int64()))
    table = joined([schema.empty_table(), *pieces])
    order = np.argsort(table[KEY].to_numpy(), kind="stable")
    return table.drop_columns([KEY]).take(pa.array(order))


def to_columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Rows of runs as canonical columns, shape ``(n,)`` each."""
    names = [name for name in table.column_names if name != KEY]
    return {name: to_numpy(table[name].combine_chunks()) for name in names}
