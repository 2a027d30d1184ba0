"""Values and derivatives of a field at points."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals.base import Functionals, Nodes, position_matrix


class _AtPoints(Functionals):
    """Functionals with one node each."""

    points: Float[Tensor, "n d"]
    axes: Int[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dimension(self) -> int:
        return self.points.shape[1]

    def nodes(self) -> Nodes:
        n = len(self)
        return Nodes(
            points=self.points,
            weights=torch.ones(n, dtype=torch.float64),
            rows=torch.arange(n),
            axes=self.axes,
            count=n,
        )


class PointValues(_AtPoints):
    """``L_n ρ = ρ(x_n)``."""

    def __init__(self, points: Float[Tensor, "n d"]) -> None:
        self.points = position_matrix(points, "points")

    def select(self, index: Int[Tensor, " b"]) -> PointValues:
        return PointValues(self.points[index])


class Derivatives(_AtPoints):
    """``L_n ρ = ∂ρ/∂x_a (x_n)`` with ``a = axes[n]``."""

    axes: Int[Tensor, " n"]

    def __init__(
        self, points: Float[Tensor, "n d"], axes: Int[Tensor, " n"] | int
    ) -> None:
        self.points = position_matrix(points, "points")
        axes = torch.as_tensor(axes).expand(len(self.points))
        if len(axes) and not bool(((axes >= 0) & (axes < self.dimension)).all()):
            raise ValueError(f"axes must lie in 0..{self.dimension - 1}")
        self.axes = axes

    def select(self, index: Int[Tensor, " b"]) -> Derivatives:
        return Derivatives(self.points[index], self.axes[index])
