"""Agreement expected by chance: grouped entries, exchanged distances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.csgraph import connected_components

_PERMUTATIONS = 9999
# Of pairs, for each column.
_EXCHANGES = 10


def groups(near: np.ndarray) -> list[int]:
    """Number the connected parts of a symmetric relation ``(n, n)``: 0, 1, …"""
    return connected_components(near, directed=False)[1].tolist()


def one_each(group: Sequence[int], width: Sequence[float]) -> list[int]:
    """Index of the narrowest of every group, in order."""
    members = [[i for i, own in enumerate(group) if own == g] for g in set(group)]
    return sorted(min(each, key=lambda i: width[i]) for each in members)


def p_value(
    scores: np.ndarray, allowed: np.ndarray, generator: np.random.Generator
) -> tuple[float, float]:
    """How often exchanged columns score as much as the diagonal, one-sided.

    ``scores[i, j]`` is what line i scores with the distance of cloud j, and
    ``allowed[i, j]`` whether line i would have been judged with it. A cloud is judged
    only where its line is informed: orders that would not have been are none that
    chance could have brought (Efron & Petrosian 1999, JASA 94, 824).

    All orders begin where a walk from the identity has led, which makes them
    exchangeable with it (Besag & Clifford 1989, Biometrika 76, 633): the p-value holds
    however far from even the walks are still.

    Returns
    -------
    The p-value by 9,999 random orders, the identity added, and their mean score.
    """
    rows = np.arange(len(scores))
    start = _walked(rows[None], allowed, generator)
    orders = _walked(np.repeat(start, _PERMUTATIONS, axis=0), allowed, generator)
    own = scores.diagonal().sum()
    totals = scores[rows, orders].sum(axis=1)
    p = (1 + (totals >= own - 1e-12).sum()) / (1 + _PERMUTATIONS)
    return float(p), float((own + totals.sum()) / (1 + _PERMUTATIONS))


def _walked(
    orders: np.ndarray, allowed: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Orders ``(r, n)`` after exchanges of random pairs, where these are allowed."""
    count, size = orders.shape
    every = np.arange(count)
    for _ in range(_EXCHANGES * size):
        one, two = generator.integers(size, size=(2, count))
        a, b = orders[every, one], orders[every, two]
        may = allowed[one, b] & allowed[two, a]
        orders[every, one] = np.where(may, b, a)
        orders[every, two] = np.where(may, a, b)
    return orders


def p_at_least(count: int, chances: Sequence[float]) -> float:
    """Probability of ``count`` or more successes, independent with these chances."""
    number = np.ones(1)
    for chance in chances:
        number = np.convolve(number, [1 - chance, chance])
    return float(number[count:].sum())
