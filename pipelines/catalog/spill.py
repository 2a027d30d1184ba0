"""Rows that wait on disk between being read and being sorted over the sky.

A spill is an Arrow file of rows in the order of their HEALPix pixels, with the hashes
of their identifiers beside it, sorted too: both can be looked up by ranges without
being read whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import healpy
import numpy as np
import pyarrow as pa

from pipelines.base.errors import InputError
from pipelines.catalog.identity import hash_identifiers
from pipelines.catalog.tables import to_arrow

DEEPEST = 29
"""HEALPix order of the sorting, 0.4 milliarcseconds."""
COUNT_ORDER = 8
"""HEALPix order at which rows are counted, 14 arcminutes."""
ROWS_PER_SPILL = 1 << 19
PIXEL = "_pixel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """One file of rows and what is known of it without opening it.

    Parameters
    ----------
    stem
        Path without suffix.
    rows, first, last
        Number of rows, least and largest pixel at order `DEEPEST`.
    pixels, counts
        Pixels at order `COUNT_ORDER` that hold rows, and how many, shape ``(p,)``.
    schema
        Of the rows, `PIXEL` left out.
    """

    stem: Path
    rows: int
    first: int
    last: int
    pixels: np.ndarray
    counts: np.ndarray
    schema: pa.Schema


class SpillWriter:
    """Takes batches of canonical columns and writes `Spill` files from them.

    Parameters
    ----------
    stem
        Path that the names of the files begin with.
    """

    def __init__(self, stem: Path) -> None:
        self.spills: list[Spill] = []
        self._stem = stem
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append one batch; columns of shape ``(n,)``, among them ``l`` and ``b``."""
        pixel = sky_order(columns["l"], columns["b"])
        arrays = {name: to_arrow(column) for name, column in columns.items()}
        self._waiting.append(pa.table({**arrays, PIXEL: pa.array(pixel)}))
        self._rows += len(pixel)
        if self._rows >= ROWS_PER_SPILL:
            self.close()

    def close(self) -> None:
        """Write what is waiting."""
        if not self._waiting:
            return
        stem = self._stem.with_name(f"{self._stem.name}-{len(self.spills):05d}")
        table = joined(self._waiting)
        self._waiting, self._rows = [], 0
        pixel = table[PIXEL].to_numpy()
        order = np.argsort(pixel, kind="stable")
        if "source_id" in table.column_names:
            _write_hashes(stem, table["source_id"], order)
        table = table.take(pa.array(order)).combine_chunks()
        with (
            pa.OSFile(str(stem.with_suffix(".arrow")), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        coarse = pixel[order] >> 2 * (DEEPEST - COUNT_ORDER)
        pixels, counts = np.unique(coarse, return_counts=True)
        self.spills.append(
            Spill(
                stem=stem,
                rows=len(table),
                first=int(pixel[order[0]]),
                last=int(pixel[order[-1]]),
                pixels=pixels,
                counts=counts,
                schema=table.drop_columns([PIXEL]).schema,
            )
        )


def sky_order(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
    """HEALPix pixel (NESTED, order `DEEPEST`) of Galactic ``l, b`` [deg], ``(n,)``."""
    return healpy.ang2pix(2**DEEPEST, l, b, nest=True, lonlat=True)


def joined(tables: list[pa.Table]) -> pa.Table:
    """Join tables, the later ones' columns converted to the types of the first.

    Raises
    ------
    InputError
        If their columns differ, or a conversion would lose something.
    """
    schema = tables[0].schema
    try:
        return pa.concat_tables([_cast(table, schema) for table in tables])
    except (ValueError, pa.ArrowException) as error:
        raise InputError(
            f"the sources' columns do not fit together: {error}"
        ) from error


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.column_names != schema.names:
        raise ValueError(f"columns {table.column_names} after {schema.names}")
    return table.cast(schema)


def read_rows(stem: Path, first: int, last: int) -> tuple[pa.Table, int]:
    """Return the rows of a spill with pixels from ``first`` to below ``last``.

    And the place of the first of them in the spill.
    """
    with pa.memory_map(str(stem.with_suffix(".arrow"))) as source:
        table = pa.ipc.open_file(source).read_all()
        pixels = table[PIXEL].chunk(0).to_numpy()
        start, stop = np.searchsorted(pixels, [first, last])
        return table.slice(start, stop - start), int(start)


def _write_hashes(stem: Path, identifiers: pa.ChunkedArray, order: np.ndarray) -> None:
    """Save the hashes in order, those alike in the order of the rows' arrival.

    Beside each its row in the spill.
    """
    column = identifiers.to_numpy()
    hashes = hash_identifiers(column)
    by_hash = np.argsort(hashes, kind="stable")
    row = np.empty(len(order), dtype=np.uint32)
    row[order] = np.arange(len(order), dtype=np.uint32)
    np.save(stem.with_suffix(".hashes.npy"), hashes[by_hash])
    np.save(stem.with_suffix(".rows.npy"), row[by_hash])
