"""Where along a ray the nodes of its line integral lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Fractions = tuple[Int[Tensor, " p"], Float[Tensor, " p"], Float[Tensor, " p"]]


class Rule(Protocol):
    """A quadrature rule on the unit interval, possibly another one per ray."""

    def fractions(
        self, lengths: Float[Tensor, " n"], index: Int[Tensor, " n"]
    ) -> Fractions:
        """Rows, positions in [0, 1] and weights (summing to 1 per row).

        ``index`` are the rays' numbers in the batch the rule was made for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussLegendre:
    """``count`` Gauss–Legendre nodes on every ray."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")

    def fractions(self, lengths: Tensor, index: Tensor) -> Fractions:
        x, w = np.polynomial.legendre.leggauss(self.count)
        n = len(lengths)
        rows = torch.arange(n).repeat_interleave(self.count)
        x, w = torch.as_tensor((x + 1) / 2), torch.as_tensor(w / 2)
        return rows, x.repeat(n), w.repeat(n)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stepped:
    step: float

    def __post_init__(self) -> None:
        if not self.step > 0:
            raise ValueError(f"step must be positive, got {self.step}")


class FixedStep(_Stepped):
    """The composite midpoint rule with steps of at most ``step`` along every ray."""

    __slots__ = ()

    def fractions(self, lengths: Tensor, index: Tensor) -> Fractions:
        counts, rows, step = _steps(lengths, self.step)
        width = 1.0 / counts.to(torch.float64)
        return rows, (step + 0.5) * width[rows], width[rows]


class StepsOutwards(_Stepped):
    """The midpoint rule with steps counted from where a ray begins, the last cut short.

    Rays of one direction share all whole steps: their integrals rise with the length
    wherever the field is positive and straight within a step. Of :class:`FixedStep`
    every node moves with the length, and so does its error.
    """

    __slots__ = ()

    def fractions(self, lengths: Tensor, index: Tensor) -> Fractions:
        counts, rows, step = _steps(lengths, self.step)
        # A ray shorter than a step, or without length, has one node in its middle.
        low = step * (self.step / lengths.clamp(min=self.step))[rows]
        high = torch.cat([low[1:], low.new_ones(min(len(low), 1))])
        high[step == counts[rows] - 1] = 1.0
        return rows, (low + high) / 2, high - low


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MonteCarlo:
    """Independent uniform draws for every ray (HIP-GP's rule, eq. 7–8).

    Make it with :meth:`draw` for a batch of N rays; the draws are kept, so that
    ``k_un`` and ``k_nn`` of one ray use the same nodes.
    """

    positions: Float[Tensor, "n j"]

    @classmethod
    def draw(cls, rays: int, count: int, generator: torch.Generator) -> MonteCarlo:
        """``count`` nodes for each of ``rays`` rays."""
        return cls(
            positions=torch.rand(rays, count, generator=generator, dtype=torch.float64)
        )

    def fractions(self, lengths: Tensor, index: Tensor) -> Fractions:
        if len(index) and int(index.max()) >= len(self.positions):
            raise ValueError(
                f"the rule was drawn for {len(self.positions)} rays, "
                f"ray {int(index.max())} was asked for"
            )
        chosen = self.positions[index]
        n, count = chosen.shape
        rows = torch.arange(n).repeat_interleave(count)
        weights = torch.full((n * count,), 1.0 / count, dtype=torch.float64)
        return rows, chosen.reshape(-1), weights


def _steps(lengths: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """How many steps every ray takes; the ray of each step, and its number there."""
    counts = torch.ceil(lengths / step).clamp(min=1).to(torch.int64)
    rows = torch.arange(len(lengths)).repeat_interleave(counts)
    first = torch.cumsum(counts, 0) - counts
    return counts, rows, torch.arange(len(rows)) - first[rows]
