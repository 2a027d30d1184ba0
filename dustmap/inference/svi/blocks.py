r"""Gaussians of independent blocks of the whitened parameters (HIP-GP, 3.3).

One class covers the three published families, as in eq. 23: blocks of one parameter
are mean-field, one block of all is full rank, blocks between tile the space of ε. The
covariance is kept as the precision of its blocks, which natural gradients update by
plain averaging.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.svi.gaussian import Batch, NaturalGaussian


@dataclass(kw_only=True, eq=False)
class BlockGaussian(NaturalGaussian):
    """``q(ε) = Π_i N(m_i, S_i)`` over k blocks of at most n parameters.

    Make it at the prior with :func:`block_prior`.

    Parameters
    ----------
    mean
        m.
    precision
        ``S_i⁻¹``, the identity in the padding.
    index
        The number of the j-th parameter of block i, or P for padding.
    """

    mean: Float[Tensor, " p"]
    precision: Float[Tensor, "k n n"]
    index: Int[Tensor, "k n"]

    @property
    def full_rank(self) -> bool:
        return len(self.index) == 1

    @property
    def padding(self) -> int:
        """Entries of the blocks that are no parameter."""
        return self.index.numel() - len(self.mean)

    @cached_property
    def factor(self) -> Float[Tensor, "k n n"]:
        """Lower Cholesky factors of the precisions.

        Raises
        ------
        ValueError
            If one is not positive definite.
        """
        lower, fault = torch.linalg.cholesky_ex(self.precision)
        if bool(fault.any()):
            raise ValueError(
                f"the precision of {int((fault > 0).sum())} of {len(fault)} blocks is "
                "not positive definite: lower the natural rate"
            )
        return lower

    def gather(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "k b n"]:
        """Rows cut into blocks, zero in the padding."""
        padded = torch.cat([rows, rows.new_zeros(len(rows), 1)], dim=1)
        return padded[:, self.index].permute(1, 0, 2)

    def scatter(self, parts: Float[Tensor, "k b n"]) -> Float[Tensor, "b p"]:
        """The inverse of :meth:`gather`."""
        rows = parts.new_empty(parts.shape[1], len(self.mean) + 1)
        rows[:, self.index] = parts.permute(1, 0, 2)
        return rows[:, :-1]

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        parts = self.gather(rows).mT
        half = torch.linalg.solve_triangular(self.factor, parts, upper=False)
        return (half**2).sum(dim=(0, 1))

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        parts = self.gather(rows).mT
        return self.scatter(torch.cholesky_solve(parts, self.factor).mT)

    def trace(self) -> Float[Tensor, ""]:
        eye = _identity(self.precision).expand_as(self.precision)
        half = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        return (half**2).sum() - self.padding

    def log_determinant(self) -> Float[Tensor, ""]:
        return -2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        # Drawn on the CPU: the same on every device.
        shape, kind = (count, len(self.mean)), self.mean.dtype
        white = torch.randn(shape, generator=generator, dtype=kind)
        parts = self.gather(white.to(self.mean.device)).mT
        drawn = torch.linalg.solve_triangular(self.factor.mT, parts, upper=True)
        return self.mean + self.scatter(drawn.mT)

    def data_precision(self, batch: Batch) -> Float[Tensor, "k n n"]:
        """The blocks of ``Λ̂ = I + Σ w k kᵀ`` (S2 with the identity S4 needs)."""
        parts = self.gather(batch.features)
        return _identity(parts) + (parts * batch.weight[:, None]).mT @ parts

    def covariance_step(self, batch: Batch, rate: float) -> BlockGaussian:
        fresh = self.data_precision(batch)
        return replace(self, precision=(1 - rate) * self.precision + rate * fresh)


def block_prior(
    shape: Sequence[int], width: int, device: torch.device | str = "cpu"
) -> BlockGaussian:
    """The prior ``N(0, I)`` with independent blocks that tile a grid of ε (eq. 23).

    Parameters
    ----------
    shape
        The grid of ε (the embedding), in C order.
    width
        Points per axis of one block: 1 is mean-field, the longest axis full rank
        (``P²`` numbers, ``O(P³)`` a step). Last blocks may be smaller; an axis shorter
        than the width is taken whole.
    device
        Of the parameters.
    """
    size = math.prod(shape)
    block = [min(width, n) for n in shape]
    counts = [math.ceil(n / b) for n, b in zip(shape, block, strict=True)]
    padded = torch.full([c * b for c, b in zip(counts, block, strict=True)], size)
    padded[tuple(slice(0, n) for n in shape)] = torch.arange(size).reshape(*shape)
    split = [n for pair in zip(counts, block, strict=True) for n in pair]
    axes = range(len(split))
    index = padded.reshape(split).permute(*axes[::2], *axes[1::2])
    index = index.reshape(math.prod(counts), math.prod(block)).to(device)
    eye = torch.eye(index.shape[1], dtype=torch.float64, device=device)
    return BlockGaussian(
        mean=eye.new_zeros(size),
        precision=eye.expand(len(index), *eye.shape).clone(),
        index=index,
    )


def _identity(like: Float[Tensor, "*k n"]) -> Float[Tensor, "n n"]:
    """As wide as these, and on their device."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
