"""Identifiers that occur more than once among the sorted runs, found piece by piece.

The hashes are looked at range by range, so that memory does not grow with the number
of rows beyond eight bytes for every repeated one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.catalog.parallel import Run
from pipelines.catalog.sorted_runs import SortedRun, mark_repeated

_HASHES_AT_ONCE = 1 << 21
# A row is numbered by its run, shifted so far, and its place in that.
_PLACE = 32


def find_repeated(run: Run, runs: Sequence[SortedRun]) -> Iterator[pa.Table]:
    """Mark the rows whose identifier came before, and yield those of each run."""
    if not runs or "source_id" not in runs[0].schema.names:
        return
    count = -(-sum(each.rows for each in runs) // _HASHES_AT_ONCE)
    bounds = [part * 2**64 // count for part in range(count + 1)]
    find = partial(_repeated_in, [each.stem for each in runs])
    numbers = np.sort(np.concatenate(list(run(find, pairwise(bounds)))))
    for which, each in enumerate(runs):
        ends = np.array([which, which + 1]) << _PLACE
        places = numbers[slice(*np.searchsorted(numbers, ends))] - ends[0]
        if len(places):
            yield mark_repeated(each, places)


def _repeated_in(stems: Sequence[Path], bounds: tuple[int, int]) -> np.ndarray:
    """Numbers of the repeated rows with hashes from the first to below the last."""
    first, last = np.uint64(bounds[0]), np.uint64(bounds[1] - 1)
    found, numbers = [], []
    for which, stem in enumerate(stems):
        hashes = np.load(stem.with_suffix(".hashes.npy"), mmap_mode="r")
        start = np.searchsorted(hashes, first)
        stop = np.searchsorted(hashes, last, side="right")
        rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")[start:stop]
        found.append(np.array(hashes[start:stop]))
        numbers.append(rows.astype(np.int64) + (which << _PLACE))
    joined, places = np.concatenate(found), np.concatenate(numbers)
    # Stable, so that of equal ones the first that was read is the one that is kept.
    order = np.argsort(joined, kind="stable")
    again = np.zeros(len(order), dtype=bool)
    again[1:] = joined[order][1:] == joined[order][:-1]
    return places[order][again]
