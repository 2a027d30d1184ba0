"""The tori around nested grids, and the vector of a field at all their points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Torus
from dustmap.memory import rows_within
from dustmap.nested_grids import NestedGrids


@dataclass(frozen=True, slots=True, kw_only=True)
class Tori:
    """A torus around each of :class:`~dustmap.nested_grids.NestedGrids`.

    A field is a vector over the points of all tori, the coarsest first. Corners of each
    box are points of the coarser grid. There may be a single torus.

    Raises `ValueError` if there is no torus, or the grids are not nested in this way.
    """

    tori: tuple[Torus, ...]

    def __post_init__(self) -> None:
        self.grids.require_shared_points()

    def __len__(self) -> int:
        return len(self.tori)

    def __iter__(self) -> Iterator[Torus]:
        return iter(self.tori)

    def __getitem__(self, level: int) -> Torus:
        return self.tori[level]

    @property
    def grids(self) -> NestedGrids:
        """The boxes' grids."""
        return NestedGrids(grids=tuple(torus.grid for torus in self.tori))

    @property
    def size(self) -> int:
        """Number of points on all tori."""
        return sum(torus.size for torus in self.tori)

    def split(self, field: Float[Tensor, "*batch m"]) -> tuple[Tensor, ...]:
        """Return a vector's parts, one for each torus."""
        return field.split([torus.size for torus in self.tori], dim=-1)

    def constants(self, values: list[float]) -> Float[Tensor, " m"]:
        """Return a vector that is constant on each torus."""
        sizes = torch.tensor([torus.size for torus in self.tori])
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(sizes)

    def positions(self) -> Float[Tensor, "m d"]:
        """Return positions of the points; in paddings, of the box's nearest points.

        Values in the padding are not used: they need only be finite and smooth.
        """
        return torch.cat(list(self.position_blocks()))

    def position_blocks(self) -> Iterator[Float[Tensor, "k d"]]:
        """Yield `positions` of some planes at a time."""
        for torus in self.tori:
            axes = []
            for axis, n in enumerate(torus.shape):
                last = torus.grid.shape[axis] - 1
                index = torch.arange(n)
                beyond = torch.where(index - last <= n - index, last, 0)
                index = torch.where(index <= last, index, beyond)
                step = torus.grid.spacing[axis]
                axes.append(torus.grid.origin[axis] + step * index.to(torch.float64))
            # Positions take 24 bytes each, and as much again on the way.
            planes = rows_within(48 * torus.size // torus.shape[0])
            for first in axes[0].split(planes):
                mesh = torch.meshgrid(first, *axes[1:], indexing="ij")
                yield torch.stack(mesh, dim=-1).flatten(0, -2)
