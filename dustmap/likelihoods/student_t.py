r"""Heavy-tailed noise, with accurate integrals for any ratio of the two widths.

Gauss–Hermite nodes are spaced by the latent's std; if that is much larger than the
scale of the noise, they miss the dip of the logarithm. All integrals here are over a
*logarithmic* variable instead, in which the integrands are smooth for any ratio, and
the trapezoidal rule converges exponentially (Trefethen & Weideman 2014, SIAM Review 56,
385).

Predictions: Student's t is a mixture of normals of precision ``λ/s²`` with
``λ ~ Gamma(ν/2, ν/2)``, so that, integrated over ``x = ln λ``,
``p(y) = ∫ N(y; mean, variance + s²/λ) Gamma(λ) dλ``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.likelihoods.base import Likelihood, positive_parameter
from dustmap.memory import rows_within
from dustmap.shapes import Vector
from dustmap.tails import peak_excess

_LOG_TWO_PI = math.log(2 * math.pi)
# Step of the trapezoidal rule, whose error is exp(−π²/step), 1e-13.
_STEP = 0.33


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

    # Ranges in a fit: the variance exists above 2, beyond 100 noise is nearly normal.
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"degrees": (2.1, 100.0)}

    @classmethod
    def clipped(cls, y: Vector) -> Vector:
        """Return values clipped at six robust standard deviations from the median."""
        centre = y.median()
        spread = 1.4826 * (y - centre).abs().median()
        if not float(spread):
            return y
        return y.clamp(float(centre - 6 * spread), float(centre + 6 * spread))

    def normal_variances(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        """Return ``s²/w_n`` with ``w_n = (ν + 1) / (ν + E[r_n²]/s²)``."""
        square = ((y - mean) ** 2 + variance) / self.scale**2
        return self.scale**2 / ((self.degrees + 1) / (self.degrees + square))

    def __init__(self, *, scale: float | Tensor, degrees: float | Tensor = 4.0) -> None:
        self.scale = positive_parameter("scale", scale)
        self.degrees = positive_parameter("degrees", degrees)

    @property
    def _log_peak(self) -> Tensor:
        return peak_excess(self.degrees) - 0.5 * _LOG_TWO_PI - self.scale.log()

    def expected(self, y: Vector, mean: Vector, variance: Vector) -> Vector:
        unit = self.degrees * self.scale**2
        logarithm = expected_log1p_square((y - mean) ** 2 / unit, variance / unit)
        return self._log_peak - (self.degrees + 1) / 2 * logarithm

    def predictive_log_density(
        self, y: Vector, mean: Vector, variance: Vector
    ) -> Vector:
        """Return ``ln p(y)``; the relative error of p is below 1e-9, even in tails."""
        shift = (y - mean) / self.scale
        farthest = float((shift.detach() ** 2).max()) if len(y) else 0.0
        x, weights = self._nodes(farthest, mean)
        parts = [shift[:0]]
        for u, _, width in self._blocks(shift, variance, x):
            scaled = u[:, None] / width
            normal = -0.5 * (scaled**2 + _LOG_TWO_PI) - width.log()
            parts.append(torch.logsumexp(normal + weights, dim=1))
        return torch.cat(parts) - self.scale.log()

    def predictive_variance(self, variance: Vector) -> Vector:
        """Return the variance of ``y_n``, infinite for ν ≤ 2; the mean is ``f_n``'s."""
        nu = self.degrees
        if float(nu.detach()) <= 2:
            return torch.full_like(variance, math.inf)
        return variance + self.scale**2 * nu / (nu - 2)

    def quantile(self, probability: float, mean: Vector, variance: Vector) -> Vector:
        """Return the quantile at a probability, by Newton's method.

        The search starts at the mean, above which the distribution function is concave:
        tangents lie above it, so iterates approach the root without passing it.

        Raises `ValueError` if 200 steps are not enough (a probability within rounding
        of 0 or 1).
        """
        upper = max(probability, 1 - probability)
        x, weights = self._nodes(0.0, mean)
        parts = [torch.zeros_like(mean)[:0]]
        for start, ratio, width in self._blocks(torch.zeros_like(mean), variance, x):
            place, typical, each = start, (1 + ratio).sqrt(), weights.exp()
            density = each / width / math.sqrt(2 * math.pi)
            for _ in range(200):
                scaled = place[:, None] / width
                short = upper - torch.special.ndtr(scaled) @ each
                step = short / (torch.exp(-0.5 * scaled**2) * density).sum(dim=1)
                place = place + step
                if bool((step.abs() <= 1e-10 * (place.abs() + typical)).all()):
                    break
            else:
                raise ValueError(
                    f"the quantile at {upper!r} was not reached in 200 steps: use a "
                    "probability further from 0 and 1"
                )
            parts.append(place)
        sign = 1.0 if probability > 0.5 else -1.0
        return mean + sign * self.scale * torch.cat(parts)

    def _blocks(
        self, shift: Vector, variance: Vector, x: Float[Tensor, " k"]
    ) -> Iterator[tuple[Vector, Vector, Float[Tensor, "n k"]]]:
        """Yield ``(y − mean)/s``, ``variance/s²`` and ``√(variance/s² + 1/λ)``."""
        # Some eight arrays of rows and nodes.
        rows = rows_within(64 * len(x))
        ratio = variance / self.scale**2
        for u, w in zip(shift.split(rows), ratio.split(rows), strict=True):
            yield u, w, (w[:, None] + torch.exp(-x)).sqrt()

    def _nodes(
        self, farthest: float, like: Tensor
    ) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Return ``ln λ`` and the logarithms of its weights.

        The step resolves the mixing density, whose width is √(2/ν) for large ν; for an
        observation ``farthest`` (squared, over s²) away the integrand is largest at
        ``λ = (ν + 1) / (ν + farthest)``.
        """
        nu = float(self.degrees.detach())
        step = min(_STEP, 1.0 / math.sqrt(nu + 1))
        peak = math.log((nu + 1) / (nu + max(farthest, 1.0)))
        low = min(_end(nu, -1.0), peak + _end(nu + 1, -1.0))
        count = math.ceil((_end(nu, 1.0) - low) / step)
        x = low + step * torch.arange(count + 1).to(like)
        half = self.degrees / 2
        return x, _log_peak(half) + half * (x - x.expm1()) + math.log(step)

    def parameters(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "degrees": self.degrees}


def _log_peak(shape: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return ``a ln a − a − ln Γ(a)``, by Stirling's series if the terms are large."""
    if float(shape.detach()) > 500.0:
        series = -1 / (12 * shape) + 1 / (360 * shape**3)
        return 0.5 * torch.log(shape / (2 * math.pi)) + series
    return shape * shape.log() - shape - torch.lgamma(shape)


def _end(degrees: float, sign: float) -> float:
    """Return where ``(ν/2)(eˣ − 1 − x)`` reaches 32, the end of the mixture."""

    def excess(x: float) -> float:
        return degrees / 2 * (math.expm1(sign * x) - sign * x) - 32.0

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return sign * scipy.optimize.root_scalar(excess, bracket=(0.0, high)).root


def expected_log1p_square(square: Vector, variance: Vector) -> Vector:
    r"""Return ``E[ln(1 + z²)]`` for ``z ~ N(μ, v)``, given ``μ²`` and v.

    By Frullani's integral ``ln(a/b) = ∫ (e^{−bt} − e^{−at}) dt/t`` and
    ``φ(t) = E[e^{−tz²}] = (1 + 2tv)^{−1/2} exp(−tμ²/(1 + 2tv))``, with
    ``c = 1 + μ² + v``:

    ``E[ln(1 + z²)] = ln c + ∫_0^∞ (e^{−ct} − e^{−t} φ(t)) dt/t``,

    whose integrand is of order t² at 0. Trapezoidal rule in ``ln t``, absolute error
    below 1e-11. Memory: some 60 + 3 ln max c numbers per observation.
    """
    excess = square + variance
    largest = float(excess.detach().max()) if len(excess) else 0.0
    # Beyond, where t > e^3.6 or t² c² < 1e-15, the integrand is below 1e-15.
    lowest, highest = -math.log1p(largest) - 17.5, 3.6
    count = math.ceil((highest - lowest) / _STEP)
    t = torch.exp(lowest + _STEP * torch.arange(count + 1).to(excess))
    spread = 2 * t * variance[:, None]
    exponent = 0.5 * spread.log1p() + t * square[:, None] / (1 + spread)
    # Without e^{−t}, so that small differences keep their digits.
    difference = torch.expm1(-t * excess[:, None]) - torch.expm1(-exponent)
    return excess.log1p() + _STEP * (difference @ torch.exp(-t))
