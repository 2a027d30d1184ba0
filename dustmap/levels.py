"""Nested regular grids: each half as coarse as the one before, and inside its box."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid, Torus, torus_positions
from dustmap.nested_grids import NestedGrids


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
        self.grids.require_shared_points()

    def __len__(self) -> int:
        return len(self.tori)

    @property
    def grids(self) -> NestedGrids:
        """The boxes' grids."""
        return NestedGrids(grids=tuple(torus.grid for torus in self.tori))

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

    def positions(self, refinement: int = 1) -> Float[Tensor, "f d"]:
        """Positions of all points, those of paddings at the nearest of their box."""
        return torch.cat([torus_positions(t, refinement) for t in self.tori])

    def constants(self, values: list[float]) -> Float[Tensor, " m"]:
        """A vector with one value for each level."""
        sizes = torch.tensor([torus.size for torus in self.tori])
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(sizes)
