r"""Likelihood of all extinctions, each star conditioned on its nearest earlier stars.

With the line integrals' mean and covariance

.. math::
   E\,y_n = (L \mu)_n, \qquad
   C_{nm} = g_n g_m V \iint e^{-r(s, t)/\ell}\, \mathrm ds\, \mathrm dt ,

the conditional mean and variance of a star follow from its neighbours (Vecchia 1988,
JRSS B 50, 297); the conditional density is a Student-T. For a lognormal density
:math:`g_n` is the root mean square of :math:`\mu` along the ray and V the relative
variance of the density; for a Gaussian density :math:`g = 1`.

This is an approximation: line integrals of a lognormal density are skewed, :math:`\mu`
varies along rays, and the kernel is exponential for any kernel of the field.
A first map corrects the bias (:mod:`dustmap.inference.scales.band_power`).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.kernels import Radial
from dustmap.residual.covariance import CPU, RayCovariance, Rays
from dustmap.residual.kriging import TABLE_ERROR, Kriging, krige_rays
from dustmap.residual.neighbours import nearest_earlier
from dustmap.tails import OUTLIER_FACTOR, log_mixture, log_student, outlier_probability

# Least number of stars to learn scales from. With 40, 60 and 100 mock stars, logarithms
# of the lengthscale scatter by 0.6, 0.5 and 0.4, of the variance by 0.5, 0.3 and 0.3.
FEWEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditionals:
    """Each star's density given its neighbours' extinctions."""

    mean: Float[Tensor, " n"]
    kriging: Kriging
    variance: Float[Tensor, " m"]

    def errors(self, extinction: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
        """Return extinctions minus their predictions."""
        residual = extinction - self.mean
        predicted = self.kriging.mean(residual)
        return residual[len(residual) - len(predicted) :] - predicted

    def log_density(self, extinction: Float[Tensor, " n"]) -> Float[Tensor, " m"]:
        """Return the log density of every star but the first few, only neighbours.

        It is a mixture with outliers, whose fraction, at most a fifth, maximises the
        likelihood (EM).
        """
        # Integrals of a lognormal density have heavier tails than a normal.
        square, degrees, fraction = self.errors(extinction) ** 2, 5.0, 0.01
        usual, wide = (
            log_student(square, factor * self.variance, degrees, of="std")
            for factor in (1.0, OUTLIER_FACTOR**2)
        )
        # If all stars could be outliers, there would be two maxima.
        for _ in range(20):
            found = float(outlier_probability(usual, wide, fraction).mean())
            fraction = min(found, 0.2)
        return log_mixture(usual, wide, fraction)


@dataclass(eq=False)
class NeighbourLikelihood:
    """The likelihood of scales; see the module.

    Parameters
    ----------
    ends
        Ends of the stars' rays from the observer [pc], in random order.
    noise
        Variance of the extinctions [mag²].
    kernel
        Family of the field's covariance.
    positive
        True if the density is lognormal.
    count
        Number of each star's neighbours; by default 20, or a third of the stars if that
        is less.
    device
        Where covariances are evaluated and neighbourhoods solved.
    """

    ends: Float[Tensor, "n 3"]
    noise: Float[Tensor, " n"]
    _: KW_ONLY
    kernel: type[Radial]
    positive: bool
    count: int = 0
    device: torch.device = CPU

    def __post_init__(self) -> None:
        self.count = self.count or min(20, len(self.ends) // 3)
        self.distances = torch.linalg.vector_norm(self.ends, dim=1)
        self._nodes = LineIntegrals(self.ends, GaussLegendre(count=24)).nodes()
        rays = self._rays(torch.ones(3, dtype=torch.float64), self.noise)
        # An angle of a fifth is as far as a factor e of the distance.
        self.neighbours = nearest_earlier(rays.coordinates(5.0), self.count)

    def __len__(self) -> int:
        """Return the number of stars with a density: all but the first few."""
        return len(self.neighbours)

    def conditionals(self, scales: PriorScales) -> Conditionals:
        """Return the densities. Cost: ``n k³/3``, and ``n k²/2`` covariances.

        Raises `FloatingPointError` if a neighbourhood's covariance is not positive
        definite.
        """
        density = scales.mean(self._nodes.points)
        mean, square = map(self._nodes.sum_rows, (density, density**2))
        noise = self.noise + scales.common_noise
        variance, stretch = self._moments(scales.std**2)
        rays = self._rays(stretch * scales.lengthscale, square)
        first = len(rays) - len(self)
        own = rays[first:]
        weights = torch.tensor([variance], dtype=torch.float64)
        covariance = RayCovariance(
            weights=weights, lengthscales=(1.0,), device=self.device
        )
        nothing = torch.empty(len(rays), 0, dtype=torch.int64)
        jitter = TABLE_ERROR * krige_rays(covariance, rays, noise, rays, nothing).prior
        # The jitter of neighbourhoods counts as noise, which would be learnt too small.
        noise = (noise - jitter).clamp_min(0.0)
        found = krige_rays(covariance, rays, noise, own, self.neighbours)
        variance = found.variance + (jitter + noise)[first:]
        return Conditionals(mean=mean, kriging=found, variance=variance)

    def _moments(self, variance: float) -> tuple[float, float]:
        """Return the density's variance, and the exponential's ℓ over the field's.

        The exponential matches the density's correlation at one half; the correlation
        of a lognormal density is ``(e^{σ² φ} − 1)/(e^{σ²} − 1)``.
        """
        half, moment = 0.5, variance
        if self.positive:
            moment = math.expm1(variance)
            half = math.log1p(0.5 * moment) / variance
        return moment, self.kernel(lengthscale=1.0).decay(half) / math.log(2)

    def _rays(self, lengthscale: Tensor, square: Tensor) -> Rays:
        """Return rays in units of the lengthscale of each axis."""
        scaled = self.ends / lengthscale
        lengths = torch.linalg.vector_norm(scaled, dim=1)
        path = (self.distances * square).sqrt() if self.positive else self.distances
        return Rays(
            directions=scaled / lengths[:, None],
            lengths=lengths,
            density=path / lengths,
        )
