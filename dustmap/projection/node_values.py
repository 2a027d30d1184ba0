"""Values of a field at nodes, interpolated linearly between the corners of cells.

A row of this matrix has eight weights, which follow from the node's place in its cell.
The cell's number and the place take 16 bytes in single precision; eight weights and
their columns take 64.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.compiled_products import load, multiply_add, store, zeros
from dustmap.linalg.compiled_tasks import compiled, inlined, over_rows
from dustmap.linalg.sparse import RowLoops, precision
from dustmap.projection.corner_weights import Lattice, node_cells


class NodeValues(RowLoops):
    """Values at points in nested boxes, ``(n, 3)``, with compiled loops on the CPU.

    Interleaved vectors hold the points of the boxes, without the tori's paddings.
    """

    def __init__(
        self, lattice: Lattice, points: Float[np.ndarray, "n 3"], dtype: torch.dtype
    ) -> None:
        count = len(points)
        self.shape = (count, lattice.size)
        self.dtype, self.device = dtype, torch.device("cpu")
        self.nonzeros = 8 * count
        boxes = np.array([grid.shape for grid in lattice.grids])
        sizes = boxes.prod(axis=1)
        self._levels = (np.cumsum(sizes) - sizes, boxes)
        columns = []
        for first, shape, box in zip(
            lattice.firsts, lattice.sizes[:, 0], boxes, strict=True
        ):
            x, y, z = np.ogrid[tuple(map(slice, box))]
            own = first + (x * shape[1] + y) * shape[2] + z
            columns.append(own.ravel().astype(np.uint32))
        self._used = np.concatenate(columns)
        self._cells = np.empty(count, np.uint32)
        self._places = np.empty((count, 3), precision(dtype))
        given = (points, lattice.scales, lattice.boxes, *self._levels)
        over_rows(node_cells, count, 20 * count, *given, self._cells, self._places)

    @property
    def bytes(self) -> int:
        return self._cells.nbytes + self._places.nbytes + self._used.nbytes

    def _runs(self, count: int) -> list[tuple[slice, tuple[Any, ...]]]:
        cuts = np.linspace(0, self.shape[0], count + 1).astype(int).tolist()
        runs = itertools.starmap(slice, itertools.pairwise(cuts))
        return [(r, (self._cells[r], self._places[r], *self._levels)) for r in runs]

    def matvec(self, x: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n"]:
        self._require(x, self.shape[1])
        return self._gather(_gather, x)

    def rmatvec(self, y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        self._require(y, self.shape[0])
        return self._scatter(_scatter, y)


@inlined
def _cell(cells, places, r, firsts, boxes):
    """Return a cell's lowest corners along four edges, and weights across and along."""
    level, cell = len(firsts) - 1, cells[r]
    while cell < firsts[level]:
        level -= 1
    line = np.uint64(boxes[level, 2])
    plane = line * np.uint64(boxes[level, 1])
    a = np.uint64(cell)
    one = places.dtype.type(1)
    u, v, w = places[r, 0], places[r, 1], places[r, 2]
    t, s = one - u, one - v
    edges = (a, a + line, a + plane, a + plane + line)
    return edges, (t * s, t * v, u * s, u * v), (one - w, w)


@compiled
def _gather(cells, places, firsts, boxes, x, y, like):
    for r in range(len(y)):
        edges, across, (low, high) = _cell(cells, places, r, firsts, boxes)
        near, far = zeros(like), zeros(like)
        for e in range(4):
            first = edges[e]
            near = multiply_add(across[e] * low, load(x, first, like), near)
            far = multiply_add(
                across[e] * high, load(x, first + np.uint64(1), like), far
            )
        store(multiply_add(1.0, near, far), y, r)


@compiled
def _scatter(cells, places, firsts, boxes, y, total, like):
    total[:] = 0
    for r in range(len(y)):
        edges, across, (low, high) = _cell(cells, places, r, firsts, boxes)
        row = load(y, r, like)
        for e in range(4):
            first = edges[e]
            sums = multiply_add(across[e] * low, row, load(total, first, like))
            store(sums, total, first)
            first += np.uint64(1)
            sums = multiply_add(across[e] * high, row, load(total, first, like))
            store(sums, total, first)
