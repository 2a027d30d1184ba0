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

from dustmap.inference.svi.gaussian import Batch, NaturalGaussian, white_noise


class Blocks:
    """A partition of P parameters into blocks of at most n, padded to equal size.

    ``index[i, j]`` is the number of the j-th parameter of block i, or P for padding.
    """

    def __init__(self, index: Int[Tensor, "k n"], size: int) -> None:
        members = index[index < size]
        if len(members) != size or len(torch.unique(members)) != size:
            raise ValueError(f"blocks must hold each of {size} parameters exactly once")
        self.index = index
        self.size = size
        self.padding = index.numel() - size

    @classmethod
    def tiling(
        cls,
        shape: Sequence[int],
        block: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> Blocks:
        """Boxes of ``block`` neighbours that tile a grid; the last may be smaller.

        Parameters
        ----------
        shape
            The grid of ε (the embedding), in C order.
        block
            Points per axis of one block, at least 1; an axis shorter than that is
            taken whole.
        device
            Of the parameters.
        """
        if len(block) != len(shape) or min(block) < 1:
            raise ValueError(
                f"a block of {tuple(block)} does not tile a grid of {tuple(shape)}: "
                "one size of at least 1 per axis is needed"
            )
        size = math.prod(shape)
        block = [min(b, n) for b, n in zip(block, shape, strict=True)]
        counts = [math.ceil(n / b) for n, b in zip(shape, block, strict=True)]
        padded = torch.full(
            [c * b for c, b in zip(counts, block, strict=True)], size, dtype=torch.int64
        )
        inside = tuple(slice(0, n) for n in shape)
        padded[inside] = torch.arange(size).reshape(tuple(shape))
        split = [n for pair in zip(counts, block, strict=True) for n in pair]
        axes = len(split)
        order = [*range(0, axes, 2), *range(1, axes, 2)]
        index = padded.reshape(split).permute(order)
        index = index.reshape(math.prod(counts), math.prod(block))
        return cls(index.to(device), size)

    def gather(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "k b n"]:
        """Rows cut into blocks, zero in the padding."""
        padded = torch.cat([rows, rows.new_zeros(len(rows), 1)], dim=1)
        return padded[:, self.index].permute(1, 0, 2)

    def scatter(self, parts: Float[Tensor, "k b n"]) -> Float[Tensor, "b p"]:
        """The inverse of :meth:`gather`."""
        rows = parts.new_empty(parts.shape[1], self.size + 1)
        rows[:, self.index] = parts.permute(1, 0, 2)
        return rows[:, : self.size]


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockGaussian(NaturalGaussian):
    """``q(ε) = Π_i N(m_i, S_i)`` over blocks, by precisions ``S_i⁻¹``.

    Make it at the prior with :func:`mean_field`, :func:`block_independent` or
    :func:`full_rank`.
    """

    mean: Float[Tensor, " p"]
    precision: Float[Tensor, "k n n"]
    blocks: Blocks

    def __post_init__(self) -> None:
        count, width = self.blocks.index.shape
        if self.precision.shape != (count, width, width):
            raise ValueError(
                f"{count} blocks of {width} need a precision of that shape, got "
                f"{tuple(self.precision.shape)}"
            )
        if len(self.mean) != self.blocks.size:
            raise ValueError(
                f"blocks of {self.blocks.size} parameters need as long a mean, got "
                f"{len(self.mean)}"
            )

    @property
    def full_rank(self) -> bool:
        return len(self.blocks.index) == 1

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

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row."""
        parts = self.blocks.gather(rows).mT
        half = torch.linalg.solve_triangular(self.factor, parts, upper=False)
        return (half**2).sum(dim=(0, 1))

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        parts = self.blocks.gather(rows).mT
        return self.blocks.scatter(torch.cholesky_solve(parts, self.factor).mT)

    def trace(self) -> Float[Tensor, ""]:
        """``tr S``."""
        eye = _identity(self.precision).expand_as(self.precision)
        half = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        return (half**2).sum() - self.blocks.padding

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S|``."""
        return -2 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε."""
        parts = self.blocks.gather(white_noise(count, self.mean, generator)).mT
        drawn = torch.linalg.solve_triangular(self.factor.mT, parts, upper=True)
        return self.mean + self.blocks.scatter(drawn.mT)

    def data_precision(self, batch: Batch) -> Float[Tensor, "k n n"]:
        """The blocks of ``Λ̂ = I + Σ w k kᵀ`` (S2 with the identity S4 needs)."""
        parts = self.blocks.gather(batch.features)
        return _identity(parts) + (parts * batch.weight[:, None]).mT @ parts

    def with_precision(self, precision: Float[Tensor, "k n n"]) -> BlockGaussian:
        """The same mean with another covariance."""
        return replace(self, precision=precision)

    def covariance_step(self, batch: Batch, rate: float) -> BlockGaussian:
        fresh = self.data_precision(batch)
        return self.with_precision((1 - rate) * self.precision + rate * fresh)


def _identity(like: Float[Tensor, "*k n"]) -> Float[Tensor, "n n"]:
    """As wide as these, and on their device."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def block_independent(
    shape: Sequence[int], block: Sequence[int], device: torch.device | str = "cpu"
) -> BlockGaussian:
    """The prior ``N(0, I)`` with independent blocks that tile a grid of ε (eq. 23)."""
    blocks = Blocks.tiling(shape, block, device)
    count, width = blocks.index.shape
    eye = torch.eye(width, dtype=torch.float64, device=device)
    return BlockGaussian(
        mean=eye.new_zeros(blocks.size),
        precision=eye.expand(count, width, width).clone(),
        blocks=blocks,
    )


def mean_field(shape: Sequence[int]) -> BlockGaussian:
    """The prior with every parameter on its own."""
    return block_independent(shape, [1] * len(shape))


def full_rank(
    shape: Sequence[int], device: torch.device | str = "cpu"
) -> BlockGaussian:
    """The prior with one block of all: ``P²`` numbers, ``O(P³)`` per step."""
    return block_independent(shape, list(shape), device)
