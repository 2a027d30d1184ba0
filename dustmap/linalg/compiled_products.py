"""Loops over the entries of compressed rows, for b interleaved columns at once.

Row r of the matrix has the entries ``pointers[r] … pointers[r + 1]``. Vectors are
``(length, width)`` in C order; ``like`` is a tuple of ``width`` zeros whose type is the
precision of the sums along a row. Indices are unsigned: signed ones are tested for
counting from the end at every entry.
"""

from __future__ import annotations

import numpy as np

from dustmap.linalg.compiled_lanes import load, multiply_add, store, zeros
from dustmap.linalg.compiled_tasks import compiled, inlined

# Unsigned like the pointers: the sum of a signed and an unsigned integer is a float.
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in (1, 2, 3, 4))


@inlined
def _row_sum(columns, values, x, like, first, last):
    """``Σ_e values_e x[columns_e]``; four sums, as one would wait for itself."""
    a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
    e = first
    while e + _FOUR <= last:
        a = multiply_add(values[e], load(x, columns[e], like), a)
        b = multiply_add(values[e + _ONE], load(x, columns[e + _ONE], like), b)
        c = multiply_add(values[e + _TWO], load(x, columns[e + _TWO], like), c)
        d = multiply_add(values[e + _THREE], load(x, columns[e + _THREE], like), d)
        e += _FOUR
    while e < last:
        a = multiply_add(values[e], load(x, columns[e], like), a)
        e += _ONE
    return multiply_add(1.0, multiply_add(1.0, a, b), multiply_add(1.0, c, d))


@compiled
def gather(pointers, columns, values, x, y, like):
    """``y[r] = Σ_c A_rc x[c]``."""
    for r in range(len(y)):
        store(_row_sum(columns, values, x, like, pointers[r], pointers[r + 1]), y, r)


@compiled
def scatter(pointers, columns, values, y, total, like):
    """``total[c] += Σ_r A_rc y[r]``."""
    for r in range(len(y)):
        row = load(y, r, like)
        for e in range(pointers[r], pointers[r + 1]):
            sums = multiply_add(values[e], row, load(total, columns[e], like))
            store(sums, total, columns[e])


@compiled
def gather_scatter(pointers, columns, values, x, weights, total, like):
    """``total[c] += Σ_r A_rc w_r (A x)_r``; the second reading is from the cache."""
    for r in range(len(weights)):
        begin, end = pointers[r], pointers[r + 1]
        row = _row_sum(columns, values, x, like, begin, end)
        row = multiply_add(weights[r], row, zeros(like))
        for e in range(begin, end):
            sums = multiply_add(values[e], row, load(total, columns[e], like))
            store(sums, total, columns[e])


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
