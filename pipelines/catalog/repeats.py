"""Identifiers that occur more than once among spilled rows, found piece by piece.

The 64-bit hashes are looked at range by range, so that memory does not grow with the
number of rows. Integers have hashes of their own; two different strings share one with
a probability of n² / 2⁶⁵.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.catalog.parallel import Run
from pipelines.catalog.spill import Spill

_HASHES_AT_ONCE = 1 << 21
_PLACE = 32
"""A row is numbered by its spill, shifted so far, and its row in that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Hashes from ``first`` to below ``last``, or to the end, of all spills."""

    stems: Sequence[Path]
    first: int
    last: int | None


def find_repeated(run: Run, spills: Sequence[Spill]) -> np.ndarray:
    """Return the numbers of the rows whose identifier came before, sorted, ``(r,)``.

    Spill ``s`` holds those from ``s << 32``. Takes eight bytes for every such row.
    """
    if not spills or "source_id" not in spills[0].schema.names:
        return np.empty(0, dtype=np.int64)
    rows = sum(spill.rows for spill in spills)
    count = -(-rows // _HASHES_AT_ONCE)
    bounds = [part * 2**64 // count for part in range(count)]
    stems = [spill.stem for spill in spills]
    pieces = [
        _Range(stems=stems, first=low, last=high)
        for low, high in zip(bounds, [*bounds[1:], None], strict=True)
    ]
    return np.sort(np.concatenate(list(run(_repeated_in, pieces))))


def rows_of(repeated: np.ndarray, spill: int) -> np.ndarray:
    """Which rows of one spill are among the repeated ones, ``(k,)``, sorted."""
    bounds = np.array([spill, spill + 1]) << _PLACE
    start, stop = np.searchsorted(repeated, bounds)
    return repeated[start:stop] - bounds[0]


def _repeated_in(piece: _Range) -> np.ndarray:
    hashes, numbers = [], []
    for spill, stem in enumerate(piece.stems):
        values = np.load(stem.with_suffix(".hashes.npy"), mmap_mode="r")
        start = np.searchsorted(values, np.uint64(piece.first))
        stop = len(values)
        if piece.last is not None:
            stop = np.searchsorted(values, np.uint64(piece.last))
        rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")[start:stop]
        hashes.append(np.array(values[start:stop]))
        numbers.append(rows.astype(np.int64) + (spill << _PLACE))
    joined, places = np.concatenate(hashes), np.concatenate(numbers)
    # Stable, so that of equal ones the first that was read is the one that is kept.
    order = np.argsort(joined, kind="stable")
    again = np.zeros(len(order), dtype=bool)
    again[1:] = joined[order][1:] == joined[order][:-1]
    return places[order][again]
