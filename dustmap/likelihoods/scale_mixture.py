r"""A Gaussian variable plus Student-T noise: density and quantiles.

Student's t is a mixture of normals of precision ``λ/s²`` with
``λ ~ Gamma(ν/2, ν/2)``, so that
``p(y) = ∫ N(y; mean, variance + s²/λ) Gamma(λ) dλ``. In ``x = ln λ`` the integrand is
smooth whatever the ratio of variance and s².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

# Log of what is left out of the integral at either end.
_DEPTH = 32.0
# Numbers in one block of rows and nodes.
_BLOCK = 2**21
_NEWTON_STEPS = 200
# Above this shape terms of the gamma density cancel that its series has not.
_MANY = 500.0
_QUANTILE_RTOL = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScaleMixture:
    """``y = f + s t``, f normal, t Student's with ν degrees of freedom.

    Parameters
    ----------
    mean, variance
        Of f, per row.
    scale, degrees
        s and ν, for all.
    """

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    scale: Float[Tensor, ""]
    degrees: Float[Tensor, ""]

    def log_density(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """``ln p(y)``, to a relative error below 1e-9 of p, also in far tails."""
        shift = (y - self.mean) / self.scale
        farthest = float((shift.detach() ** 2).max()) if len(y) else 0.0
        x, weights = self._nodes(farthest)
        parts = [
            torch.logsumexp(_log_normal(u, w, x) + weights, dim=1)
            for u, w in self._blocks(shift, len(x))
        ]
        return torch.cat([shift[:0], *parts]) - self.scale.log()

    def quantile(self, probability: float) -> Float[Tensor, " n"]:
        """Where the distribution function is ``probability``, by Newton's method.

        It starts at the mean, above which that function is concave: tangents lie above
        it, and the iterates climb to the root without passing it.

        Raises
        ------
        ValueError
            If 200 steps are not enough (a probability within rounding of 0 or 1).
        """
        upper = max(probability, 1 - probability)
        x, weights = self._nodes(0.0)
        start = torch.zeros_like(self.mean)
        parts = [
            _newton(upper, w, x, weights.exp()) for _, w in self._blocks(start, len(x))
        ]
        sign = 1.0 if probability > 0.5 else -1.0
        return self.mean + sign * self.scale * torch.cat([start[:0], *parts])

    def _blocks(self, shift: Tensor, nodes: int) -> list[tuple[Tensor, Tensor]]:
        """Rows ``(y − mean)/s`` and ``variance/s²`` in blocks that bound the memory."""
        rows = max(1, _BLOCK // nodes)
        ratio = self.variance / self.scale**2
        return list(zip(shift.split(rows), ratio.split(rows), strict=True))

    def _nodes(
        self, farthest: float
    ) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
        """``ln λ`` and the logarithms of its weights.

        The step resolves the mixing density, whose width is √(2/ν) for large ν; for an
        observation ``farthest`` (squared, over s²) away the integrand is largest at
        ``λ = (ν + 1) / (ν + farthest)``.
        """
        nu = float(self.degrees.detach())
        step = min(0.33, 1.0 / math.sqrt(nu + 1))
        peak = math.log((nu + 1) / (nu + max(farthest, 1.0)))
        low = min(_end(nu, -1.0), peak + _end(nu + 1, -1.0))
        count = math.ceil((_end(nu, 1.0) - low) / step)
        x = low + step * torch.arange(count + 1).to(self.mean)
        half = self.degrees / 2
        return x, _log_peak(half) + half * (x - x.expm1()) + math.log(step)


def _log_peak(shape: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """``a ln a − a − ln Γ(a)``, by Stirling's series where the terms are large."""
    if float(shape.detach()) > _MANY:
        series = -1 / (12 * shape) + 1 / (360 * shape**3)
        return 0.5 * torch.log(shape / (2 * math.pi)) + series
    return shape * shape.log() - shape - torch.lgamma(shape)


def _end(degrees: float, sign: float) -> float:
    """Where ``(ν/2)(eˣ − 1 − x)`` reaches the depth on one side."""

    def excess(x: float) -> float:
        return degrees / 2 * (math.expm1(sign * x) - sign * x) - _DEPTH

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return sign * scipy.optimize.root_scalar(excess, bracket=(0.0, high)).root


def _width(ratio: Tensor, x: Tensor) -> Float[Tensor, "n k"]:
    """``√(variance/s² + 1/λ)``."""
    return (ratio[:, None] + torch.exp(-x)).sqrt()


def _log_normal(shift: Tensor, ratio: Tensor, x: Tensor) -> Float[Tensor, "n k"]:
    width = _width(ratio, x)
    scaled = shift[:, None] / width
    return -0.5 * (scaled**2 + math.log(2 * math.pi)) - width.log()


def _newton(
    probability: float, ratio: Tensor, x: Tensor, weights: Tensor
) -> Float[Tensor, " n"]:
    """The root of one block in units of s."""
    width = _width(ratio, x)
    density = weights / width / math.sqrt(2 * math.pi)
    place = torch.zeros_like(ratio)
    typical = (1 + ratio).sqrt()
    for _ in range(_NEWTON_STEPS):
        scaled = place[:, None] / width
        short = probability - torch.special.ndtr(scaled) @ weights
        step = short / (torch.exp(-0.5 * scaled**2) * density).sum(dim=1)
        place = place + step
        if bool((step.abs() <= _QUANTILE_RTOL * (place.abs() + typical)).all()):
            return place
    raise ValueError(
        f"the quantile at {probability!r} was not reached in {_NEWTON_STEPS} steps: "
        "ask for a probability further from 0 and 1"
    )
