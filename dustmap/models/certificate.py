"""How exactly nested grids have the covariance of their kernel, measured in seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.kernels import Radial
from dustmap.levels import Levels
from dustmap.projection import projection
from dustmap.whitening.nested import LevelWhitening

# Cells along an axis of the boxes that are measured, and points of each level.
_CELLS, _POINTS = 12, 24
# Directions of the rays, all through every seam.
_RAYS = 8
_TOGETHER = 16
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Largest deviations from the kernel, in parts of its variance.

    ``within`` a level and ``across`` the faces of finer boxes, of covariances;
    ``variance`` of points; ``lines`` of the variance of line integrals through all
    levels, relative to it.
    """

    within: float
    across: float
    variance: float
    lines: float

    def __str__(self) -> str:
        return (
            f"covariances are off by at most {self.within:.1e} of the variance within "
            f"a grid and {self.across:.1e} across a finer grid's faces, variances of "
            f"points by {self.variance:.1e}, of line integrals by {self.lines:.1e}"
        )


def certify(kernel: Radial, levels: Levels) -> Certificate:
    """Measure the covariance of white noise coloured on levels like these.

    They have the same spacings and gaps through the tori, and boxes of 12 cells around
    one centre: what deviates depends on cells alone.
    """
    small = _replica(levels)
    whitening = LevelWhitening(kernel, small)
    numbers, level, places = spread_points(small, _POINTS)
    unit = torch.zeros(len(numbers), small.size, dtype=torch.float64)
    unit[torch.arange(len(numbers)), numbers] = 1.0
    rows = _transposed(whitening, unit)
    off = (rows @ rows.mT - kernel(places[:, None] - places[None])).abs()
    off /= float(kernel.variance)
    same = level[:, None] == level
    return Certificate(
        within=float(off[same].max()),
        across=float(off[~same].max()) if len(small) > 1 else 0.0,
        variance=float(off.diagonal().max()),
        lines=_line_error(whitening, kernel),
    )


def _replica(levels: Levels) -> Levels:
    """Boxes of a few cells in each other's middle, with the gaps that levels have."""
    tori = []
    for torus in levels.tori:
        spacing = torus.grid.spacing
        grid = Grid(
            shape=(_CELLS + 1,) * levels.dimension,
            spacing=spacing,
            origin=tuple(-_CELLS / 2 * h for h in spacing),
        )
        gaps = zip(torus.shape, torus.grid.shape, strict=True)
        tori.append(Torus(grid=grid, shape=tuple(_CELLS + 1 + n - m for n, m in gaps)))
    return Levels(tori=tuple(tori))


def spread_points(
    levels: Levels, count: int
) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"], Float[Tensor, "k d"]]:
    """Random points that no finer level holds, so many of each level.

    Their numbers among all points, levels and places.
    """
    rng, found, first = np.random.default_rng(_SEED), [], 0
    for number, torus in enumerate(levels.tori):
        points = torus.grid.points()
        own = np.flatnonzero((levels.level_of(points) == number).numpy())
        own = rng.choice(own, min(count, len(own)), replace=False)
        index = np.unravel_index(own, torus.grid.shape)
        at = torch.from_numpy(first + np.ravel_multi_index(index, torus.shape))
        found.append((at, torch.full_like(at, number), points[own]))
        first += torus.size
    numbers, level, places = (torch.cat(parts) for parts in zip(*found, strict=True))
    return numbers, level, places


def _line_error(whitening: LevelWhitening, kernel: Radial) -> float:
    """Of the variance of integrals from the centre to the outermost box."""
    levels = whitening.levels
    rng = np.random.default_rng(_SEED)
    direction = rng.normal(size=(_RAYS, levels.dimension))
    direction /= np.abs(direction).max(axis=1, keepdims=True)
    ends = torch.from_numpy(direction * np.array(levels.box.upper))
    step = min(levels.box.spacing) / 2
    rays = LineIntegrals(ends, FixedStep(step=step, finer=levels.grids[1:]))
    W = projection(levels, rays)
    weights = W.rmatvec(torch.eye(_RAYS, dtype=torch.float64))
    found = _transposed(whitening, weights).square().sum(dim=1)
    positions, exact = levels.positions(), torch.empty_like(found)
    for number, row in enumerate(weights):
        seen = row.nonzero()[:, 0]
        at, w = positions[seen], row[seen]
        exact[number] = w @ kernel(at[:, None] - at[None]) @ w
    return float((found / exact - 1).abs().max())


def _transposed(
    whitening: LevelWhitening, rows: Float[Tensor, "n m"]
) -> Float[Tensor, "n m"]:
    """``Aᵀ`` of every row, a few together."""
    parts = [whitening.colour_transpose(part) for part in rows.split(_TOGETHER)]
    return torch.cat(parts)
