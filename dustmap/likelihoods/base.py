"""The interface of observation models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from dustmap.shapes import Device, Index, Vector


class Likelihood(ABC):
    """``p(y_n | f_n)``, one observation for each latent functional.

    Methods with a mean and a variance take a Gaussian latent functional,
    ``f_n ~ N(mean_n, variance_n)``.
    """

    # True if the gradients of ``E[ln p]`` do not depend on the latent's variance.
    conjugate: ClassVar[bool] = False

    @abstractmethod
    def expected(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """Return ``E[ln p(y_n | f_n)]``, differentiable also in parameters.

        Its derivatives by mean and variance are ``E[∂ ln p]`` and ``½ E[∂² ln p]``.
        """

    @abstractmethod
    def predictive_log_density(
        self, y: Vector, mean: Vector, variance: Vector
    ) -> Vector:
        """Return ``ln E[p(y_n | f_n)]``."""

    def parameters(self) -> dict[str, Tensor]:
        """Return positive parameters, by the names of the constructor's arguments."""
        return {}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        """Return the likelihood with other values of the named parameters."""
        return type(self)(**{**self.parameters(), **parameters})

    def to(self, device: Device) -> Self:
        """Return the likelihood on another device."""
        own = {name: value.to(device) for name, value in self.parameters().items()}
        return self.with_parameters(own)

    def select(self, index: Index) -> Self:
        """Return the likelihood of some of the observations."""
        return self

    def check(self, y: Vector) -> None:
        """Check observations.

        Raises `ValueError` if a value is not finite, or impossible under the
        likelihood.
        """
        faulty = int((~torch.isfinite(y)).sum())
        if faulty:
            raise ValueError(f"{faulty} of {len(y)} observations are not finite")


def positive_parameter(name: str, value: float | Tensor) -> Tensor:
    """Return a float64 scalar; raise a ValueError unless it is positive and finite."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim or not bool(torch.isfinite(tensor) and tensor > 0):
        raise ValueError(f"{name} must be one positive finite number, got {value}")
    return tensor
