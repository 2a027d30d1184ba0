"""Sizes of the blocks in which loops over many rows run."""

from __future__ import annotations


def rows_within(bytes_per_row: float, limit: int = 2**27) -> int:
    """Return the number of rows that fit into a limit [bytes], at least one.

    Results must not depend on it. The default of 128 MiB is little beside the memory of
    a map; with a smaller limit the arrays of a loop stay in the processor's cache.
    """
    return max(1, int(limit // max(bytes_per_row, 1)))
