r"""A Gaussian process seen through functionals with normal noise.

``y_n = L_n (μ + f) + η_n`` with ``f ~ GP(0, k)``, a constant μ, and
``η_n ~ N(0, τ² + σ_n²)`` of a common variance τ², which is learnt, and known ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Kernel
from dustmap.models.means import ConstantMean

MEAN, NOISE = "mean", "noise"


class Regression(ABC):
    """Data and hyperparameters of a regression; how it is solved is a subclass'.

    Parameters
    ----------
    kernel
        k.
    functionals, observations
        ``L_n`` and ``y_n``.
    noise
        τ², in the squared unit of the observations, above zero.
    mean
        μ, of either sign.
    known_noise
        ``σ_n²`` of every observation, if there are any.

    Raises
    ------
    ValueError
        If shapes disagree or a number is not what it must be.
    """

    def __init__(
        self,
        kernel: Kernel,
        functionals: Functionals,
        observations: Float[Tensor, " n"],
        *,
        noise: float | Tensor,
        mean: float | Tensor = 0.0,
        known_noise: Float[Tensor, " n"] | None = None,
    ) -> None:
        self.kernel = kernel
        self.functionals = functionals
        self.observations = observations.to(torch.float64)
        self.noise = torch.as_tensor(noise, dtype=torch.float64)
        self.mean = torch.as_tensor(mean, dtype=torch.float64)
        count = len(functionals)
        if known_noise is None:
            known_noise = torch.zeros(count)
        self.known_noise = known_noise.to(torch.float64)
        self._check(count)
        # What a functional sees of a constant field of one: 0 for derivatives.
        self.ones = ConstantMean(value=1.0).observed(functionals)

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def noise_variance(self) -> Float[Tensor, " n"]:
        """``τ² + σ_n²``."""
        return self.noise + self.known_noise

    @property
    def residual(self) -> Float[Tensor, " n"]:
        """``y_n − L_n μ``."""
        return self.observations - self.mean * self.ones

    def parameters(self) -> dict[str, Tensor]:
        """The kernel's hyperparameters, ``noise`` (τ²) and ``mean`` (μ)."""
        own = {n: v.detach() for n, v in self.kernel.parameters().items()}
        return {**own, NOISE: self.noise.detach(), MEAN: self.mean.detach()}

    def with_parameters(self, values: Mapping[str, Tensor]) -> Self:
        """The same data under other hyperparameters.

        Raises
        ------
        ValueError
            If a name is unknown or a value is out of its range.
        """
        known = self.parameters()
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"there is no hyperparameter {', '.join(unknown)}: there are "
                f"{', '.join(known)}"
            )
        merged = {**known, **values}
        noise, mean = merged.pop(NOISE), merged.pop(MEAN)
        return self._rebuilt(self.kernel.with_parameters(merged), noise, mean)

    @abstractmethod
    def log_marginal(self) -> float:
        """``log p(y)``, or a lower bound of it [nats]."""

    @abstractmethod
    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        """``log_marginal`` and its derivatives by ``parameters()``."""

    @abstractmethod
    def predict(self, functionals: Functionals) -> LatentMoments:
        """Posterior moments of ``L_* (μ + f)``."""

    @abstractmethod
    def _rebuilt(self, kernel: Kernel, noise: Tensor, mean: Tensor) -> Self:
        """The same data under another kernel, noise and mean."""

    def _check(self, count: int) -> None:
        for name in ("observations", "known_noise"):
            shape = tuple(getattr(self, name).shape)
            if shape != (count,):
                raise ValueError(f"{name} must have shape ({count},), got {shape}")
        if not count:
            raise ValueError("at least one observation is needed, got none")
        if not bool(torch.isfinite(self.observations).all()):
            bad = int((~torch.isfinite(self.observations)).sum())
            raise ValueError(
                f"every observation must be finite, {bad} of {count} are not"
            )
        if not (self.noise.numel() == 1 and 0 < float(self.noise) < math.inf):
            raise ValueError(
                f"noise is a variance, positive and finite, got {self.noise.tolist()}"
            )
        if not bool(((self.known_noise >= 0) & self.known_noise.isfinite()).all()):
            raise ValueError("known_noise holds variances: not negative, finite")
        if not (self.mean.numel() == 1 and math.isfinite(float(self.mean))):
            raise ValueError(f"mean must be one finite number, got {self.mean}")
