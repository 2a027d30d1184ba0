"""The interface of observation models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

Vector = Float[Tensor, " n"]
Batched = Float[Tensor, "*#batch"]


class PredictiveMoments(NamedTuple):
    """Mean and variance of an observation, noise included."""

    mean: Vector
    variance: Vector


class Initial(NamedTuple):
    """Start of learning: a likelihood, and the field's variance and mean."""

    likelihood: Likelihood
    variance: Tensor
    mean: Tensor


class Likelihood(ABC):
    """``p(y_n | f_n)``, one observation for each latent functional.

    Methods with a mean and a variance take a Gaussian latent functional,
    ``f_n ~ N(mean_n, variance_n)``.
    """

    # The name in options.
    name: ClassVar[str]
    # True if the gradients of ``E[ln p]`` do not depend on the latent's variance.
    conjugate: ClassVar[bool] = False
    # True if ``y_n`` is one of two classes, coded as 0 and 1.
    classes: ClassVar[bool] = False
    # True if there are ``normal_variances``.
    mixture_of_normals: ClassVar[bool] = False
    # Ranges of parameters in a fit; within e³ of their start by default.
    ranges: ClassVar[dict[str, tuple[float, float]]] = {}

    @classmethod
    def tamed(cls, y: Vector) -> Vector:
        """Return targets for a search with normal noise, which finds a start."""
        return y

    @classmethod
    @abstractmethod
    def start(cls, y: Vector, noise: Tensor, variance: Tensor, mean: Tensor) -> Initial:
        """Return the start, from a fit of ``tamed`` targets with normal noise."""

    def noise_in(self, unit: float) -> dict[str, float]:
        """Return the parameters of the noise, in the unit of y."""
        return {}

    def normal_variances(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """Return variances ``s²/w_n`` of the normal noise in a step of EM.

        Raises
        ------
        NotImplementedError
            If the likelihood is not a mixture of normals.
        """
        raise NotImplementedError(f"{type(self).__name__} is not a mixture of normals")

    @abstractmethod
    def log_density(self, y: Batched, f: Batched) -> Batched:
        """Return ``ln p(y | f)``."""

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

    @abstractmethod
    def predictive_moments(self, mean: Vector, variance: Vector) -> PredictiveMoments:
        """Return mean and variance of ``y_n``."""

    def quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the least y with ``P(y_n ≤ y) ≥ probability``."""
        if not 0 < probability < 1:
            raise ValueError(f"a probability lies between 0 and 1, got {probability}")
        return self._quantile(probability, mean, variance)

    @abstractmethod
    def _quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the quantile of a valid probability."""

    def parameters(self) -> dict[str, Tensor]:
        """Return positive parameters, by the names of the constructor's arguments."""
        return {}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        """Change parameters (names as ``parameters``)."""
        return type(self)(**{**self.parameters(), **parameters})

    def to(self, device: torch.device | str) -> Self:
        """Move to another device."""
        own = {name: value.to(device) for name, value in self.parameters().items()}
        return self.with_parameters(own)

    def select(self, index: Int[Tensor, " b"]) -> Self:
        """Return the likelihood of some of the observations."""
        return self

    def check(self, y: Vector) -> None:
        """Check observations.

        Raises
        ------
        ValueError
            If a value is not finite, or impossible under the likelihood.
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
