"""Sorted runs: validated rows on disk between reading and the merge over the sky.

A run is an Arrow file of rows in the order of their keys, with the hashes of their
identifiers beside it, sorted too: both can be looked up by ranges without being read
whole. Which of its rows are repeated ones is saved beside it once it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import healpy
import numpy as np
import pyarrow as pa

from dustmap.splitmix import STEP, mixed
from pipelines.base.errors import InputError
from pipelines.catalog.tables import to_table

DEEPEST = 29
"""HEALPix order of the sorting, 0.4 milliarcseconds."""
COUNT_ORDER = 8
"""HEALPix order at which stars are counted, 14 arcminutes."""
ROWS_PER_RUN = 1 << 19
KEY = "_key"
"""Column of a run that is sorted over the sky: the pixel at order `DEEPEST`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRun:
    """One file of rows and what is known of it without opening it.

    ``stem`` is its path without suffix, ``first`` and ``last`` are the least and
    largest key, ``schema`` is that of the rows, `KEY` left out, and ``catalogue`` the
    number of the one that they come from.
    """

    stem: Path
    rows: int
    first: int = 0
    last: int = 0
    schema: pa.Schema
    catalogue: int = 0


def write_runs(
    stem: Path,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    over_sky: bool,
    catalogue: int = 0,
) -> tuple[list[SortedRun], np.ndarray]:
    """Write batches of canonical columns, shape ``(n,)``, as runs.

    Parameters
    ----------
    stem
        Path that the names of the files begin with.
    over_sky
        Whether rows are sorted by HEALPix pixel; otherwise they stay in their order.

    Returns
    -------
    The runs, and, over the sky, the stars in each pixel at order `COUNT_ORDER`, shape
    ``(12 · 4^order,)``.
    """
    runs, stars = [], no_stars()
    for table in _gathered(batches):
        place = stem.with_name(f"{stem.name}-{len(runs):05d}")
        order = np.arange(len(table))
        known: dict[str, Any] = {"schema": table.schema, "catalogue": catalogue}
        if over_sky:
            key = sky_order(table["l"].to_numpy(), table["b"].to_numpy())
            order = np.argsort(key, kind="stable")
            pixel = key >> 2 * (DEEPEST - COUNT_ORDER)
            stars += np.bincount(pixel, minlength=len(stars))
            known |= {"first": int(key[order[0]]), "last": int(key[order[-1]])}
        if "source_id" in table.column_names:
            _write_hashes(place, table["source_id"], order)
        if over_sky:
            table = table.append_column(KEY, pa.array(key)).take(pa.array(order))
        with pa.ipc.new_file(str(place.with_suffix(".arrow")), table.schema) as file:
            file.write_table(table.combine_chunks())
        runs.append(SortedRun(stem=place, rows=len(table), **known))
    return runs, stars


def read_run(stem: Path, keys: tuple[int, int] | None = None) -> pa.Table:
    """Rows of a run that are not repeated.

    ``keys`` restricts them to those from the first to below the second.
    """
    table = _stored(stem)
    start, stop = 0, len(table)
    if keys is not None:
        start, stop = np.searchsorted(table[KEY].chunk(0).to_numpy(), keys)
    rows = table.slice(start, stop - start)
    lost = _repeated_places(stem)
    lost = lost[slice(*np.searchsorted(lost, [start, stop]))] - start
    if len(lost):
        rows = rows.take(pa.array(np.delete(np.arange(len(rows)), lost)))
    return rows


def mark_repeated(run: SortedRun, places: np.ndarray) -> pa.Table:
    """Save which rows of a run are repeated, sorted, ``(k,)``; return these rows."""
    np.save(run.stem.with_suffix(".repeated.npy"), places)
    return _stored(run.stem).take(pa.array(places))


def sky_order(l: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: E741
    """HEALPix pixel (NESTED, order `DEEPEST`) of Galactic ``l, b`` [deg], ``(n,)``."""
    return healpy.ang2pix(2**DEEPEST, l, b, nest=True, lonlat=True)


def no_stars() -> np.ndarray:
    """Zero stars in each pixel at order `COUNT_ORDER`."""
    return np.zeros(12 * 4**COUNT_ORDER, dtype=np.int64)


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


def _gathered(batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[pa.Table]:
    """Tables of `ROWS_PER_RUN` rows or a batch more."""
    waiting: list[pa.Table] = []
    for columns in batches:
        waiting.append(to_table(columns))
        if sum(map(len, waiting)) >= ROWS_PER_RUN:
            yield _emptied(waiting)
    if waiting:
        yield _emptied(waiting)


def _emptied(waiting: list[pa.Table]) -> pa.Table:
    """The tables as one; the list is emptied, so that their memory can be freed."""
    table = joined(waiting).combine_chunks()
    waiting.clear()
    return table


def _stored(stem: Path) -> pa.Table:
    with pa.memory_map(str(stem.with_suffix(".arrow"))) as source:
        return pa.ipc.open_file(source).read_all()


def _repeated_places(stem: Path) -> np.ndarray:
    path = stem.with_suffix(".repeated.npy")
    return np.load(path, mmap_mode="r") if path.exists() else np.empty(0, np.int64)


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


def hash_identifiers(identifiers: np.ndarray) -> np.ndarray:
    """Return evenly spread 64-bit hashes, shape ``(n,)``: unique ones for integers.

    They are equal in every process and run. Two different strings share one with a
    probability of n² / 2⁶⁵: 3e-6 for ten million.
    """
    if identifiers.dtype == object:
        identifiers = _hash_strings(identifiers)
    return mixed(identifiers.astype(np.int64, copy=False).view(np.uint64))


def _hash_strings(strings: np.ndarray) -> np.ndarray:
    encoded = np.array([text.encode() for text in strings], dtype=np.bytes_)
    words = -(-max(encoded.dtype.itemsize, 1) // 8)
    padded = encoded.astype(f"S{8 * words}").view("<u8").reshape(len(strings), words)
    hashed = np.full(len(strings), STEP, dtype=np.uint64)
    for word in padded.T:
        # Padding is all zeros: skipping it makes the hash independent of the width.
        hashed = np.where(word == 0, hashed, mixed(hashed ^ mixed(word)))
    return hashed.view(np.int64)
