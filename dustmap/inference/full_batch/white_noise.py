"""White noise of posterior samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dustmap.linalg.space import WHOLE, VectorSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class White:
    """Reproducible white noise of the samples."""

    seed: int

    def pair(
        self, number: int, n: int, p: int, space: VectorSpace = WHOLE
    ) -> tuple[Tensor, Tensor]:
        """η and ξ of one pair of samples (float64)."""
        generator = torch.Generator().manual_seed(self.seed + number)
        eta = torch.randn(n, generator=generator, dtype=torch.float64)
        return eta, space.normal(1, p, generator)[0]
