"""Where vectors live: whole in one process, or in parts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class VectorSpace:
    """Vectors that are whole in this process.

    A subclass shares them out over several: every process then holds a part of each
    vector, and all that is summed over their entries goes through :meth:`total`.
    """

    def total(self, partial: Tensor) -> Tensor:
        """Sums over the entries that are here, made sums over all."""
        return partial

    def inner(self, a: Float[Tensor, "*#b n"], b: Float[Tensor, "*#b n"]) -> Tensor:
        """``Σ a b`` over all entries of each vector, accumulated in float64."""
        return self.total(inner(a, b))

    def any(self, x: Tensor) -> bool:
        """Whether any entry of any vector is not zero."""
        return bool(self.total(x.any().to(torch.float64)) > 0)

    def length(self, here: int) -> int:
        """The number of all entries where so many are here."""
        return here

    def normal(
        self,
        count: int,
        here: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> Float[Tensor, "s n"]:
        """White noise: the entries that are here of so many vectors, on the CPU."""
        return torch.randn(count, here, generator=generator, dtype=dtype)

    def orthonormal(self, rows: Float[Tensor, "r n"]) -> Float[Tensor, "r n"]:
        """Rows that span the same as these."""
        return torch.linalg.qr(rows.mT).Q.mT.contiguous()


WHOLE = VectorSpace()


def inner(a: Float[Tensor, "*#b n"], b: Float[Tensor, "*#b n"]) -> Tensor:
    """``Σ a b`` over the last dim, accumulated in float64."""
    return torch.sum(a * b, dim=-1, dtype=torch.float64)


def ratio(value: Tensor, scale: Tensor) -> Tensor:
    """``value / scale``, where zero over zero is zero: the answer to b = 0 is known."""
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.where(scale > 0, value / safe, torch.where(value > 0, torch.inf, 0.0))
