"""Loops over the entries of compressed rows, for b interleaved columns at once.

Row r of the matrix has the entries ``pointers[r] … pointers[r + 1]``. Vectors are
``(length, width)`` in C order; ``like`` is a tuple of ``width`` zeros whose type is the
precision of the sums along a row. Indices are unsigned: signed ones are tested for
counting from the end at every entry.
"""

from __future__ import annotations

import numpy as np

from dustmap.linalg.compiled_lanes import (
    add_to_row,
    load,
    plus,
    plus_row,
    store,
    times,
    zeros,
)
from dustmap.linalg.compiled_tasks import compiled, inlined

# Unsigned like the pointers: the sum of a signed and an unsigned integer is a float.
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in (1, 2, 3, 4))


@inlined
def _row_sum(columns, values, x, like, first, last):
    """``Σ_e values_e x[columns_e]``; four sums, as one would wait for itself."""
    a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
    e = first
    while e + _FOUR <= last:
        a = plus_row(a, values[e], x, columns[e])
        b = plus_row(b, values[e + _ONE], x, columns[e + _ONE])
        c = plus_row(c, values[e + _TWO], x, columns[e + _TWO])
        d = plus_row(d, values[e + _THREE], x, columns[e + _THREE])
        e += _FOUR
    while e < last:
        a = plus_row(a, values[e], x, columns[e])
        e += _ONE
    return plus(plus(a, b), plus(c, d))


@compiled
def gather(pointers, columns, values, x, y, like, first, last):
    """``y[r] = Σ_c A_rc x[c]`` for the rows first … last."""
    for r in range(first, last):
        total = _row_sum(columns, values, x, like, pointers[r], pointers[r + 1])
        store(total, y, r)


@compiled
def scatter(pointers, columns, values, y, total, like, first, last):
    """``total[c] += Σ_r A_rc y[r]`` over the rows first … last."""
    for r in range(first, last):
        row = load(like, y, r)
        for e in range(pointers[r], pointers[r + 1]):
            add_to_row(total, columns[e], values[e], row)


@compiled
def gather_scatter(
    pointers, columns, values, x, weights, total, like, first, last, offset
):
    """``total[c] += Σ_r A_rc w_r (A x)_r``, each row read twice while it is in cache.

    Row r has the weight ``weights[offset + r]``.
    """
    for r in range(first, last):
        begin, end = pointers[r], pointers[r + 1]
        row = times(_row_sum(columns, values, x, like, begin, end), weights[offset + r])
        for e in range(begin, end):
            add_to_row(total, columns[e], values[e], row)


@compiled
def interleave(x, out, first, last):
    """``out[i, k] = x[k, i]``, and zero in the lanes that ``x`` has no column for."""
    for i in range(first, last):
        for k in range(x.shape[0]):
            out[i, k] = x[k, i]
        for k in range(x.shape[0], out.shape[1]):
            out[i, k] = 0.0


@compiled
def separate(parts, out, first, last):
    """``out[k, i] = Σ_t parts[t, i, k]``, summed in the order of the parts."""
    for i in range(first, last):
        for k in range(out.shape[0]):
            total = parts[0, i, k]
            for t in range(1, parts.shape[0]):
                total += parts[t, i, k]
            out[k, i] = total
