"""What every observation model offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor


class PredictiveMoments(NamedTuple):
    """Mean and variance of an observation, noise included."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


class Likelihood(ABC):
    """``p(y_n | f_n)``, one observation to one latent functional.

    The latent functional is Gaussian, ``f_n ~ N(mean_n, variance_n)``, wherever a mean
    and a variance are asked for.
    """

    @abstractmethod
    def log_density(
        self, y: Float[Tensor, "*batch"], f: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """``ln p(y | f)``."""

    @abstractmethod
    def expected(
        self,
        y: Float[Tensor, " n"],
        mean: Float[Tensor, " n"],
        variance: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """``E[ln p(y_n | f_n)]``, differentiable in everything, the parameters too.

        Its derivatives by mean and variance are ``E[∂ ln p]`` and ``½ E[∂² ln p]``.
        """

    @abstractmethod
    def predictive_log_density(
        self,
        y: Float[Tensor, " n"],
        mean: Float[Tensor, " n"],
        variance: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """``ln E[p(y_n | f_n)]``."""

    @abstractmethod
    def predictive_moments(
        self, mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]
    ) -> PredictiveMoments:
        """Mean and variance of ``y_n``."""

    @abstractmethod
    def quantile(
        self,
        probability: float,
        mean: Float[Tensor, " n"],
        variance: Float[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """The least y with ``P(y_n ≤ y) ≥ probability``."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """The positive parameters by name."""

    @abstractmethod
    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        """The same likelihood with other parameters (names as ``parameters``)."""

    @property
    def rows(self) -> int | None:
        """How many observations it is made for; ``None`` if for any number."""
        return None

    @property
    def conjugate(self) -> bool:
        """Whether the slopes of ``E[ln p]`` do not depend on the latent's variance."""
        return False

    def select(self, index: Int[Tensor, " b"]) -> Self:
        """The likelihood of some of the observations."""
        return self

    def check(self, y: Float[Tensor, " n"]) -> None:
        """Are these values that can be observed?

        Raises
        ------
        ValueError
            If a value is not finite, or their number is not that of the likelihood.
        """
        faulty = int((~torch.isfinite(y)).sum())
        if faulty:
            raise ValueError(f"{faulty} of {len(y)} observations are not finite")
        if self.rows is not None and self.rows != len(y):
            raise ValueError(
                f"the likelihood holds noise for {self.rows} observations, got "
                f"{len(y)}: select its rows, or give one variance for all"
            )


def check_probability(probability: float) -> None:
    """Does it lie strictly between 0 and 1?

    Raises
    ------
    ValueError
        If not.
    """
    if not 0 < probability < 1:
        raise ValueError(f"a probability lies between 0 and 1, got {probability}")


def positive_parameter(name: str, value: float | Tensor) -> Tensor:
    """A scalar in double precision.

    Raises
    ------
    ValueError
        If it is not one positive finite number.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim or not bool(torch.isfinite(tensor) and tensor > 0):
        raise ValueError(f"{name} must be one positive finite number, got {value}")
    return tensor
