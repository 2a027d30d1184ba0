"""Adding up entries of equal columns, row by row, in compiled code."""

from __future__ import annotations

import numpy as np

from dustmap.linalg.compiled_rows import Rows
from dustmap.linalg.compiled_tasks import compiled


def merged(rows: Rows, values_type: type) -> Rows:
    """The same rows with each column once, in ascending order.

    Sums are those of the given values, rounded to ``values_type`` at the end. Cost: one
    look-up in a table per entry and a sort per row.
    """
    most = int(np.diff(rows.pointers[: rows.count + 1]).max(initial=0))
    slots = 2 ** max(1, (2 * most - 1).bit_length())
    total = int(rows.pointers[rows.count])
    pointers = np.zeros(rows.count + 1, np.uint64)
    columns, values = np.empty(total, np.uint32), np.empty(total, values_type)
    kept = _merge(
        rows.pointers,
        rows.columns,
        rows.values,
        pointers,
        columns,
        values,
        np.full(slots, -1, np.int64),
        np.empty(slots),
        np.empty(max(1, most), np.int64),
        rows.count,
    )
    return Rows(
        pointers=pointers,
        columns=columns[:kept].copy(),
        values=values[:kept].copy(),
        first=rows.first,
        count=rows.count,
    )


# Knuth's multiplicative hashing, 2⁶⁴ / golden ratio; its upper bits are the slot.
_MULTIPLIER = np.uint64(11400714819323198485)


@compiled
def _merge(
    pointers, columns, values, out_pointers, out_columns, out_values,
    table, sums, keys, count,
):  # fmt: skip
    """A table of columns (−1: empty slot) per row; ``keys`` are (column, slot)."""
    shift = np.uint64(64)
    size = len(table)
    while size > 1:
        shift -= np.uint64(1)
        size >>= 1
    at = 0
    for r in range(count):
        found = 0
        for e in range(pointers[r], pointers[r + 1]):
            column = np.int64(columns[e])
            slot = np.int64((np.uint64(column) * _MULTIPLIER) >> shift)
            while table[slot] != column and table[slot] != -1:
                slot = (slot + 1) & (len(table) - 1)
            if table[slot] == -1:
                table[slot] = column
                sums[slot] = values[e]
                keys[found] = (column << 32) | slot
                found += 1
            else:
                sums[slot] += values[e]
        keys[:found].sort()
        for k in range(found):
            slot = keys[k] & 0xFFFFFFFF
            out_columns[at] = keys[k] >> 32
            out_values[at] = sums[slot]
            table[slot] = -1
            at += 1
        out_pointers[r + 1] = at
    return at
