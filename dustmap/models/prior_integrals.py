r"""Moments of extinctions under the prior alone, along parts of sight lines.

The density has the mean :math:`\mu` and, log-normal or normal, the covariance
:math:`\mu(x) \mu(x') (e^{k(x - x')} - 1)` or :math:`k(x - x')`. Between distances a and
e along a direction its integral has the mean :math:`\int_a^e \mu\,ds` and the variance

.. math::

    \int_a^e \mu(m)^2 \, C(2 \min(m - a, e - m)) \, dm ,
    \qquad C(T) = 2 \int_0^T (e^{k(t)} - 1)\,dt ,

over the middles m of pairs of points (:math:`\mu = 1` and k itself for a normal
density). It is exact where :math:`\ln\mu` is linear along the ray, as on one side of an
exponential disc: the bend of R is negligible over a correlation length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float

from dustmap.kernels import Radial
from dustmap.memory import row_blocks
from dustmap.models.means import ExponentialDisc
from dustmap.whitening.bands import band_covariance, correlated_to

# Nodes of each half of a ray.
_NODES = 32
# Covariance over k(0) at which the integral over separations ends.
_NEGLIGIBLE = 1e-6
# Separations in its table.
_SEPARATIONS = 4000

Rays = Float[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class PriorIntegrals:
    """A prior of the density: its ``mean``, and the ``kernel`` of it or its logarithm.

    The density is log-normal if ``positive``, else normal.
    """

    mean: ExponentialDisc
    kernel: Radial
    positive: bool

    def scaled(self, factor: float) -> PriorIntegrals:
        """Return the prior of the density times a factor."""
        mean = replace(self.mean, value=factor * self.mean.value)
        variance = self.kernel.variance * (1 if self.positive else factor**2)
        kernel = self.kernel.with_parameters({"variance": variance})
        return replace(self, mean=mean, kernel=kernel)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Scaled distances r, and C up to each; rough kernels are steep at r = 0."""
        last = correlated_to(self.kernel, _NEGLIGIBLE)
        r = last * torch.linspace(0, 1, _SEPARATIONS, dtype=torch.float64) ** 2
        if self.kernel.bend:
            covariance = band_covariance(self.kernel, 0.0, np.inf, r)
        else:
            covariance = self.kernel.variance * self.kernel.radial(r)
        value = torch.expm1(covariance) if self.positive else covariance
        both = 2 * torch.cumulative_trapezoid(value, r)
        return r.numpy(), np.append(0.0, both.numpy())

    def moments(
        self, directions: Float[np.ndarray, "n 3"], starts: Rays, ends: Rays
    ) -> tuple[Rays, Rays]:
        """Return mean and variance of the integrals between distances.

        An end may be infinite. Gauss and Legendre's nodes in each half of the ray are
        squared towards its ends, where C rises; the mean decays from the start.

        Raises `ValueError` if an integral to infinity diverges.
        """
        # The variance of a normal density is the same everywhere.
        last = self.mean.ends(directions) if self.positive else np.inf
        far = np.maximum(np.minimum(ends, last), starts)
        if np.isinf(far).any():
            raise ValueError(
                "the variance of a normal density's integral to infinity diverges: "
                "give finite distances"
            )
        x, w = np.polynomial.legendre.leggauss(_NODES)
        x, w = (x + 1) / 2, w / 2
        near = np.concatenate([x**2 / 2, 1 - x[::-1] ** 2 / 2])
        weight = np.concatenate([w * x, (w * x)[::-1]])
        scale = self.kernel.lengthscale.numpy()
        found = np.zeros((2, len(far)))
        # Three coordinates and five numbers at each node.
        for rows in row_blocks(len(far), 64 * len(near)):
            length = far[rows] - starts[rows]
            along, towards = length[:, None] * near, directions[rows]
            places = (starts[rows, None] + along)[..., None] * towards[:, None]
            mean = self.mean(torch.from_numpy(places.reshape(-1, 3))).numpy()
            mean = mean.reshape(along.shape)
            density = mean**2 if self.positive else np.ones_like(mean)
            # Lengthscales to a parsec.
            rate = np.linalg.norm(towards / scale, axis=1)[:, None]
            apart = 2 * rate * np.minimum(along, length[:, None] - along)
            within = np.interp(apart, *self._table) / rate
            # No products of BLAS, whose bits may depend on the number of rays.
            found[0, rows] = length * (mean * weight).sum(axis=1)
            found[1, rows] = length * (density * within * weight).sum(axis=1)
        return found[0], found[1]

    def at(self, places: Float[np.ndarray, "n 3"]) -> tuple[Rays, Rays]:
        """Return mean and variance of the density at places."""
        mean = self.mean(torch.from_numpy(places)).numpy()
        power = float(self.kernel.variance)
        if self.positive:
            return mean, mean**2 * np.expm1(power)
        return mean, np.full_like(mean, power)
