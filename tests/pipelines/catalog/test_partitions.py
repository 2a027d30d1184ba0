"""Tiles cover every star once and hold about as many as they may."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.catalog.partitions import tile
from pipelines.catalog.sorted_runs import COUNT_ORDER


def crowded(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = np.zeros(12 * 4**COUNT_ORDER, dtype=np.int64)
    # Half of the sky empty, and a crowd in one place.
    np.add.at(counts, rng.integers(0, len(counts) // 2, 20_000), 1)
    np.add.at(counts, 1000 + rng.integers(0, 40, 30_000), 1)
    return counts


@pytest.mark.parametrize("deepest", [0, 3, COUNT_ORDER])
def test_tiles_cover_every_star_once(deepest: int) -> None:
    counts = crowded(deepest)
    covered = np.zeros(len(counts), dtype=np.int64)
    tiles = tile(counts, 2000, deepest)
    for item in tiles:
        shift = 2 * (COUNT_ORDER - item.order)
        covered[item.pixel << shift : (item.pixel + 1) << shift] += 1
    assert covered.max() == 1 and covered[counts > 0].min() == 1
    firsts = [item.keys for item in tiles]
    assert firsts == sorted(firsts)
    assert max(item.order for item in tiles) <= deepest


def test_tiles_are_as_large_as_the_limit_allows() -> None:
    counts = crowded(0)

    def held(order: int, pixel: int) -> int:
        shift = 2 * (COUNT_ORDER - order)
        return int(counts[pixel << shift : (pixel + 1) << shift].sum())

    for item in tile(counts, 2000):
        assert held(item.order, item.pixel) > 0
        assert held(item.order, item.pixel) <= 2000 or item.order == COUNT_ORDER
        if item.order:
            assert held(item.order - 1, item.pixel // 4) > 2000
