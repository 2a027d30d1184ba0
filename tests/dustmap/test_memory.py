"""Blocks of rows that fit into memory."""

import pytest

from dustmap.memory import row_blocks, rows_within


@pytest.mark.parametrize("count", [0, 1, 7, 8, 30])
def test_blocks_cover_all_rows_once_and_in_order(count):
    blocks = list(row_blocks(count, 16, limit=128))
    assert [row for block in blocks for row in range(count)[block]] == [*range(count)]
    assert all(block.stop - block.start <= 8 for block in blocks)
    assert len(blocks) == -(-count // 8)


def test_a_row_beyond_the_limit_is_a_block_of_its_own():
    assert rows_within(2**40) == 1
    assert len(list(row_blocks(3, 2**40))) == 3
