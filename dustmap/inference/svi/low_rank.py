r"""Gaussians whose precision is a diagonal plus few columns: ``S⁻¹ = diag(d) + U Uᵀ``.

Between mean-field (rank 0) and full rank (rank ≥ the number of data): k columns hold
the k directions of ε about which the data say most, in ``P (k + 1)`` numbers. All is
done by k × k matrices, through the root

``S^{1/2}_* = d^{-1/2} (I + V Vᵀ)^{-1/2}``, ``V = d^{-1/2} U``, ``Vᵀ V = E (t − 1) Eᵀ``,
``(I + V Vᵀ)^{-1/2} = I − V E diag(g) Eᵀ Vᵀ``, ``g = 1 / (√t (1 + √t))``,

with ``S = S^{1/2}_* S^{1/2}_*ᵀ``. Woodbury's identity itself subtracts ``t − 1`` from
``t``; the root does not, so no variance comes out negative, whatever the data.

A natural-gradient step averages precisions, which adds columns; what is beyond the rank
is projected back as in SLANG (Mishkin et al. 2018, section 3): the leading eigenvectors
of the columns stay, of the others the diagonal does. ``diag S⁻¹`` is thus that of the
unprojected step. The end is a projection of Λ, not the best member of the family, which
:mod:`dustmap.inference.svi.factor_analysis` finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.gaussian import Batch, NaturalGaussian, white_noise


class Projected(NamedTuple):
    """``A Aᵀ ≈ U Uᵀ + diag(rest)``, exact on the diagonal."""

    columns: Float[Tensor, "p k"]
    rest: Float[Tensor, " p"]


def leading_columns(columns: Float[Tensor, "p c"], rank: int) -> Projected:
    """The best rank-k part of ``A Aᵀ`` and the diagonal of what is left.

    By the eigenvectors of the smaller Gram matrix. Both parts are sums of squares: the
    diagonal of the rest is never negative. Cost: ``O(P c min(P, c))``.

    Parameters
    ----------
    columns
        A.
    rank
        Columns to keep at most.
    """
    size, count = columns.shape
    if count <= rank:
        return Projected(columns, columns.new_zeros(size))
    kept = min(rank, size)
    if count <= size:
        vectors = torch.linalg.eigh(columns.mT @ columns).eigenvectors
        turned = columns @ vectors
    else:
        # Of the other side the eigenvectors are the directions of the columns.
        vectors = torch.linalg.eigh(columns @ columns.mT).eigenvectors
        turned = vectors * torch.linalg.vector_norm(vectors.mT @ columns, dim=1)
    split = turned.shape[1] - kept
    return Projected(turned[:, split:], (turned[:, :split] ** 2).sum(dim=1))


@dataclass(kw_only=True, eq=False)
class LowRankGaussian(NaturalGaussian):
    """``q(ε) = N(m, S)`` with ``S⁻¹ = diag(d) + U Uᵀ``.

    Make it at the prior with :func:`low_rank_prior`.

    Parameters
    ----------
    mean
        m.
    diagonal
        d, positive.
    columns
        U, of at most ``rank`` columns.
    rank
        What steps project onto.
    """

    mean: Float[Tensor, " p"]
    diagonal: Float[Tensor, " p"]
    columns: Float[Tensor, "p k"]
    rank: int

    @property
    def full_rank(self) -> bool:
        return False

    @property
    def precision(self) -> Float[Tensor, "p k1"]:
        """What is held of the precision: d, and U beside it."""
        return torch.cat([self.diagonal[:, None], self.columns], dim=1)

    @cached_property
    def _turned(self) -> tuple[Tensor, Tensor]:
        """``V E`` and t: the scaled columns, orthogonal, and ``1 +`` their squares."""
        scaled = self.columns / self.diagonal.sqrt()[:, None]
        turned = scaled @ torch.linalg.eigh(scaled.mT @ scaled).eigenvectors
        # Squares again, since rounding may take eigenvalues below zero.
        return turned, 1 + (turned**2).sum(dim=0)

    def _root_times(self, rows: Tensor) -> Float[Tensor, "b p"]:
        """``(I + V Vᵀ)^{-1/2}`` of every row."""
        turned, t = self._turned
        gain = 1 / (t.sqrt() * (1 + t.sqrt()))
        return rows - ((rows @ turned) * gain) @ turned.mT

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        return (self._root_times(rows / self.diagonal.sqrt()) ** 2).sum(dim=-1)

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        half = self._root_times(rows / self.diagonal.sqrt())
        return self._root_times(half) / self.diagonal.sqrt()

    def trace(self) -> Float[Tensor, ""]:
        """``tr S = Σ_i (1 − Σ_j (V E)_ij² / t_j) / d_i``."""
        turned, t = self._turned
        return ((1 - (turned**2 / t).sum(dim=1)) / self.diagonal).sum()

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S| = −Σ ln d − Σ ln t``."""
        _, t = self._turned
        return -self.diagonal.log().sum() - t.log().sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        white = white_noise(count, self.mean, generator)
        return self.mean + self._root_times(white) / self.diagonal.sqrt()

    def data_precision(self, batch: Batch) -> Float[Tensor, "p b"]:
        """A of ``Λ̂ = I + A Aᵀ``, ``A = [√w_n k_n]`` (S2 with the identity)."""
        return (batch.weight.sqrt()[:, None] * batch.features).mT

    def covariance_step(self, batch: Batch, rate: float) -> LowRankGaussian:
        """``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂``, projected on the family.

        Cost: ``O(P (k + b)²)``.
        """
        fresh = self.data_precision(batch)
        both = [math.sqrt(1 - rate) * self.columns] if rate < 1 else []
        both.append(math.sqrt(rate) * fresh)
        columns, rest = leading_columns(torch.cat(both, dim=1), self.rank)
        diagonal = (1 - rate) * self.diagonal + rate + rest
        return replace(self, diagonal=diagonal, columns=columns)


def low_rank_prior(
    size: int, rank: int, device: torch.device | str = "cpu"
) -> LowRankGaussian:
    """The prior ``N(0, I)`` of so many parameters, to be stepped with columns."""
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return LowRankGaussian(
        mean=zeros,
        diagonal=torch.ones_like(zeros),
        columns=zeros.new_zeros(size, 0),
        rank=min(rank, size),
    )
