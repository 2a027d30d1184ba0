"""Blocks of rows, for arrays of a bounded size."""

from collections.abc import Iterator


def rows_within(bytes_per_row: int, limit: int = 2**27) -> int:
    """Return how many rows fit into a block of memory [bytes]; at least one.

    ``bytes_per_row`` is what all arrays of a step need, to a factor of two.
    """
    return max(1, limit // bytes_per_row)


def row_blocks(count: int, bytes_per_row: int, limit: int = 2**27) -> Iterator[slice]:
    """Yield slices of ``count`` rows, in order, each of `rows_within` or fewer."""
    rows = rows_within(bytes_per_row, limit)
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))
