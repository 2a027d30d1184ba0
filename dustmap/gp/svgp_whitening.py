"""Cholesky whitening with a nugget relative to the prior variance."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Kernel
from dustmap.whitening import CholeskyWhitening, Whitening

__all__ = ["DenseCholesky", "Whitening"]


def DenseCholesky(
    kernel: Kernel, points: Float[Tensor, "m d"], *, jitter: float = 1e-8
) -> CholeskyWhitening:
    """:class:`CholeskyWhitening` with a nugget of ``jitter · k(0)`` at the start."""
    at_zero = torch.zeros(1, points.shape[1], dtype=torch.float64)
    nugget = jitter * float(kernel(at_zero)[0].detach())
    return CholeskyWhitening(kernel, points, nugget=nugget)
