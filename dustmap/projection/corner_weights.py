"""Interpolation weights of nodes on a periodic lattice, in compiled code.

Consecutive nodes of a row that lie in one cell share its corners: their weights are
added up before anything is written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dustmap.linalg.compiled_tasks import compiled


class Lattice(NamedTuple):
    """A periodic grid with one to three axes, filled up to three.

    An absent axis has one point, one corner and the weight 1.
    """

    scales: np.ndarray  # (2, 3): origin, step
    sizes: np.ndarray  # (3, 3): points, corners of a cell, offset of the first corner
    cubic: bool

    @classmethod
    def make(
        cls,
        origin: tuple[float, ...],
        step: tuple[float, ...],
        shape: tuple[int, ...],
        cubic: bool,
    ) -> Lattice:
        """The lattice ``origin + i step`` with linear or cubic interpolation."""
        scales, sizes = np.zeros((2, 3)), np.zeros((3, 3), np.int64)
        scales[1], sizes[:2] = 1.0, 1
        present = slice(len(shape))
        scales[:, present] = origin, step
        sizes[0, present] = shape
        sizes[1:, present] = [[4], [-1]] if cubic else [[2], [0]]
        return cls(scales=scales, sizes=sizes, cubic=cubic)

    @property
    def size(self) -> int:
        """Number of points."""
        return int(np.prod(self.sizes[0]))

    @property
    def corner_count(self) -> int:
        """Weights per node."""
        return int(np.prod(self.sizes[1]))


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
    points, weights, axes, starts, scales, sizes, cubic, pointers, columns, values
):
    """Write the entries of rows of nodes ``starts[r] … starts[r + 1]``.

    ``axes`` holds an axis of differentiation or −1 for each node, or nothing at all.
    """
    corner, sums = np.ones((3, 4)), np.zeros(64)
    cell, here = np.zeros(3, np.int64), np.zeros(3, np.int64)
    at = 0
    pointers[0] = 0
    for r in range(len(starts) - 1):
        for j in range(starts[r], starts[r + 1]):
            moved = j == starts[r]
            axis = axes[j] if len(axes) else -1
            for d in range(points.shape[1]):
                place = (points[j, d] - scales[0, d]) / scales[1, d]
                floor = np.floor(place)
                here[d] = int(floor)
                if here[d] != cell[d]:
                    moved = True
                _axis_weights(place - floor, scales[1, d], cubic, axis == d, corner[d])
            if moved:
                if j > starts[r]:
                    at = _write_cell(sizes, cell, sums, columns, values, at)
                for d in range(3):
                    cell[d] = here[d]
            c = 0
            for i in range(sizes[1, 0]):
                first = weights[j] * corner[0, i]
                for k in range(sizes[1, 1]):
                    second = first * corner[1, k]
                    for m in range(sizes[1, 2]):
                        sums[c] += second * corner[2, m]
                        c += 1
        if starts[r + 1] > starts[r]:
            at = _write_cell(sizes, cell, sums, columns, values, at)
        pointers[r + 1] = at


@compiled
def _axis_weights(t, step, cubic, slope, out):
    """Weights of an axis at fraction t of a cell, or their derivatives.

    Cubic convolution is that with a = −1/2 (Keys 1981).
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
def _write_cell(sizes, cell, sums, columns, values, at):
    """Write the sums at the corners of a cell, and forget them."""
    c = 0
    for i in range(sizes[1, 0]):
        x = _wrapped(cell[0] + sizes[2, 0] + i, sizes[0, 0])
        for j in range(sizes[1, 1]):
            y = _wrapped(cell[1] + sizes[2, 1] + j, sizes[0, 1])
            line = (x * sizes[0, 1] + y) * sizes[0, 2]
            for k in range(sizes[1, 2]):
                columns[at] = line + _wrapped(cell[2] + sizes[2, 2] + k, sizes[0, 2])
                values[at] = sums[c]
                sums[c] = 0.0
                at += 1
                c += 1
    return at


@compiled
def _wrapped(index, size):
    """The index on the torus; a division would cost more than all else here."""
    if index < 0:
        return index + size
    if index >= size:
        return index - size
    return index
