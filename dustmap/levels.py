"""Nested regular grids: each half as coarse as the one before, and inside its box."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.grid import Grid, Torus, torus_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Grids on tori, the coarsest first; a field is a vector over all their points.

    At any place the finest grid whose box holds it is the one that counts. One torus
    alone is the ordinary case.

    Parameters
    ----------
    tori
        Each one's spacing is half of that of the one before; corners of its box are
        points of the coarser grid.

    Raises
    ------
    ValueError
        If there is no torus, or the grids are not nested so.
    """

    tori: tuple[Torus, ...]

    def __post_init__(self) -> None:
        if not self.tori:
            raise ValueError("levels need at least one torus")
        for coarse, fine in itertools.pairwise(t.grid for t in self.tori):
            _require_nested(coarse, fine)

    def __len__(self) -> int:
        return len(self.tori)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The boxes' grids."""
        return tuple(torus.grid for torus in self.tori)

    @property
    def dimension(self) -> int:
        """Number of axes D."""
        return self.tori[0].grid.dimension

    @property
    def size(self) -> int:
        """Number of points on all tori."""
        return sum(torus.size for torus in self.tori)

    @property
    def box(self) -> Grid:
        """The coarsest grid, whose box holds all others."""
        return self.tori[0].grid

    def split(self, field: Float[Tensor, "*batch m"]) -> tuple[Tensor, ...]:
        """A vector's parts, one for each level."""
        return field.split([torus.size for torus in self.tori], dim=-1)

    def level_of(self, x: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """The finest level whose box holds each point (0 outside of all)."""
        level = torch.zeros(len(x), dtype=torch.int64)
        for number, grid in enumerate(self.grids):
            level[grid.contains(x)] = number
        return level

    def positions(self, refinement: int = 1) -> Float[Tensor, "f d"]:
        """Positions of all points, those of paddings at the nearest of their box."""
        return torch.cat([torus_positions(t, refinement) for t in self.tori])

    def constants(self, values: list[float]) -> Float[Tensor, " m"]:
        """A vector with one value for each level."""
        sizes = torch.tensor([torus.size for torus in self.tori])
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(sizes)


def _require_nested(coarse: Grid, fine: Grid) -> None:
    if fine.dimension != coarse.dimension:
        raise ValueError(
            f"levels have {coarse.dimension} and {fine.dimension} axes: they need as "
            "many"
        )
    for h, finer in zip(coarse.spacing, fine.spacing, strict=True):
        if abs(finer - h / 2) > 1e-9 * h:
            raise ValueError(
                f"spacing must be halved from level to level, got {coarse.spacing} "
                f"and {fine.spacing}"
            )
    for corner in (fine.lower, fine.upper):
        index = coarse.index_of(corner)
        place = [o + i * h for o, i, h in zip(coarse.origin, index, coarse.spacing)]
        inside = all(0 <= i < n for i, n in zip(index, coarse.shape, strict=True))
        gaps = zip(place, corner, coarse.spacing, strict=True)
        if not inside or any(abs(a - b) > 1e-6 * h for a, b, h in gaps):
            raise ValueError(
                f"the corner {corner} of a level's box is no point of the coarser grid "
                f"from {coarse.lower} to {coarse.upper} every {coarse.spacing}"
            )
