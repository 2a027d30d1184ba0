"""The density of a map along rays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import ROUNDING, Grid
from dustmap.linalg.compiled_tasks import compiled, inlined, over_rows
from dustmap.nested_grids import NestedGrids


@dataclass(frozen=True, slots=True, kw_only=True)
class DensityCube:
    """Densities on regular grids around the observer, and their means in shells.

    Parameters
    ----------
    values
        Positive densities at the points of all grids in turn [mag/pc].
    grids
        Nested grids around the observer [pc], the coarsest first.
    """

    values: Float[Tensor, " m"]
    grids: tuple[Grid, ...]

    def edges(self) -> Float[Tensor, " b+1"]:
        """Return the bounds of shells [pc] out to the furthest point of the grids.

        A shell is as thick as the mean grid step there or a tenth of its distance,
        whichever is larger.
        """
        box = self.grids[0]
        corner = np.maximum(np.abs(box.lower), np.abs(box.upper))
        furthest, edges = float(np.linalg.norm(corner)), [0.0]
        while edges[-1] < furthest:
            level = sum(edges[-1] < grid.reach for grid in self.grids[1:])
            step = float(np.mean(self.grids[level].spacing))
            edges.append(edges[-1] + max(step, 0.1 * edges[-1]))
        return torch.tensor(edges, dtype=torch.float64)

    def levels(self) -> Int[Tensor, " b"]:
        """Return the number of the finest grid around the start of each shell."""
        return self.level_at(self.edges()[:-1])

    def level_at(self, distance: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """Return the number of the finest grid that contains spheres of radii [pc]."""
        reaches = [grid.reach for grid in self.grids[1:]]
        far = distance[:, None] < distance.new_tensor(reaches)
        return far.sum(dim=1)

    def at(self, points: Float[Tensor, "m 3"]) -> Float[Tensor, " m"]:
        """Return the density at points in the box, trilinear on the finest grid."""
        parts = self.values.split([grid.size for grid in self.grids])
        values = [p.reshape(g.shape).numpy() for p, g in zip(parts, self.grids)]
        found = NestedGrids(grids=self.grids).sample(values, points.numpy())
        return torch.from_numpy(found)

    def in_shells(
        self, directions: Float[Tensor, "n 3"], lengths: Float[Tensor, " n"]
    ) -> Float[Tensor, "n b"]:
        """Return the mean density of every shell along rays, zero beyond their ends.

        A shell is sampled at points at most a grid step apart.
        """
        edges = self.edges()
        spacing = [float(np.mean(grid.spacing)) for grid in self.grids]
        steps = self.values.new_tensor(spacing)[self.levels()]
        counts = (edges.diff() / steps - 1e-9).ceil().long()
        shells = torch.repeat_interleave(counts)
        number = torch.arange(len(shells)) - (counts.cumsum(0) - counts)[shells]
        at = edges[shells] + edges.diff()[shells] * (number + 0.5) / counts[shells]
        weights = 1 / counts[shells].double()
        # Points beyond the grids take the density of the nearest grid point.
        found = np.zeros((len(directions), len(counts)))
        shapes = np.array([grid.shape for grid in self.grids])
        sizes = shapes.prod(axis=1)
        grids = (
            np.array([grid.origin for grid in self.grids]),
            np.array([grid.spacing for grid in self.grids]),
            shapes,
            np.cumsum(sizes) - sizes,
            self.values.numpy(),
        )
        samples = tuple(x.numpy() for x in (at, shells, weights, edges[shells]))
        given = grids, directions.numpy(), lengths.numpy(), samples
        over_rows(_follow, len(found), 8 * len(found), *given, found)
        return torch.from_numpy(found)


@inlined
def _cell(at, count):
    """Return the lower index, the upper index and the fraction between them."""
    inside = min(max(at, 0.0), count - 1.0)
    low = min(int(inside), max(count - 2, 0))
    return low, min(low + 1, count - 1), inside - low


@inlined
def _within(at, count):
    """Return whether a place [cells] is in a closed box, up to rounding."""
    slack = ROUNDING * (count - 1)
    return -slack <= at <= count - 1 + slack


@inlined
def _interpolated(x, y, z, grids):
    """Return the density at a point, trilinear on the finest grid there."""
    origins, spacings, shapes, firsts, values = grids
    g = len(origins) - 1
    while g > 0 and not (
        _within((x - origins[g, 0]) / spacings[g, 0], shapes[g, 0])
        and _within((y - origins[g, 1]) / spacings[g, 1], shapes[g, 1])
        and _within((z - origins[g, 2]) / spacings[g, 2], shapes[g, 2])
    ):
        g -= 1
    i, u, a = _cell((x - origins[g, 0]) / spacings[g, 0], shapes[g, 0])
    j, v, b = _cell((y - origins[g, 1]) / spacings[g, 1], shapes[g, 1])
    k, w, c = _cell((z - origins[g, 2]) / spacings[g, 2], shapes[g, 2])
    row = shapes[g, 2]
    low, high = i * shapes[g, 1], u * shapes[g, 1]
    p, q = firsts[g] + (low + j) * row, firsts[g] + (low + v) * row
    r, s = firsts[g] + (high + j) * row, firsts[g] + (high + v) * row
    near = (1 - b) * ((1 - c) * values[p + k] + c * values[p + w])
    near += b * ((1 - c) * values[q + k] + c * values[q + w])
    far = (1 - b) * ((1 - c) * values[r + k] + c * values[r + w])
    far += b * ((1 - c) * values[s + k] + c * values[s + w])
    return (1 - a) * near + a * far


@compiled
def _follow(first, last, grids, directions, lengths, samples, found):
    """Add up weighted densities along the rays from ``first`` to ``last``."""
    at, shells, weights, starts = samples
    for n in range(first, last):
        x, y, z = directions[n]
        for m in range(len(at)):
            if starts[m] >= lengths[n]:
                break
            s = at[m]
            density = _interpolated(s * x, s * y, s * z, grids)
            found[n, shells[m]] += weights[m] * density
