"""Sight lines from the observer, as rows that a covariance compares."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rays:
    """Rays from the observer to stars.

    Parameters
    ----------
    directions
        Unit vectors.
    lengths
        [pc].
    density
        Mean density along each ray [mag/pc], by which the free spectrum is scaled.
    """

    directions: Float[Tensor, "*n 3"]
    lengths: Float[Tensor, "*n"]
    density: Float[Tensor, "*n"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: Int[Tensor, "*m"] | slice) -> Rays:
        return Rays(
            directions=self.directions[rows],
            lengths=self.lengths[rows],
            density=self.density[rows],
        )

    def coordinates(self, stretch: float) -> Float[Tensor, "n 4"]:
        """``(a e, ln d)``, where nearest rows are nearest rays (``a`` = ``stretch``)."""
        logarithm = self.lengths.log()[..., None]
        return torch.cat([stretch * self.directions, logarithm], dim=-1)
