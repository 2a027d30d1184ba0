"""Quadrature rules: nodes of line integrals along rays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import ROUNDING, Grid, tolerant_faces
from dustmap.keyed_noise import Purpose, keyed_uniforms
from dustmap.nested_grids import NestedGrids
from dustmap.shapes import Points

# A fit of 90 rows asks for them 8,000 times.
_legendre = cache(np.polynomial.legendre.leggauss)

Fractions = tuple[Int[Tensor, " p"], Float[Tensor, " p"], Float[Tensor, " p"]]


class Rule(Protocol):
    """A quadrature rule on the unit interval, which may differ between rays."""

    def fractions(self, start: Points, end: Points) -> Fractions:
        """Return rows, positions in [0, 1] and weights (summing to 1 per row)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussLegendre:
    """``count`` Gauss–Legendre nodes on every ray."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")

    def fractions(self, start: Tensor, end: Tensor) -> Fractions:
        x, w = _legendre(self.count)
        n = len(start)
        rows = torch.arange(n).repeat_interleave(self.count)
        x, w = torch.as_tensor((x + 1) / 2), torch.as_tensor(w / 2)
        return rows, x.repeat(n), w.repeat(n)


class Pieces(NamedTuple):
    """Parts of rays with steps of one size, in order along every ray."""

    rows: Int[Tensor, " p"]
    low: Float[Tensor, " p"]  # start and end of each, in [0, 1]
    high: Float[Tensor, " p"]
    lengths: Float[Tensor, " p"]
    step: Float[Tensor, " p"]

    @property
    def counts(self) -> Int[Tensor, " p"]:
        """Number of steps of each part; rounding of its length adds none."""
        count = torch.ceil(self.lengths / self.step - ROUNDING)
        return count.clamp(min=1).to(torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stepped:
    """Steps of at most ``step``, halved from each of the ``grids`` to the next finer.

    Rays are cut at the faces of finer grids' boxes.
    """

    step: float
    grids: NestedGrids | None = None

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise ValueError(f"step must be positive, got {self.step}")

    def pieces(self, start: Points, end: Points) -> Pieces:
        """Return the rays' parts within each box; rays without length have one."""
        count, direction = len(start), end - start
        lengths = torch.linalg.vector_norm(direction, dim=-1)
        edges = [torch.zeros(count, 1), torch.ones(count, 1)]
        if self.grids is not None:
            edges += [_crossings(start, direction, grid) for grid in self.grids.finer]
        cuts = torch.cat([e.to(torch.float64) for e in edges], dim=1).sort(dim=1).values
        # A part as short as rounding would add a node in the next box.
        kept = cuts[:, 1:] - cuts[:, :-1] > 1e-12
        kept[:, -1] |= ~kept.any(dim=1)
        rows, number = kept.nonzero(as_tuple=True)
        low, high = cuts[rows, number], cuts[rows, number + 1]
        middle = start[rows] + ((low + high) / 2)[:, None] * direction[rows]
        step = torch.full_like(low, self.step)
        if self.grids is not None:
            level = torch.from_numpy(self.grids.level_of(middle.numpy())).clamp(min=0)
            step /= 2**level
        return Pieces(rows, low, high, (high - low) * lengths[rows], step)


class FixedStep(_Stepped):
    """The composite midpoint rule with even steps along every part of a ray."""

    __slots__ = ()

    def fractions(self, start: Tensor, end: Tensor) -> Fractions:
        pieces = self.pieces(start, end)
        counts, piece, step = _steps(pieces)
        width = ((pieces.high - pieces.low) / counts)[piece]
        return pieces.rows[piece], pieces.low[piece] + (step + 0.5) * width, width


class StepsOutwards(_Stepped):
    """The midpoint rule with steps from the start of a part, the last one cut short.

    Rays of one direction share all whole steps: their integrals increase with length
    wherever the field is positive and linear within a step. With :class:`FixedStep`
    every node, and so the error, changes with the length.
    """

    __slots__ = ()

    def fractions(self, start: Tensor, end: Tensor) -> Fractions:
        pieces = self.pieces(start, end)
        counts, piece, step = _steps(pieces)
        # A part shorter than a step has one node in its middle.
        width = pieces.step / torch.maximum(pieces.lengths, pieces.step)
        width = (width * (pieces.high - pieces.low))[piece]
        low = pieces.low[piece] + step * width
        high = torch.cat([low[1:], low.new_ones(min(len(low), 1))])
        last = step == counts[piece] - 1
        high[last] = pieces.high[piece][last]
        return pieces.rows[piece], (low + high) / 2, high - low


@dataclass(frozen=True, slots=True, kw_only=True)
class MonteCarlo:
    """``count`` independent uniform draws for every ray (HIP-GP's rule, eq. 7–8).

    The draws depend on the seed and on the ray itself, not on the other rays: ``k_un``
    and ``k_nn`` of one ray use the same nodes, in any batch.
    """

    count: int
    seed: int

    def fractions(self, start: Tensor, end: Tensor) -> Fractions:
        ends = torch.cat([start, end], dim=1)
        size = ends.norm(dim=1, keepdim=True).float()
        # Ends that differ by rounding are equal: 1e-8 of their distance, which has the
        # 24 bits of single precision.
        least = torch.finfo(torch.float32).tiny
        parts = (ends / size.clamp_min(least)).mul(1e8).round().long()
        keys = torch.cat([size.view(torch.int32).long(), parts], dim=1)
        drawn = torch.from_numpy(
            keyed_uniforms(keys.numpy(), self.count, self.seed, Purpose.NODES)
        )
        rows = torch.arange(len(ends)).repeat_interleave(self.count)
        weights = torch.full_like(drawn.view(-1), 1.0 / self.count)
        return rows, drawn.mT.reshape(-1), weights


def _steps(pieces: Pieces) -> tuple[Tensor, Tensor, Tensor]:
    """Return the steps of every part; the part of each step, and its number there."""
    counts = pieces.counts
    piece = torch.arange(len(counts)).repeat_interleave(counts)
    first = torch.cumsum(counts, 0) - counts
    return counts, piece, torch.arange(len(piece)) - first[piece]


def _crossings(start: Points, direction: Points, grid: Grid) -> Float[Tensor, "n 2"]:
    """Return where rays enter and leave a box, in [0, 1]; equal where they miss it."""
    lower, upper = start.new_tensor(grid.lower), start.new_tensor(grid.upper)
    safe = torch.where(direction == 0, 1.0, direction)
    faces = torch.stack([(lower - start) / safe, (upper - start) / safe])
    # Along an axis in which it does not move, a ray is always inside, or never.
    still = direction == 0
    low, high = map(torch.from_numpy, tolerant_faces(grid.lower, grid.upper))
    within = (start >= low) & (start <= high)
    near = torch.where(still, torch.where(within, -math.inf, math.inf), faces.amin(0))
    far = torch.where(still, torch.where(within, math.inf, -math.inf), faces.amax(0))
    enter, leave = near.amax(dim=1).clamp(0, 1), far.amin(dim=1).clamp(0, 1)
    return torch.stack([enter, torch.maximum(enter, leave)], dim=1)
