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

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator

from dustmap.memory import row_blocks

if TYPE_CHECKING:
    from dustmap.kernels import Radial
    from dustmap.models.means import ExponentialDisc

# Nodes of each half of a ray.
_NODES = 32
# Covariance over k(0) at which the integral over separations ends.
_NEGLIGIBLE = 1e-6
# Separations in its table, and steps of the sum between two of them.
_SEPARATIONS = 200
_FINE = 20

Rays = Float[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class PriorIntegrals:
    """A prior of the density, log-normal if ``positive``, else normal.

    The mean is ``value`` at the Sun, in an exponential disc with ``scale_height`` and
    ``scale_length``, whose centre is ``centre_distance`` away [pc]. ``variance`` is
    that of the density or its logarithm, ``lengthscale`` is by axis [pc], and ``sums``
    are C up to ``separations`` [lengthscales]. All numbers are plain: `as_dict`.
    """

    positive: bool
    value: float
    scale_height: float
    scale_length: float
    centre_distance: float
    variance: float
    lengthscale: tuple[float, ...]
    separations: tuple[float, ...]
    sums: tuple[float, ...]

    @classmethod
    def of(
        cls, mean: ExponentialDisc, kernel: Radial, *, positive: bool
    ) -> PriorIntegrals:
        """Return the prior with a mean and the covariance of the density or its log."""
        import torch

        from dustmap.whitening.bands import band_covariance, correlated_to

        last = correlated_to(kernel, _NEGLIGIBLE)
        steps = torch.linspace(0, 1, _SEPARATIONS * _FINE + 1, dtype=torch.float64)
        # Rough kernels are steep at r = 0.
        r = last * steps**2
        if kernel.bend:
            covariance = band_covariance(kernel, 0.0, np.inf, r)
        else:
            covariance = kernel.variance * kernel.radial(r)
        value = torch.expm1(covariance) if positive else covariance
        both = np.append(0.0, 2 * torch.cumulative_trapezoid(value, r).numpy())
        return cls(
            positive=positive,
            **asdict(mean),
            variance=float(kernel.variance),
            lengthscale=tuple(kernel.lengthscale.tolist()),
            separations=tuple(r.numpy()[::_FINE].tolist()),
            sums=tuple(both[::_FINE].tolist()),
        )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PriorIntegrals:
        """Read what `as_dict` gave."""
        held: dict[str, Any] = {
            name: tuple(x) if isinstance(x, list) else x for name, x in plain.items()
        }
        return cls(**held)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them, with seven digits in the table."""
        table = {
            name: [float(f"{x:.7g}") for x in getattr(self, name)]
            for name in ("separations", "sums")
        }
        return {**asdict(self), **table}

    def scaled(self, factor: float) -> PriorIntegrals:
        """Return the prior of the density times a factor."""
        changed = replace(self, value=factor * self.value)
        if self.positive:
            return changed
        sums = tuple(factor**2 * each for each in self.sums)
        return replace(changed, variance=factor**2 * self.variance, sums=sums)

    def mean(self, places: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n"]:
        """Return the mean density at places [pc]."""
        x, y, z = np.moveaxis(places, -1, 0)
        radius = np.hypot(x - self.centre_distance, y)
        beyond = (radius - self.centre_distance) / self.scale_length
        return self.value * np.exp(-np.abs(z) / self.scale_height - beyond)

    def _sum(self, separations: np.ndarray) -> np.ndarray:
        """Return C, a monotone cubic between the table's values, constant beyond."""
        table = PchipInterpolator(self.separations, self.sums)
        return table(np.minimum(separations, self.separations[-1]))

    def _ends(self, directions: Float[np.ndarray, "n 3"]) -> Rays:
        """Return distances beyond which the mean is below ``e^{−20}`` of ``value``.

        There ``R ≥ s cos b − R_0``.
        """
        cosine = np.linalg.norm(directions[:, :2], axis=1)
        rate = np.abs(directions[:, 2]) / self.scale_height + cosine / self.scale_length
        return (20 + 2 * self.centre_distance / self.scale_length) / rate

    def moments(
        self, directions: Float[np.ndarray, "n 3"], starts: Rays, ends: Rays
    ) -> tuple[Rays, Rays]:
        """Return mean and variance of the integrals between distances.

        An end may be infinite. Gauss and Legendre's nodes in each half of the ray are
        squared towards its ends, where C rises; the mean decays from the start.

        Raises `ValueError` if an integral to infinity diverges.
        """
        # The variance of a normal density is the same everywhere.
        last = self._ends(directions) if self.positive else np.inf
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
        scale = np.array(self.lengthscale)
        found = np.zeros((2, len(far)))
        # Three coordinates and five numbers at each node.
        for rows in row_blocks(len(far), 64 * len(near)):
            length = far[rows] - starts[rows]
            along, towards = length[:, None] * near, directions[rows]
            places = (starts[rows, None] + along)[..., None] * towards[:, None]
            mean = self.mean(places)
            density = mean**2 if self.positive else np.ones_like(mean)
            # Lengthscales to a parsec.
            rate = np.linalg.norm(towards / scale, axis=1)[:, None]
            apart = 2 * rate * np.minimum(along, length[:, None] - along)
            within = self._sum(apart) / rate
            # No products of BLAS, whose bits may depend on the number of rays.
            found[0, rows] = length * (mean * weight).sum(axis=1)
            found[1, rows] = length * (density * within * weight).sum(axis=1)
        return found[0], found[1]

    def at(self, places: Float[np.ndarray, "n 3"]) -> tuple[Rays, Rays]:
        """Return mean and variance of the density at places."""
        mean = self.mean(places)
        if self.positive:
            return mean, mean**2 * np.expm1(self.variance)
        return mean, np.full_like(mean, self.variance)
