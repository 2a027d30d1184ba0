r"""Heavy-tailed noise, with integrals that hold for any ratio of the two widths.

Gauss–Hermite nodes spread as the latent's std; where that exceeds the scale of the
noise by far they step over the dip of the logarithm. Both integrals here run over a
*logarithmic* variable instead, in which the integrands are smooth whatever the ratio,
and the trapezoidal rule converges exponentially (Trefethen & Weideman 2014, SIAM
Review 56, 385).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.likelihoods.base import (
    Batched,
    Initial,
    Likelihood,
    PredictiveMoments,
    Vector,
    positive_parameter,
)
from dustmap.likelihoods.scale_mixture import ScaleMixture

_LOG_TWO_PI = math.log(2 * math.pi)
# Above these degrees differences of gamma functions lose to their series.
_MANY = 200.0
# Of the trapezoidal rule: its error is exp(−π²/step), 1e-13.
_STEP = 0.33
# The integrand is below 1e-15 beyond: t > e^3.6, and t² c² < 1e-15 on the other side.
_ABOVE, _BELOW = 3.6, 17.5


class StudentT(Likelihood):
    r"""``p(y | f) = Γ((ν+1)/2) / (Γ(ν/2) √(πν) s) (1 + (y − f)²/νs²)^{−(ν+1)/2}``.

    Parameters
    ----------
    scale
        s, in the unit of y; the variance of the noise is ``s² ν / (ν − 2)``.
    degrees
        ν, the degrees of freedom.

    Raises
    ------
    ValueError
        If either is not one positive finite number.
    """

    name = "student-t"
    mixture_of_normals = True
    # A variance exists above 2, and beyond 100 the noise is as good as normal.
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"degrees": (2.1, 100.0)}

    @classmethod
    def tamed(cls, y: Vector) -> Vector:
        """Drawn in to six robust standard deviations of the median."""
        centre = y.median()
        spread = 1.4826 * (y - centre).abs().median()
        if not float(spread):
            return y
        return y.clamp(float(centre - 6 * spread), float(centre + 6 * spread))

    @classmethod
    def start(cls, y: Vector, noise: Tensor, variance: Tensor, mean: Tensor) -> Initial:
        return Initial(cls(scale=noise.sqrt(), degrees=4.0), variance, mean)

    @property
    def base_variance(self) -> Tensor:
        return self.scale**2

    def noise_in(self, unit: float) -> dict[str, float]:
        return {"noise": float(self.scale) * unit, "degrees": float(self.degrees)}

    def weights(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """``(ν + 1) / (ν + E[r_n²]/s²)``, of noise ``s²/w_n``."""
        square = ((y - mean) ** 2 + variance) / self.scale**2
        return (self.degrees + 1) / (self.degrees + square)

    def __init__(self, *, scale: float | Tensor, degrees: float | Tensor = 4.0) -> None:
        self.scale = positive_parameter("scale", scale)
        self.degrees = positive_parameter("degrees", degrees)

    @property
    def _log_peak(self) -> Tensor:
        return _peak_excess(self.degrees) - 0.5 * _LOG_TWO_PI - self.scale.log()

    def log_density(self, y: Batched, f: Batched) -> Batched:
        squared = (y - f) ** 2 / (self.degrees * self.scale**2)
        return self._log_peak - (self.degrees + 1) / 2 * torch.log1p(squared)

    def expected(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        unit = self.degrees * self.scale**2
        logarithm = expected_log1p_square((y - mean) ** 2 / unit, variance / unit)
        return self._log_peak - (self.degrees + 1) / 2 * logarithm

    def mixture(self, mean: Vector, variance: Vector) -> ScaleMixture:
        """The distribution of ``y_n``."""
        return ScaleMixture(
            mean=mean, variance=variance, scale=self.scale, degrees=self.degrees
        )

    def predictive_log_density(
        self, y: Vector, mean: Vector, variance: Vector
    ) -> Vector:
        return self.mixture(mean, variance).log_density(y)

    def predictive_moments(self, mean: Vector, variance: Vector) -> PredictiveMoments:
        """Mean and variance; the latter is infinite for ν ≤ 2."""
        nu = self.degrees
        if float(nu.detach()) <= 2:
            return PredictiveMoments(mean, torch.full_like(mean, math.inf))
        return PredictiveMoments(mean, variance + self.scale**2 * nu / (nu - 2))

    def _quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        return self.mixture(mean, variance).quantile(probability)

    def parameters(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "degrees": self.degrees}


def _peak_excess(degrees: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """``ln Γ((ν+1)/2) − ln Γ(ν/2) − ½ ln(ν/2)``, which is −1/4ν for large ν."""
    if float(degrees.detach()) > _MANY:
        return -1 / (4 * degrees) + 1 / (24 * degrees**3)
    gammas = torch.lgamma((degrees + 1) / 2) - torch.lgamma(degrees / 2)
    return gammas - 0.5 * torch.log(degrees / 2)


def expected_log1p_square(square: Vector, variance: Vector) -> Vector:
    r"""``E[ln(1 + z²)]`` for ``z ~ N(μ, v)``, given ``μ²`` and v.

    By Frullani's integral ``ln(a/b) = ∫ (e^{−bt} − e^{−at}) dt/t`` and
    ``φ(t) = E[e^{−tz²}] = (1 + 2tv)^{−1/2} exp(−tμ²/(1 + 2tv))``, with
    ``c = 1 + μ² + v``:

    ``E[ln(1 + z²)] = ln c + ∫_0^∞ (e^{−ct} − e^{−t} φ(t)) dt/t``,

    whose integrand is of order t² at 0. Trapezoidal rule in ``ln t``, absolute error
    below 1e-11. Memory: some 60 + 3 ln max c numbers per observation.
    """
    excess = square + variance
    largest = float(excess.detach().max()) if len(excess) else 0.0
    lowest = -math.log1p(largest) - _BELOW
    count = math.ceil((_ABOVE - lowest) / _STEP)
    t = torch.exp(lowest + _STEP * torch.arange(count + 1).to(excess))
    spread = 2 * t * variance[:, None]
    exponent = 0.5 * spread.log1p() + t * square[:, None] / (1 + spread)
    # Without e^{−t}, so that small differences keep their digits.
    difference = torch.expm1(-t * excess[:, None]) - torch.expm1(-exponent)
    return excess.log1p() + _STEP * (difference @ torch.exp(-t))
