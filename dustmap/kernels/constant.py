"""The constant kernel: an unknown offset of the whole field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dustmap.kernels.base import IMAGE_TOLERANCE, Kernel, Lags, Values
from dustmap.kernels.radial import Radial


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant(Kernel):
    """``k(Δ) = variance``: an unknown offset common to the whole field."""

    variance: Tensor
    derivatives = 1

    def __init__(self, *, variance: float | Tensor) -> None:
        tensor = torch.as_tensor(variance, dtype=torch.float64)
        if not bool(torch.isfinite(tensor) and tensor > 0):
            raise ValueError(f"variance must be positive and finite, got {variance}")
        object.__setattr__(self, "variance", tensor)

    def __call__(self, lag: Lags) -> Values:
        return Radial._cast(self.variance, lag).expand(lag.shape[:-1])

    def first_derivative(self, lag: Lags, axis: int) -> Values:
        return torch.zeros_like(lag[..., axis])

    def second_derivative(self, lag: Lags, axis: int, other: int) -> Values:
        return torch.zeros_like(lag[..., axis])

    def periodised(
        self, periods: Sequence[float], tolerance: float = IMAGE_TOLERANCE
    ) -> Kernel:
        """Itself: a constant has every period (its image sum would diverge)."""
        return self

    def parameters(self) -> dict[str, Tensor]:
        return {"variance": self.variance}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Constant:
        return Constant(variance=parameters.get("variance", self.variance))
