r"""P of very many stars, made anew in every product.

A row of P (:mod:`dustmap.projection.ray_tree`) follows from the direction and at most
three distances of a star: 21 bytes in fixed point, where its 24 entries would take 192.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg import compiled_products as loops
from dustmap.linalg.compiled_products import load, multiply_add, store, zeros
from dustmap.linalg.compiled_tasks import (
    compiled,
    in_parallel,
    inlined,
    thread_count,
)
from dustmap.linalg.operator import SizedOperator
from dustmap.linalg.sparse import in_stretches, interleaved, precision
from dustmap.memory import row_blocks, rows_within
from dustmap.projection.ray_tree import Ends, Placed, RayIntegrals, around

# Vectors that a pass over the stars serves at most.
_TOGETHER = 8


class StarRows(SizedOperator):
    """P: interpolations of stars between the places of the rays of ``integrals``.

    ``blocks`` hold the ends of ``count`` sight lines, all of one kind, that the rays
    were made for. Products are fastest where stars along neighbouring rays follow each
    other. Sums over stars are reproducible for one number of threads.
    """

    def __init__(
        self, integrals: RayIntegrals, blocks: Iterable[Ends], count: int
    ) -> None:
        self.shape = (count, integrals.shape[0])
        self.dtype, self.device = integrals.dtype, integrals.device
        self.integrals, at, found = integrals, 0, None
        shells = integrals.index.shells
        # Those that steps do not need are for fractions of a step.
        bits = 32 - len(shells.levels).bit_length()
        for ends in blocks:
            if found is None:
                # All have the same number of distances, with equal weights.
                found = Placed(
                    faces=np.empty(count, np.uint8),
                    angles=np.empty((count, 2), np.uint32),
                    depths=np.empty((count, ends.distances.shape[1]), np.uint32),
                )
                weights = ends.weights[0].astype(precision(self.dtype))
            placed, own = shells.placed(ends), slice(at, at + len(ends.directions))
            found.faces[own], found.angles[own] = placed.faces, placed.angles
            # Rounded down: a depth stays in its step.
            found.depths[own] = placed.depths * 2.0**bits
            at = own.stop
        if found is None or at != count:
            raise ValueError(f"expected {count} sight lines, got {at}")
        self._every = np.arange(self.shape[1], dtype=np.uint32)
        # As `_row_sum` takes it: a tuple for compiled loops.
        self._kept = *found, self._every
        self._stars = *found, weights, bits, *integrals.index.lists
        self.nonzeros = 8 * found.depths.size

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        return sum(x.nbytes for x in self._kept)

    def matvec(self, x: Float[Tensor, "*b p"]) -> Float[Tensor, "*b n"]:
        found = x.new_empty(*x.shape[:-1], len(self))
        for one, result in zip(_flat(x), _flat(found), strict=True):
            threads = thread_count(self.nonzeros)
            self._run(threads, _gather, one[:, None], result[:, None])
        return found

    def rmatvec(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b p"]:
        found = y.new_empty(*y.shape[:-1], self.shape[1])
        for one, result in zip(_flat(y), _flat(found), strict=True):
            # In float64: a place has many stars.
            self._sums(_scatter, np.float64, result[None], one[:, None])
        return found

    def gram(
        self, x: Float[Tensor, "*b p"], weights: Float[Tensor, " n"]
    ) -> Float[Tensor, "*b p"]:
        given, w, found = _flat(x), weights.contiguous().numpy(), torch.empty_like(x)
        for some in row_blocks(len(given), 1, _TOGETHER):
            width = next(n for n in (1, 4, _TOGETHER) if n >= len(given[some]))
            source = interleaved(given[some], self._every, width)
            self._sums(_gram, given.dtype, _flat(found)[some], source, w)
        return found

    def _sums(
        self, loop: Callable, dtype: Any, found: np.ndarray, *given: np.ndarray
    ) -> None:
        """Set sums over the stars at all places, for interleaved vectors."""
        width = given[0].shape[1]
        size = np.dtype(dtype).itemsize * self.shape[1] * width
        # A gibibyte for the sums of all threads.
        threads = min(thread_count(self.nonzeros * width), rows_within(size, 2**30))
        totals = np.empty((threads, self.shape[1], width), dtype)
        self._run(threads, loop, *given, totals)
        in_stretches(loops.separate, totals.size, totals, self._every, found)

    def _run(self, threads: int, loop: Callable, *given: np.ndarray) -> None:
        """Run a loop over all stars in parts; sums are of every part."""
        cuts = np.linspace(0, len(self), threads + 1).astype(np.int64)

        def task(part: int) -> None:
            *shared, last = given
            own = last if loop is _gather else last[part]
            like = (precision(self.dtype)(0),) * last.shape[-1]
            loop(cuts[part], cuts[part + 1], self._stars, *shared, own, like)

        in_parallel(task, threads)


def _flat(x: Tensor) -> np.ndarray:
    """Return all vectors of a batch as rows."""
    return x.reshape(-1, x.shape[-1]).contiguous().numpy()


@inlined
def _row_sum(
    n,
    x,
    like,
    faces,
    angles,
    depths,
    weights,
    bits,
    levels,
    steps,
    widths,
    firsts,
    places,
):
    """Return ``(P x)_n``."""
    total, real = zeros(like), weights.dtype.type
    for q in range(depths.shape[1]):
        depth = np.int64(depths[n, q])
        step = depth >> bits
        pixel, width, u, v, inner = around(
            faces[n], angles[n], step, levels, steps, widths, firsts
        )
        part = real(depth - (step << bits)) * real(1 / (1 << bits))
        u, v, one = real(u), real(v), real(1)
        before, after = zeros(like), zeros(like)
        for i in range(2):
            for j in range(2):
                weight = (u if i else one - u) * (v if j else one - v)
                place = np.uint64(places[pixel + i * width + j] + inner)
                before = multiply_add(weight, load(x, place, like), before)
                place += np.uint64(1)
                after = multiply_add(weight, load(x, place, like), after)
        total = multiply_add(weights[q] * (one - part), before, total)
        total = multiply_add(weights[q] * part, after, total)
    return total


@inlined
def _add_row(
    n,
    row,
    total,
    like,
    faces,
    angles,
    depths,
    weights,
    bits,
    levels,
    steps,
    widths,
    firsts,
    places,
):
    """Add ``row`` times the row of P to the total."""
    real = weights.dtype.type
    for q in range(depths.shape[1]):
        depth = np.int64(depths[n, q])
        step = depth >> bits
        pixel, width, u, v, inner = around(
            faces[n], angles[n], step, levels, steps, widths, firsts
        )
        part = real(depth - (step << bits)) * real(1 / (1 << bits))
        u, v, one = real(u), real(v), real(1)
        before = multiply_add(weights[q] * (one - part), row, zeros(like))
        after = multiply_add(weights[q] * part, row, zeros(like))
        for i in range(2):
            for j in range(2):
                weight = (u if i else one - u) * (v if j else one - v)
                place = np.uint64(places[pixel + i * width + j] + inner)
                sums = multiply_add(weight, before, load(total, place, like))
                store(sums, total, place)
                place += np.uint64(1)
                sums = multiply_add(weight, after, load(total, place, like))
                store(sums, total, place)


@compiled
def _gather(first, last, stars, x, y, like):
    """Set ``y = P x`` for the stars from ``first`` to ``last``."""
    for n in range(first, last):
        store(_row_sum(n, x, like, *stars), y, np.uint64(n))


@compiled
def _scatter(first, last, stars, y, total, like):
    """Set ``total = Pᵀ y`` over the stars from ``first`` to ``last``."""
    total[:] = 0
    for n in range(first, last):
        _add_row(n, load(y, np.uint64(n), like), total, like, *stars)


@compiled
def _gram(first, last, stars, x, weights, total, like):
    """Set ``total = Pᵀ diag(w) P x`` over the stars from ``first`` to ``last``."""
    total[:] = 0
    for n in range(first, last):
        row = multiply_add(weights[n], _row_sum(n, x, like, *stars), zeros(like))
        _add_row(n, row, total, like, *stars)
