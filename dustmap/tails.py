r"""Densities of errors with heavy tails, and of outliers among them.

A Student-T of :math:`\nu` degrees of freedom and scale s has the density

.. math::
   p(r) = \frac{\Gamma(\frac{\nu + 1}{2})}{\Gamma(\frac\nu2) \sqrt{\pi \nu}\, s}
       \left(1 + \frac{r^2}{\nu s^2}\right)^{-(\nu + 1) / 2} .

The fraction q of the errors are outliers, `OUTLIER_FACTOR` times as wide.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

OUTLIER_FACTOR = 10.0
"""Standard deviation of outliers over that of other errors."""

# Degrees of freedom above which a series is more accurate than the difference of
# logarithms of gamma functions.
_MANY = 200.0


def log_normal(
    error: Float[Tensor, "*#b"], variance: Float[Tensor, "*#b"]
) -> Float[Tensor, "*#b"]:
    """Return the log density of a normal distribution."""
    return -0.5 * (torch.log(2 * math.pi * variance) + error**2 / variance)


def log_student(
    square: Float[Tensor, "*b"],
    variance: Float[Tensor, "*#b"] | float,
    degrees: Float[Tensor, "*#b"] | float,
    *,
    of: Literal["scale", "std", "central68"],
) -> Float[Tensor, "*b"]:
    r"""Return the log density of a Student-T at squared errors.

    ``of`` says what ``variance`` is: :math:`s^2` for ``scale``; the variance, with more
    than two degrees of freedom, for ``std``; for ``central68`` the variance of the
    normal with the same central 68% interval, which exists for any ν. The 84% quantile
    is Cornish and Fisher's expansion, :math:`1 + 1/2\nu + 1/4\nu^2`.
    """
    nu = torch.as_tensor(degrees, dtype=torch.float64)
    spread = nu * variance
    if of == "std":
        spread = (nu - 2) * variance
    elif of == "central68":
        spread = spread / (1 + 1 / (2 * nu) + 1 / (4 * nu**2)) ** 2
    tail = (nu + 1) / 2 * torch.log1p(square / spread)
    # In the unit √(ν/2), as the constant's leading terms cancel.
    return peak_excess(nu) - 0.5 * (2 * math.pi / nu * spread).log() - tail


def peak_excess(degrees: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return ``ln Γ((ν+1)/2) − ln Γ(ν/2) − ½ ln(ν/2)``, which is −1/4ν for large ν."""
    few = degrees.clamp_max(_MANY)
    gammas = torch.lgamma((few + 1) / 2) - torch.lgamma(few / 2)
    series = -1 / (4 * degrees) + 1 / (24 * degrees**3)
    return torch.where(degrees > _MANY, series, gammas - 0.5 * torch.log(few / 2))


def log_mixture(
    usual: Float[Tensor, " n"], wide: Float[Tensor, " n"], outliers: Tensor | float
) -> Float[Tensor, " n"]:
    """Return the log density of a mixture with this fraction of outliers."""
    fraction = torch.as_tensor(outliers, dtype=torch.float64)
    return torch.logaddexp(usual + torch.log1p(-fraction), wide + fraction.log())


def outlier_probability(
    usual: Float[Tensor, " n"], wide: Float[Tensor, " n"], outliers: Tensor | float
) -> Float[Tensor, " n"]:
    """Return the probability that each error is an outlier, from both log densities."""
    fraction = torch.as_tensor(outliers, dtype=torch.float64)
    return (fraction.logit() + wide - usual).sigmoid()
