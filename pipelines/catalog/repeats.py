"""Identifiers that occur more than once among the sorted runs, found piece by piece.

The hashes are looked at range by range, so that memory does not grow with the number
of rows beyond eight bytes for every repeated one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.catalog.parallel import Run
from pipelines.catalog.sorted_runs import SortedRun

_HASHES_AT_ONCE = 1 << 21
# A row is numbered by its run, shifted so far, and its place in that.
_PLACE = 32


class Repeated(NamedTuple):
    """Rows whose identifier came before, and objects of more than one catalogue.

    ``rows`` are their numbers, sorted, ``across`` whether only an earlier catalogue has
    it, both of shape ``(n,)``; ``pairs`` counts the objects that two catalogues share.
    """

    rows: np.ndarray
    across: np.ndarray
    pairs: Counter[tuple[int, int]]

    def places(self, which: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of one run, as places in it, and whether they are across."""
        start, end = np.searchsorted(self.rows, np.array([which, which + 1]) << _PLACE)
        return self.rows[start:end] - (which << _PLACE), self.across[start:end]


def find_repeated(run: Run, runs: Sequence[SortedRun]) -> Repeated:
    """Find identifiers that occur more than once among runs."""
    parts = [Repeated(np.empty(0, np.int64), np.empty(0, bool), Counter())]
    if runs and "source_id" in runs[0].schema.names:
        count = -(-sum(each.rows for each in runs) // _HASHES_AT_ONCE)
        bounds = [part * 2**64 // count for part in range(count + 1)]
        places = [(each.stem, each.catalogue) for each in runs]
        parts += run(partial(_repeated_in, places), pairwise(bounds))
    rows, across = (np.concatenate(each) for each in list(zip(*parts))[:2])
    order = np.argsort(rows)
    pairs = sum((part.pairs for part in parts), Counter())
    return Repeated(rows[order], across[order], pairs)


def _repeated_in(runs: Sequence[tuple[Path, int]], bounds: tuple[int, int]) -> Repeated:
    """Those with hashes from the first to below the last."""
    first, last = np.uint64(bounds[0]), np.uint64(bounds[1] - 1)
    found, numbers = [], []
    for which, (stem, _) in enumerate(runs):
        hashes = np.load(stem.with_suffix(".hashes.npy"), mmap_mode="r")
        start = np.searchsorted(hashes, first)
        stop = np.searchsorted(hashes, last, side="right")
        rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")[start:stop]
        found.append(np.array(hashes[start:stop]))
        numbers.append(rows.astype(np.int64) + (which << _PLACE))
    hashes, rows = np.concatenate(found), np.concatenate(numbers)
    # Stable, so that of equal ones the first that was read is the one that is kept.
    order = np.argsort(hashes, kind="stable")
    hashes, rows = hashes[order], rows[order]
    catalogue = np.array([number for _, number in runs])[rows >> _PLACE]
    again, own = (np.zeros(len(order), dtype=bool) for _ in range(2))
    again[1:] = hashes[1:] == hashes[:-1]
    own[1:] = again[1:] & (catalogue[1:] == catalogue[:-1])
    once, of = hashes[~own], catalogue[~own]
    pairs: Counter[tuple[int, int]] = Counter()
    for lag in range(1, len(once)):
        both = once[lag:] == once[:-lag]
        if not both.any():
            break
        shared = np.stack([of[:-lag][both], of[lag:][both]])
        kinds, counts = np.unique(shared, axis=1, return_counts=True)
        pairs.update(dict(zip(map(tuple, kinds.T.tolist()), counts.tolist())))
    return Repeated(rows[again], ~own[again], pairs)
