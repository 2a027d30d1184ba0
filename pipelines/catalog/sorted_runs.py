"""Sorted runs: validated rows on disk between reading and the merge over the sky.

A run is an Arrow file of rows in the order of their keys, with the hashes of their
identifiers beside it, sorted too: both can be looked up by ranges without being read
whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import healpy
import numpy as np
import pyarrow as pa

from pipelines.base.errors import InputError
from pipelines.catalog.hashing import hash_identifiers
from pipelines.catalog.tables import to_arrow

DEEPEST = 29
"""HEALPix order of the sorting, 0.4 milliarcseconds."""
COUNT_ORDER = 8
"""HEALPix order at which stars are counted, 14 arcminutes."""
ROWS_PER_RUN = 1 << 19
KEY = "_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRun:
    """One file of rows and what is known of it without opening it.

    Parameters
    ----------
    stem
        Path without suffix.
    rows, first, last
        Number of rows, least and largest key.
    schema
        Of the rows, `KEY` left out.
    """

    stem: Path
    rows: int
    first: int
    last: int
    schema: pa.Schema


def read_run(stem: Path, first: int, last: int, without: np.ndarray) -> pa.Table:
    """Rows of a run with keys from ``first`` to below ``last``.

    ``without`` are the places in the run of rows to leave out, sorted, ``(k,)``.
    """
    with pa.memory_map(str(stem.with_suffix(".arrow"))) as source:
        table = pa.ipc.open_file(source).read_all()
    keys = table[KEY].chunk(0).to_numpy()
    start, stop = np.searchsorted(keys, [first, last])
    rows = table.slice(start, stop - start)
    lost = without[slice(*np.searchsorted(without, [start, stop]))] - start
    if len(lost):
        rows = rows.take(pa.array(np.delete(np.arange(len(rows)), lost)))
    return rows


class RunWriter:
    """Takes batches of canonical columns and writes `SortedRun` files from them.

    Parameters
    ----------
    stem
        Path that the names of the files begin with.
    over_sky
        Whether rows are sorted by HEALPix pixel; otherwise they stay in their order.

    Attributes
    ----------
    stars
        Rows in each pixel at order `COUNT_ORDER`, shape ``(12 · 4^order,)``.
    """

    def __init__(self, stem: Path, *, over_sky: bool) -> None:
        self.runs: list[SortedRun] = []
        self.stars = np.zeros(12 * 4**COUNT_ORDER, dtype=np.int64)
        self._stem, self._over_sky = stem, over_sky
        self._waiting: list[pa.Table] = []

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append one batch; columns of shape ``(n,)``, among them ``l`` and ``b``."""
        key = np.zeros(len(columns["l"]), dtype=np.int64)
        if self._over_sky:
            key = sky_order(columns["l"], columns["b"])
        arrays = {name: to_arrow(column) for name, column in columns.items()}
        self._waiting.append(pa.table({**arrays, KEY: pa.array(key)}))
        if sum(map(len, self._waiting)) >= ROWS_PER_RUN:
            self.close()

    def close(self) -> None:
        """Write what is waiting."""
        if not self._waiting:
            return
        stem = self._stem.with_name(f"{self._stem.name}-{len(self.runs):05d}")
        table = joined(self._waiting)
        self._waiting = []
        key = table[KEY].to_numpy()
        order = np.argsort(key, kind="stable")
        if "source_id" in table.column_names:
            _write_hashes(stem, table["source_id"], order)
        if self._over_sky:
            table = table.take(pa.array(order))
        table = table.combine_chunks()
        with (
            pa.OSFile(str(stem.with_suffix(".arrow")), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        pixel = key >> 2 * (DEEPEST - COUNT_ORDER)
        self.stars += np.bincount(pixel, minlength=len(self.stars))
        self.runs.append(
            SortedRun(
                stem=stem,
                rows=len(table),
                first=int(key[order[0]]),
                last=int(key[order[-1]]),
                schema=table.drop_columns([KEY]).schema,
            )
        )


def sky_order(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
    """HEALPix pixel (NESTED, order `DEEPEST`) of Galactic ``l, b`` [deg], ``(n,)``."""
    return healpy.ang2pix(2**DEEPEST, l, b, nest=True, lonlat=True)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables, the later ones' columns converted to the types of the first.

    Raises
    ------
    InputError
        If their columns differ, or a conversion would lose something.
    """
    schema = tables[0].schema
    try:
        # Arrow's errors are ValueErrors, also those of other names than the schema's.
        return pa.concat_tables([table.cast(schema) for table in tables])
    except (ValueError, pa.ArrowException) as error:
        raise InputError(
            f"the sources' columns do not fit together: {error}"
        ) from error


def _write_hashes(stem: Path, identifiers: pa.ChunkedArray, order: np.ndarray) -> None:
    """Save the hashes in order, those alike in the order of the rows' arrival.

    Beside each its row in the run.
    """
    hashes = hash_identifiers(identifiers.to_numpy())
    by_hash = np.argsort(hashes, kind="stable")
    row = np.empty(len(order), dtype=np.uint32)
    row[order] = np.arange(len(order), dtype=np.uint32)
    np.save(stem.with_suffix(".hashes.npy"), hashes[by_hash])
    np.save(stem.with_suffix(".rows.npy"), row[by_hash])
