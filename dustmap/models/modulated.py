r"""The linear field with the first two moments of a log-normal one.

``ρ = ρ̄(x) (1 + g)`` with g Gaussian. Line integrals are nearly Gaussian, so their
evidence constrains the mean, relative variance and lengthscale of any density with
these moments. Hyperparameters of a log-normal density are learnt here, by linear
solves, and converted (:func:`lognormal_scales`).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Radial
from dustmap.models.lognormal import LogNormal


class Modulated(LogNormal):
    """``ρ = ρ̄ (1 + g)``; ``mean`` is ρ̄ > 0, the kernel the covariance of g."""

    positive = False
    linear = True

    def density(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch f"]:
        return torch.exp(self._log_mean) * (1 + self.whitening.colour(eps))

    def _derivative(self, density: Tensor) -> Tensor:
        return torch.exp(self._log_mean)

    def _point_factor(self, variance: Tensor) -> Tensor:
        return variance

    def retract(
        self, eps: Float[Tensor, " p"], step: Float[Tensor, " p"], length: float
    ) -> Float[Tensor, " p"]:
        return eps + length * step

    def residual_from(
        self, eps: Float[Tensor, "s p"], white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """``√v z``."""
        variance = self.linearise(eps[0]).variance if len(eps) else self._factors()[0]
        return white.to(variance) * variance.sqrt()


def lognormal_scales(kernel: Radial) -> tuple[float, float, float]:
    r"""Variance, lengthscale factor and median of the log-normal with these moments.

    The logarithm of a log-normal density of relative variance V has the variance
    ``s² = ln(1 + V)``; the median is ``e^{−s²/2}`` times the mean. A correlation c of
    the density corresponds to ``ln(1 + V c)/s²`` of the logarithm, which has a longer
    range. The factor matches the two at ``c = 1/2``.
    """
    relative = float(kernel.variance)
    variance = math.log1p(relative)
    # ``decay`` is the scaled distance at which a correlation takes a value.
    factor = kernel.decay(0.5) / kernel.decay(math.log1p(0.5 * relative) / variance)
    return variance, factor, math.exp(-variance / 2)
