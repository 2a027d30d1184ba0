"""Identifiers that occur more than once among the sorted runs, found piece by piece.

The hashes are looked at range by range, so that memory does not grow with the number
of rows beyond eight bytes for every repeated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipelines.catalog.parallel import Run
from pipelines.catalog.sorted_runs import SortedRun

_HASHES_AT_ONCE = 1 << 21
_PLACE = 32
"""A row is numbered by its run, shifted so far, and its place in that."""


def find_repeated(run: Run, runs: Sequence[SortedRun]) -> np.ndarray:
    """Return the numbers of the rows whose identifier came before, sorted, ``(r,)``.

    Run ``s`` holds those from ``s << 32``.
    """
    if not runs or "source_id" not in runs[0].schema.names:
        return np.empty(0, dtype=np.int64)
    count = -(-sum(each.rows for each in runs) // _HASHES_AT_ONCE)
    bounds = [part * 2**64 // count for part in range(count + 1)]
    find = partial(_repeated_in, [each.stem for each in runs])
    return np.sort(np.concatenate(list(run(find, pairwise(bounds)))))


def rows_of(repeated: np.ndarray, run: int) -> np.ndarray:
    """Which rows of one run are among the repeated ones, ``(k,)``, sorted."""
    bounds = np.array([run, run + 1]) << _PLACE
    return repeated[slice(*np.searchsorted(repeated, bounds))] - bounds[0]


def _repeated_in(stems: Sequence[Path], bounds: tuple[int, int]) -> np.ndarray:
    """Numbers of the repeated rows with hashes from the first to below the last."""
    first, last = np.uint64(bounds[0]), np.uint64(bounds[1] - 1)
    found, numbers = [], []
    for run, stem in enumerate(stems):
        hashes = np.load(stem.with_suffix(".hashes.npy"), mmap_mode="r")
        start = np.searchsorted(hashes, first)
        stop = np.searchsorted(hashes, last, side="right")
        rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")[start:stop]
        found.append(np.array(hashes[start:stop]))
        numbers.append(rows.astype(np.int64) + (run << _PLACE))
    joined, places = np.concatenate(found), np.concatenate(numbers)
    # Stable, so that of equal ones the first that was read is the one that is kept.
    order = np.argsort(joined, kind="stable")
    again = np.zeros(len(order), dtype=bool)
    again[1:] = joined[order][1:] == joined[order][:-1]
    return places[order][again]
