"""``Pᵀ D P`` of stars along the rays of a tree.

Stars between the same rays touch the same few places. Their products are added up in a
small dense matrix of these places, and its entries in the sparse whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float

from dustmap.linalg.compiled_tasks import compiled
from dustmap.linalg.sparse import Rows

# Entries of a row of P in one radial step: two places on each of four rays.
_CORNERS = 8
# Most steps of a row.
_STEPS = 3


class Entries(NamedTuple):
    """Entries of a symmetric matrix, of whose pairs only one is given.

    One may come several times, and counts as their sum.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def count(self) -> int:
        """The number of different entries, both of every pair."""
        aside = self.rows != self.columns
        both = self.rows.astype(np.int64) * 2**32 + self.columns
        return len(np.unique(both)) + len(np.unique(both[aside]))

    def pattern(self, size: int) -> scipy.sparse.csr_matrix:
        """Return a symmetric matrix with zeros at these entries."""
        both = np.concatenate(self[:2]), np.concatenate(self[1::-1])
        ones = np.ones(len(both[0]), np.int8)
        found = scipy.sparse.csr_matrix((ones, both), shape=(size, size))
        # Sums of ones may have overflowed to zero.
        found.data[:] = 1
        return found

    def add_to(self, matrix: scipy.sparse.csr_matrix) -> None:
        """Add these to a symmetric matrix that has them, with sorted columns."""
        _add(*self, matrix.indptr, matrix.indices, matrix.data)


def block_gram(
    rows: Rows, weights: Float[np.ndarray, " n"], starts: np.ndarray
) -> Entries:
    """Return ``Pᵀ diag(w) P``; ``starts`` are the first places of all rays."""
    pointers = rows.pointers.astype(np.int64)
    counts = np.diff(pointers) // _CORNERS
    # The first of the four rays at every step; missing steps repeat the last one.
    steps = np.minimum(np.arange(_STEPS)[:, None], counts - 1) * _CORNERS
    rays = np.searchsorted(starts, rows.columns[pointers[:-1] + steps], "right") - 1
    order = np.lexsort(rays)
    change = np.diff(rays[:, order], axis=1).any(axis=0)
    cuts = np.concatenate([[0], np.flatnonzero(change) + 1, [len(order)]])
    widest = 4 * _STEPS * int(np.diff(starts).max(initial=0))
    # Pages of memory that are not written do not exist.
    most = int(np.minimum(300 * np.diff(cuts), widest * (widest + 1) // 2).sum())
    found = Entries(
        rows=np.empty(most, np.int32),
        columns=np.empty(most, np.int32),
        values=np.empty(most, rows.values.dtype),
    )
    room = np.zeros(widest**2, rows.values.dtype), np.zeros(widest**2, np.bool_)
    given = (pointers, rows.columns, rows.values, weights, order, cuts, starts)
    count = _products(*given, *room, *found)
    return Entries(*(part[:count].copy() for part in found))


@compiled
def _products(
    pointers,
    columns,
    values,
    weights,
    order,
    cuts,
    starts,
    dense,
    seen,
    found_rows,
    found_columns,
    found_values,
):
    """Write the entries of all groups of stars, and return their number."""
    at = 0
    rays = np.empty(4 * _STEPS, np.int64)
    offsets = np.empty(4 * _STEPS, np.int64)
    local = np.empty(_CORNERS * _STEPS, np.int64)
    places = np.empty(4 * _STEPS * np.max(starts[1:] - starts[:-1]), np.int64)
    touched = np.empty(len(dense), np.int64)
    for group in range(len(cuts) - 1):
        count, width, number = 0, 0, 0
        for s in range(cuts[group], cuts[group + 1]):
            n = order[s]
            begin, end = pointers[n], pointers[n + 1]
            for e in range(begin, end):
                column = np.int64(columns[e])
                if (e - begin) % 2 == 0:
                    ray = -1
                    for r in range(number):
                        first = starts[rays[r]]
                        if first <= column < starts[rays[r] + 1]:
                            ray = r
                            break
                    if ray < 0:
                        ray = number
                        rays[ray] = np.searchsorted(starts, column, side="right") - 1
                        offsets[ray] = width
                        first = starts[rays[ray]]
                        for place in range(first, starts[rays[ray] + 1]):
                            places[width + place - first] = place
                        width += starts[rays[ray] + 1] - first
                        number += 1
                local[e - begin] = offsets[ray] + column - starts[rays[ray]]
            for e in range(begin, end):
                row, scaled = local[e - begin], weights[n] * values[e]
                for f in range(begin, end):
                    column = local[f - begin]
                    if column < row:
                        continue
                    where = row * len(places) + column
                    if not seen[where]:
                        seen[where] = True
                        touched[count] = where
                        count += 1
                    dense[where] += scaled * values[f]
        for t in range(count):
            where = touched[t]
            found_rows[at] = places[where // len(places)]
            found_columns[at] = places[where % len(places)]
            found_values[at] = dense[where]
            dense[where], seen[where] = 0.0, False
            at += 1
    return at


@compiled
def _add(rows, columns, values, pointers, indices, data):
    """Add every entry at both of its places."""
    for e in range(len(rows)):
        row, column = rows[e], columns[e]
        first, last = pointers[row], pointers[row + 1]
        data[first + np.searchsorted(indices[first:last], column)] += values[e]
        if row != column:
            first, last = pointers[column], pointers[column + 1]
            data[first + np.searchsorted(indices[first:last], row)] += values[e]
