"""Blocks of rows, for arrays of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator


def rows_within(bytes_per_row: float, limit: int = 2**27) -> int:
    """Return the number of rows that fit into a limit [bytes], at least one.

    ``bytes_per_row`` is the memory of all arrays of a step, to a factor of two. Results
    must not depend on it. The default of 128 MiB is little beside the memory of a map;
    with a smaller limit the arrays of a loop stay in the processor's cache.
    """
    return max(1, int(limit // max(bytes_per_row, 1)))


def row_blocks(count: int, bytes_per_row: float, limit: int = 2**27) -> Iterator[slice]:
    """Yield slices of ``count`` rows, in order, each of `rows_within` or fewer."""
    rows = rows_within(bytes_per_row, limit)
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))
