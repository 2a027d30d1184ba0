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
    """Where learning begins: a likelihood, and the field's variance and mean."""

    likelihood: Likelihood
    variance: Tensor
    mean: Tensor


class Likelihood(ABC):
    """``p(y_n | f_n)``, one observation to one latent functional.

    The latent functional is Gaussian, ``f_n ~ N(mean_n, variance_n)``, in all methods
    with a mean and a variance.
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
        """Return targets from which a search with normal noise can learn a start."""
        return y

    @classmethod
    @abstractmethod
    def start(cls, y: Vector, noise: Tensor, variance: Tensor, mean: Tensor) -> Initial:
        """Return the start, from what normal noise found for ``tamed`` targets."""

    def noise_in(self, unit: float) -> dict[str, float]:
        """Return the parameters of the noise, in the unit of y."""
        return {}

    def normal_variances(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """Return variances ``s²/w_n`` of normal noise with the same step of EM.

        Raises
        ------
        NotImplementedError
            If the likelihood is no mixture of normals.
        """
        raise NotImplementedError(f"{type(self).__name__} is no mixture of normals")

    @abstractmethod
    def log_density(self, y: Batched, f: Batched) -> Batched:
        """``ln p(y | f)``."""

    @abstractmethod
    def expected(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """``E[ln p(y_n | f_n)]``, differentiable in everything, the parameters too.

        Its derivatives by mean and variance are ``E[∂ ln p]`` and ``½ E[∂² ln p]``.
        """

    @abstractmethod
    def predictive_log_density(
        self, y: Vector, mean: Vector, variance: Vector
    ) -> Vector:
        """``ln E[p(y_n | f_n)]``."""

    @abstractmethod
    def predictive_moments(self, mean: Vector, variance: Vector) -> PredictiveMoments:
        """Mean and variance of ``y_n``."""

    def quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the least y with ``P(y_n ≤ y) ≥ probability``."""
        if not 0 < probability < 1:
            raise ValueError(f"a probability lies between 0 and 1, got {probability}")
        return self._quantile(probability, mean, variance)

    @abstractmethod
    def _quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the quantile of a probability that was checked."""

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
            If a value is not finite, or none that the likelihood can have.
        """
        faulty = int((~torch.isfinite(y)).sum())
        if faulty:
            raise ValueError(f"{faulty} of {len(y)} observations are not finite")


def positive_parameter(name: str, value: float | Tensor) -> Tensor:
    """A float64 scalar, or a ValueError if it is not one positive finite number."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim or not bool(torch.isfinite(tensor) and tensor > 0):
        raise ValueError(f"{name} must be one positive finite number, got {value}")
    return tensor
