"""Mean and variance of functionals of a Gaussian process."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and variance of latent functionals, without the noise of an observation.

    In the functional's unit and its square. Where a functional is known almost exactly
    rounding may leave its variance slightly below zero; it is returned as it came.

    Raises
    ------
    ValueError
        If mean and variance differ in shape.
    """

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.mean.shape != self.variance.shape:
            raise ValueError(
                "mean and variance must have one shape, got "
                f"{tuple(self.mean.shape)} and {tuple(self.variance.shape)}"
            )

    def __len__(self) -> int:
        return len(self.mean)
