"""What chance would do: entries of one thing told apart, distances exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_PERMUTATIONS = 9999
# Of pairs, for each column.
_EXCHANGES = 10


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


def p_value(
    scores: np.ndarray, allowed: np.ndarray, generator: np.random.Generator
) -> tuple[float, float]:
    """How often exchanged columns score as much as the diagonal, one-sided.

    ``scores[i, j]`` is what line i scores with the distance of cloud j, and
    ``allowed[i, j]`` whether line i would have been judged with it. A cloud is judged
    only where its line is informed: orders that would not have been are none that
    chance could have brought (Efron & Petrosian 1999, JASA 94, 824).

    Returns
    -------
    The p-value by 9,999 random orders, the identity added, and their mean score.
    """
    rows = np.arange(len(scores))
    own = scores.diagonal().sum()
    totals = scores[rows, _orders(allowed, generator)].sum(axis=1)
    p = (1 + (totals >= own - 1e-12).sum()) / (1 + _PERMUTATIONS)
    return float(p), float((own + totals.sum()) / (1 + _PERMUTATIONS))


def _orders(allowed: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Random allowed orders ``(9999, n)``, exchangeable with the identity.

    All begin where a walk from the identity has led (Besag & Clifford 1989, Biometrika
    76, 633): the p-value holds however far from even the walks are still.
    """
    start = _walked(np.arange(len(allowed))[None], allowed, generator)
    return _walked(np.repeat(start, _PERMUTATIONS, axis=0), allowed, generator)


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
