"""Partitions of about equal size: HEALPix pixels of the orders that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.catalog.merging import Cells, merge_rows
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.sorted_runs import (
    COUNT_ORDER,
    DEEPEST,
    KEY,
    SortedRun,
    joined,
    read_run,
)
from pipelines.catalog.tables import open_table


class Tile(NamedTuple):
    """HEALPix pixel (NESTED, Galactic) whose stars make a partition."""

    order: int
    pixel: int

    @property
    def keys(self) -> tuple[int, int]:
        """Its first and one past its last descendant at order `DEEPEST`."""
        shift = 2 * (DEEPEST - self.order)
        return self.pixel << shift, (self.pixel + 1) << shift


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
    return sorted(tiles, key=lambda item: item.keys)


class Partition(NamedTuple):
    """Where a tile is written, and the stems of the runs that hold stars of it."""

    path: Path
    tile: Tile
    stems: list[Path]


def partitions_of(
    folder: Path, tiles: Sequence[Tile], runs: Sequence[SortedRun]
) -> Iterator[Partition]:
    """One partition for each tile; their names sort in the order of the sky."""
    for number, place in enumerate(tiles):
        name = f"part-{number:05d}-order-{place.order}-pixel-{place.pixel}.parquet"
        first, last = place.keys
        stems = [run.stem for run in runs if run.first < last and run.last >= first]
        yield Partition(folder / name, place, stems)


def write_partition(
    schema: pa.Schema, units: dict[str, str], cells: Cells | None, part: Partition
) -> tuple[int, int]:
    """Write one partition, unless repeated rows were all it had.

    Its rows are converted to the types of ``schema``, columns have ``units`` by name,
    and stars are merged in ``cells``, if at all.

    Returns
    -------
    The number of rows, and of outlying ones among them that were not merged.
    """
    schema = schema.append(pa.field(KEY, pa.int64()))
    pieces = [read_run(stem, part.tile.keys) for stem in part.stems]
    table = joined([schema.empty_table(), *pieces])
    if not len(table):
        return 0, 0
    order = np.argsort(table[KEY].to_numpy(), kind="stable")
    columns, outlying = table.drop_columns([KEY]).take(pa.array(order)), 0
    if cells is not None:
        names = [name for name in CANONICAL_UNITS if name in columns.column_names]
        arrays = {name: columns[name].to_numpy() for name in names}
        columns, outlying = merge_rows(arrays, cells)
    with open_table(part.path, units=units, kind="stars", overwrite=False) as writer:
        writer.write(columns)
        order, pixel = part.tile
        writer.describe({"order": order, "pixel": pixel, "nested": True})
    return len(columns["l"]), outlying
