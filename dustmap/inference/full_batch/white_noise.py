"""The white noise that posterior samples begin with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dustmap.linalg.space import WHOLE, VectorSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class White:
    """Where the white noise of the samples comes from: the same whenever asked."""

    seed: int

    def pair(
        self, number: int, n: int, p: int, space: VectorSpace = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """η and ξ of one pair of samples (float64)."""
        generator = torch.Generator().manual_seed(self.seed + number)
        eta = torch.randn(n, generator=generator, dtype=torch.float64)
        return eta, space.normal(1, p, generator)[0]
