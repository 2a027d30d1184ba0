"""Line integrals marginalised over uncertain distances."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals.base import Functionals, Nodes, position_matrix
from dustmap.functionals.line_integrals import LineIntegrals
from dustmap.quadrature import MonteCarlo, Rule


class DistanceMarginalizedIntegrals(Functionals):
    r"""``E_d[∫_0^d ρ ds]`` over an uncertain distance.

    Every path element is weighted by the probability that the star lies beyond it,
    ``L_n ρ = ∫ P(d > s) ρ(s) ds``, ``d ~ N(d_n, σ_n²)`` between 0 and ``reach_n``.

    Parameters
    ----------
    end
        ``d_n`` times the direction.
    spread
        ``σ_n ≥ 0``; zero is a plain line integral.
    reach
        Upper limit of the distance (the edge of the box, or infinity); the normal
        distribution is also truncated at three standard deviations.
    rule
        Quadrature along the rays.
    """

    def __init__(
        self,
        end: Float[Tensor, "n d"],
        spread: Float[Tensor, " n"],
        reach: Float[Tensor, " n"],
        rule: Rule,
        *,
        index: Int[Tensor, " n"] | None = None,
    ) -> None:
        self.end = position_matrix(end, "end")
        self.spread = spread.to(torch.float64)
        self.reach = reach.to(torch.float64)
        self.rule = rule
        self.index = torch.arange(len(self.end)) if index is None else index
        lengths = torch.linalg.vector_norm(self.end, dim=-1)
        if bool((self.spread < 0).any()) or bool((self.reach < lengths).any()):
            raise ValueError(
                "spread must not be negative, reach not below the distance"
            )
        farthest = torch.minimum(self.reach, lengths + 3 * self.spread)
        stretch = torch.where(lengths > 0, farthest / lengths, 1.0)
        self.lengths = lengths
        self._rays = LineIntegrals(stretch[:, None] * self.end, rule, index=self.index)

    def __len__(self) -> int:
        return len(self.end)

    @property
    def dimension(self) -> int:
        return self.end.shape[1]

    def select(self, index: Int[Tensor, " b"]) -> DistanceMarginalizedIntegrals:
        return DistanceMarginalizedIntegrals(
            self.end[index],
            self.spread[index],
            self.reach[index],
            self.rule,
            index=self.index[index],
        )

    def nodes(self) -> Nodes:
        nodes = self._rays.nodes()
        if isinstance(self.rule, MonteCarlo):
            along = torch.linalg.vector_norm(nodes.points, dim=-1)
            weights = nodes.weights * self._beyond(along, nodes.rows)
        else:
            weights = self._element_weights(nodes)
        # A ray of zero length has no direction in which to marginalise.
        uncertain = ((self.spread > 0) & (self.lengths > 0))[nodes.rows]
        return replace(nodes, weights=torch.where(uncertain, weights, nodes.weights))

    def _element_weights(self, nodes: Nodes) -> Float[Tensor, " p"]:
        """``∫ P(d > s) ds`` over the path element of each node, exact for constant ρ.

        P falls off within σ_n, which may be far shorter than an element; P at the node
        would then err by up to half an element.
        """
        summed = torch.cumsum(nodes.weights, 0)
        before = torch.cumsum(self._rays.lengths, 0) - self._rays.lengths
        far = summed - before[nodes.rows]
        return self._path(far, nodes.rows) - self._path(far - nodes.weights, nodes.rows)

    def _path(self, s: Float[Tensor, " p"], rows: Int[Tensor, " p"]) -> Tensor:
        """``∫_0^s P(d > t) dt`` of the truncated normal distribution, up to a constant.

        From ``∫ Φ(z) dz = z Φ(z) + φ(z)``.
        """
        spread, top, share = self._distribution(rows)
        z = (s - self.lengths[rows]) / spread
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return (top * s - spread * (z * torch.special.ndtr(z) + density)) / share

    def _beyond(self, along: Float[Tensor, " p"], rows: Int[Tensor, " p"]) -> Tensor:
        """``P(d > s)`` of the truncated normal distribution at every node."""
        spread, top, share = self._distribution(rows)
        below = torch.special.ndtr((along - self.lengths[rows]) / spread)
        return (top - below) / share

    def _distribution(self, rows: Int[Tensor, " p"]) -> tuple[Tensor, Tensor, Tensor]:
        """σ, Φ at the upper limit, and the probability between both limits."""
        spread = torch.where(self.spread > 0, self.spread, 1.0)
        top = torch.special.ndtr((self._rays.lengths - self.lengths) / spread)
        share = top - torch.special.ndtr(-self.lengths / spread)
        return spread[rows], top[rows], share[rows]
