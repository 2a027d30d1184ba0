"""Line integrals along straight rays."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals.base import Functionals, Nodes, position_matrix
from dustmap.quadrature import Rule


class LineIntegrals(Functionals):
    """``L_n ρ = ∫ ρ ds`` along the straight segment from ``start`` to ``end``.

    Parameters
    ----------
    end
        End points of the rays.
    rule
        Quadrature along the rays.
    start
        Start points: one for all, one each, or the origin.
    index
        Numbers of the rays in the batch for which the rule was made.
    """

    def __init__(
        self,
        end: Float[Tensor, "n d"],
        rule: Rule,
        *,
        start: Float[Tensor, "#n d"] | None = None,
        index: Int[Tensor, " n"] | None = None,
    ) -> None:
        self.end = position_matrix(end, "end")
        if start is None:
            start = torch.zeros_like(self.end)
        start = position_matrix(start.reshape(-1, self.dimension), "start")
        self.start = start.expand_as(self.end)
        self.rule = rule
        self.index = torch.arange(len(self.end)) if index is None else index

    def __len__(self) -> int:
        return len(self.end)

    @property
    def dimension(self) -> int:
        return self.end.shape[1]

    @property
    def lengths(self) -> Float[Tensor, " n"]:
        """Lengths of the segments."""
        return torch.linalg.vector_norm(self.end - self.start, dim=-1)

    def select(self, index: Int[Tensor, " b"]) -> LineIntegrals:
        return LineIntegrals(
            self.end[index],
            self.rule,
            start=self.start[index],
            index=self.index[index],
        )

    def nodes(self) -> Nodes:
        lengths = self.lengths
        rows, fraction, weight = self.rule.fractions(self.start, self.end, self.index)
        direction = self.end - self.start
        return Nodes(
            points=self.start[rows] + fraction[:, None] * direction[rows],
            weights=weight * lengths[rows],
            rows=rows,
            axes=None,
            count=len(self),
        )
