"""Normal noise of one variance, of known variances, or of both."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from dustmap.likelihoods.base import Likelihood
from dustmap.shapes import Device, Index, Vector
from dustmap.tails import log_normal


class Gaussian(Likelihood):
    r"""``p(y_n | f_n) = N(y_n; f_n, σ_n² + τ²)``.

    ``E[ln p] = −½ ln 2π(σ_n² + τ²) − ((y − mean)² + variance) / 2(σ_n² + τ²)``.

    Parameters
    ----------
    variance
        τ², common to all observations, in the squared unit of y. It is a parameter if
        positive; 0 is allowed with known variances.
    known
        σ_n² of every observation; none by default.

    Raises
    ------
    ValueError
        If the noise of an observation is not positive and finite.
    """

    conjugate = True

    def __init__(
        self, *, variance: float | Tensor = 0.0, known: Vector | None = None
    ) -> None:
        self.variance = torch.as_tensor(variance, dtype=torch.float64)
        self.known = None if known is None else known.to(torch.float64)
        noise = self.noise.detach()
        good = torch.isfinite(noise) & (noise > 0)
        if self.variance.ndim or float(self.variance.detach()) < 0:
            raise ValueError(f"variance must be one number ≥ 0, got {variance}")
        if noise.ndim > 1 or not bool(good.all()):
            raise ValueError(
                "the noise of every observation must be positive and finite, got "
                f"{int((~good).sum())} of {good.numel()} that is not: give a positive "
                "variance, or positive known variances in one vector"
            )

    @property
    def noise(self) -> Tensor:
        """``σ_n² + τ²``."""
        return self.variance if self.known is None else self.variance + self.known

    def to(self, device: Device) -> Self:
        known = None if self.known is None else self.known.to(device)
        return type(self)(variance=self.variance.to(device), known=known)

    def check(self, y: Vector) -> None:
        """Check as in the base class, and the number of known variances."""
        super().check(y)
        if self.known is not None and len(self.known) != len(y):
            raise ValueError(
                f"the noise is that of {len(self.known)} observations, got {len(y)}: "
                "select its rows, or give one variance for all"
            )

    def select(self, index: Index) -> Gaussian:
        if self.known is None:
            return self
        return Gaussian(variance=self.variance, known=self.known[index])

    def widened(self, extra: Vector) -> Gaussian:
        """Return the likelihood with a larger known variance of every observation."""
        known = extra if self.known is None else self.known + extra
        return Gaussian(variance=self.variance, known=known)

    def expected(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        return log_normal(y - mean, self.noise) - variance / (2 * self.noise)

    def predictive_log_density(
        self, y: Vector, mean: Vector, variance: Vector
    ) -> Vector:
        return log_normal(y - mean, self.noise + variance)

    def predictive_variance(self, variance: Vector) -> Vector:
        """Return the variance of ``y_n``, whose mean is that of ``f_n``."""
        return variance + self.noise

    def quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the y with ``P(y_n ≤ y) = probability``."""
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        return mean + z * (variance + self.noise).sqrt()

    def parameters(self) -> dict[str, Tensor]:
        return {"variance": self.variance} if float(self.variance.detach()) > 0 else {}

    def with_parameters(self, parameters: dict[str, Tensor]) -> Self:
        variance = parameters.get("variance", self.variance)
        return type(self)(variance=variance, known=self.known)
