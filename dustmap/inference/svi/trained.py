r"""Gaussian families of ``q(ε)`` whose parameters an optimiser can move freely.

All begin near the prior ``N(0, I)``, and every value of their parameters is a Gaussian.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Of the columns of a low-rank q at the start: zero would be a stationary point.
_START = 1e-2


class TrainedFullRank(nn.Module):
    """``S = L Lᵀ``, L lower triangular with a positive diagonal: ``P²`` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.below = nn.Parameter(torch.zeros(size, size, dtype=torch.float64))
        self.log_diagonal = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    @property
    def factor(self) -> Float[Tensor, "p p"]:
        """L."""
        return self.below.tril(-1) + torch.diag(self.log_diagonal.exp())

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row."""
        return ((rows @ self.factor) ** 2).sum(dim=-1)

    def trace(self) -> Float[Tensor, ""]:
        """``tr S``."""
        return (self.factor**2).sum()

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S|``."""
        return 2 * self.log_diagonal.sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε."""
        return self.mean + _white(count, self.mean, generator) @ self.factor.mT


class TrainedLowRank(nn.Module):
    """``S = diag(exp(2 s)) + V Vᵀ``, V of few columns; of none it is mean-field.

    ``ln |S| = 2 Σ s + ln |I + Vᵀ diag(exp(−2 s)) V|``.
    """

    def __init__(self, size: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.log_scale = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        start = torch.randn(size, rank, generator=generator, dtype=torch.float64)
        self.columns = nn.Parameter(_START * start)

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row."""
        own = ((rows * self.log_scale.exp()) ** 2).sum(dim=-1)
        return own + ((rows @ self.columns) ** 2).sum(dim=-1)

    def trace(self) -> Float[Tensor, ""]:
        """``tr S``."""
        return (2 * self.log_scale).exp().sum() + (self.columns**2).sum()

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S|``."""
        scaled = self.columns * (-self.log_scale).exp()[:, None]
        eye = torch.eye(scaled.shape[1], dtype=scaled.dtype)
        return 2 * self.log_scale.sum() + torch.logdet(eye + scaled.mT @ scaled)

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε."""
        own = _white(count, self.mean, generator) * self.log_scale.exp()
        few = _white(count, self.columns[0], generator)
        return self.mean + own + few @ self.columns.mT


def _white(count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(count, len(like), generator=generator, dtype=like.dtype)
