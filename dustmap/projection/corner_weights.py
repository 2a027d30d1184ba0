"""Interpolation weights of nodes on nested periodic grids, in compiled code.

Consecutive nodes of a row that lie in one cell share its corners: their weights are
added up before anything is written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dustmap.grid import tolerant_faces
from dustmap.linalg.compiled_tasks import compiled
from dustmap.nested_grids import NestedGrids
from dustmap.tori import Tori


class Lattice(NamedTuple):
    """Nested periodic grids with one to three axes, filled up to three.

    An absent axis has one point, one corner and the weight 1.
    """

    grids: NestedGrids
    scales: np.ndarray  # (levels, 2, 3): origin, step
    sizes: np.ndarray  # (levels, 3, 3): points, corners of a cell, offset of the first
    boxes: np.ndarray  # (levels, 2, d): where a level applies unless a finer one does
    firsts: np.ndarray  # (levels,): first column
    cubic: bool

    @classmethod
    def make(cls, tori: Tori, refinement: int, cubic: bool) -> Lattice:
        """Describe the tori, refined, with linear or cubic interpolation."""
        count, grids = len(tori), tori.grids
        scales, sizes = np.zeros((count, 2, 3)), np.zeros((count, 3, 3), np.int64)
        scales[:, 1], sizes[:, :2] = 1.0, 1
        present = slice(grids.dimension)
        sizes[:, 1:, present] = [[4], [-1]] if cubic else [[2], [0]]
        for torus, scale, size in zip(tori, scales, sizes, strict=True):
            scale[0, present] = torus.grid.origin
            scale[1, present] = [h / refinement for h in torus.grid.spacing]
            size[0, present] = [n * refinement for n in torus.shape]
        points = sizes[:, 0].prod(axis=1)
        return cls(
            grids=grids,
            scales=scales,
            sizes=sizes,
            boxes=np.array([tolerant_faces(g.lower, g.upper) for g in grids]),
            firsts=np.cumsum(points) - points,
            cubic=cubic,
        )

    @property
    def size(self) -> int:
        """Number of points on all grids."""
        return int(self.sizes[:, 0].prod(axis=1).sum())

    @property
    def corner_count(self) -> int:
        """Number of weights per node."""
        return int(np.prod(self.sizes[0, 1]))


@compiled
def ray_nodes(start, end, lengths, counts, points, weights):
    """Write ``counts`` midpoint nodes between start and end of every ray."""
    at = 0
    for r in range(len(counts)):
        width = 1.0 / counts[r]
        for j in range(counts[r]):
            fraction = (j + 0.5) * width
            for d in range(start.shape[1]):
                points[at, d] = start[r, d] + fraction * (end[r, d] - start[r, d])
            weights[at] = width * lengths[r]
            at += 1


@compiled
def node_entries(
    points,
    weights,
    axes,
    starts,
    scales,
    sizes,
    boxes,
    firsts,
    cubic,
    pointers,
    columns,
    values,
):
    """Write the entries of rows of nodes ``starts[r] … starts[r + 1]``.

    ``axes`` holds an axis of differentiation or −1 for each node, or is empty.
    """
    corner, sums = np.ones((3, 4)), np.zeros(64)
    cell, here = np.zeros(3, np.int64), np.zeros(3, np.int64)
    # Of a variable's type: a constant compiles `_write_cell` once more.
    at = level = np.int64(0)
    pointers[0] = 0
    for r in range(len(starts) - 1):
        for j in range(starts[r], starts[r + 1]):
            moved = j == starts[r]
            axis = axes[j] if len(axes) else -1
            own = _level(points[j], boxes)
            if own != level:
                moved = True
            for d in range(points.shape[1]):
                step = scales[own, 1, d]
                place = (points[j, d] - scales[own, 0, d]) / step
                floor = np.floor(place)
                here[d] = int(floor)
                if here[d] != cell[d]:
                    moved = True
                _axis_weights(place - floor, step, cubic, axis == d, corner[d])
            if moved:
                if j > starts[r]:
                    first, size = firsts[level], sizes[level]
                    at = _write_cell(first, size, cell, sums, columns, values, at)
                level = own
                for d in range(3):
                    cell[d] = here[d]
            c = 0
            for i in range(sizes[0, 1, 0]):
                outer = weights[j] * corner[0, i]
                for k in range(sizes[0, 1, 1]):
                    inner = outer * corner[1, k]
                    for m in range(sizes[0, 1, 2]):
                        sums[c] += inner * corner[2, m]
                        c += 1
        if starts[r + 1] > starts[r]:
            first, size = firsts[level], sizes[level]
            at = _write_cell(first, size, cell, sums, columns, values, at)
        pointers[r + 1] = at


@compiled
def node_cells(first, last, points, scales, faces, firsts, boxes, cells, places):
    """Write the cells of nodes, by the number of their lowest corner, and places there.

    ``firsts`` and ``boxes`` are first numbers and shapes of the grids without padding.
    A node on an upper face lies in the last cell.
    """
    for j in range(first, last):
        own = _level(points[j], faces)
        cell = 0
        for d in range(3):
            place = (points[j, d] - scales[own, 0, d]) / scales[own, 1, d]
            lowest = max(0, min(int(place), boxes[own, d] - 2))
            places[j, d] = max(0.0, min(place - lowest, 1.0))
            cell = cell * boxes[own, d] + lowest
        cells[j] = firsts[own] + cell


@compiled
def _level(point, boxes):
    """Return the finest level whose box contains a point, or 0."""
    for level in range(len(boxes) - 1, 0, -1):
        inside = True
        for d in range(len(point)):
            if point[d] < boxes[level, 0, d] or point[d] > boxes[level, 1, d]:
                inside = False
        if inside:
            return level
    return 0


@compiled
def _axis_weights(t, step, cubic, slope, out):
    """Set ``out`` to weights of an axis at fraction t of a cell, or their derivatives.

    Cubic convolution has a = −1/2 (Keys 1981).
    """
    if cubic and slope:
        out[0] = ((-1.5 * t + 2.0) * t - 0.5) / step
        out[1] = (4.5 * t - 5.0) * t / step
        out[2] = ((-4.5 * t + 4.0) * t + 0.5) / step
        out[3] = (1.5 * t - 1.0) * t / step
    elif cubic:
        out[0] = ((-0.5 * t + 1.0) * t - 0.5) * t
        out[1] = (1.5 * t - 2.5) * t * t + 1.0
        out[2] = ((-1.5 * t + 2.0) * t + 0.5) * t
        out[3] = (0.5 * t - 0.5) * t * t
    elif slope:
        out[0] = -1.0 / step
        out[1] = 1.0 / step
    else:
        out[0] = 1.0 - t
        out[1] = t


@compiled
def _write_cell(first, sizes, cell, sums, columns, values, at):
    """Write the sums at the corners of a cell, and reset them to zero.

    ``first`` is the number of the grid's first column.
    """
    c = 0
    for i in range(sizes[1, 0]):
        x = _wrapped(cell[0] + sizes[2, 0] + i, sizes[0, 0])
        for j in range(sizes[1, 1]):
            y = _wrapped(cell[1] + sizes[2, 1] + j, sizes[0, 1])
            line = first + (x * sizes[0, 1] + y) * sizes[0, 2]
            for k in range(sizes[1, 2]):
                columns[at] = line + _wrapped(cell[2] + sizes[2, 2] + k, sizes[0, 2])
                values[at] = sums[c]
                sums[c] = 0.0
                at += 1
                c += 1
    return at


@compiled
def _wrapped(index, size):
    """Return the index on the torus, without a slow division."""
    if index < 0:
        return index + size
    if index >= size:
        return index - size
    return index
