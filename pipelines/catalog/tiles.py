"""Partitions of about equal size: HEALPix pixels of the orders that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.catalog.spill import COUNT_ORDER, DEEPEST


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """HEALPix pixel (NESTED, Galactic) whose stars make a partition."""

    order: int
    pixel: int

    @property
    def first(self) -> int:
        """Its first descendant at the order by which stars are sorted."""
        return self.pixel << 2 * (DEEPEST - self.order)

    @property
    def last(self) -> int:
        """One past its last descendant."""
        return (self.pixel + 1) << 2 * (DEEPEST - self.order)


def tile(counts: np.ndarray, limit: int, deepest: int = COUNT_ORDER) -> list[Tile]:
    """Cover all stars by the largest pixels with at most ``limit`` of them.

    Parameters
    ----------
    counts
        Stars in each pixel at order `COUNT_ORDER`, shape ``(12 · 4^order,)``.
    deepest
        Order beyond which no pixel is divided, whatever it holds.

    Returns
    -------
    Tiles that hold stars, in the order of the sky.
    """
    levels = [counts]
    for _ in range(COUNT_ORDER):
        levels.append(levels[-1].reshape(-1, 4).sum(axis=1))
    levels.reverse()
    tiles: list[Tile] = []
    whole = np.ones(12, dtype=bool)
    for order in range(deepest + 1):
        count = levels[order]
        small = (count <= limit) | (order == deepest)
        chosen = np.flatnonzero(whole & small & (count > 0))
        tiles += [Tile(order, int(pixel)) for pixel in chosen]
        whole = np.repeat(whole & ~small, 4)
    return sorted(tiles, key=lambda item: item.first)
