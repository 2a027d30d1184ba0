"""What chance would do: entries of one thing told apart, distances exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_PERMUTATIONS = 9999


def groups(near: np.ndarray) -> list[int]:
    """Number the connected parts of a symmetric relation ``(n, n)``: 0, 1, …"""
    label = np.arange(len(near))
    for _ in label:
        label = np.array([label[row].min() for row in near], dtype=int)
    return np.unique(label, return_inverse=True)[1].tolist()


def one_each(group: Sequence[int], width: Sequence[float]) -> list[int]:
    """Index of the narrowest of every group, in order."""
    best: dict[int, int] = {}
    for i, (own, wide) in enumerate(zip(group, width, strict=True)):
        if own not in best or wide < width[best[own]]:
            best[own] = i
    return sorted(best.values())


def p_value(scores: np.ndarray, generator: np.random.Generator) -> float:
    """How often exchanged columns score as much as the diagonal, one-sided.

    ``scores[i, j]`` is what line i scores with the distance of cloud j. The number of
    random permutations is 9,999, the identity added.
    """
    rows = np.arange(len(scores))
    own = scores.diagonal().sum()
    order = generator.permuted(np.tile(rows, (_PERMUTATIONS, 1)), axis=1)
    totals = scores[rows, order].sum(axis=1)
    return float((1 + (totals >= own - 1e-12).sum()) / (1 + _PERMUTATIONS))


def p_at_least(count: int, chances: Sequence[float]) -> float:
    """Probability of ``count`` or more successes, independent with these chances."""
    number = np.ones(1)
    for chance in chances:
        number = np.convolve(number, [1 - chance, chance])
    return float(number[count:].sum())
