r"""Covariances of line integrals from one point, for the exponential kernel.

For a field of covariance :math:`e^{-r/\ell}` the integrals along two rays that leave
the observer at an angle :math:`\theta`, of lengths ``d`` and ``d'``, covary by
:math:`\ell^2 I(\theta, d/\ell, d'/\ell)`,

.. math::
   I(\theta, u, v) = \int_0^u\!\!\int_0^v e^{-|s e - t e'|}\,\mathrm dt\,\mathrm ds .

``I`` has no scale: one table serves every lengthscale. It holds the ratio to the value
of parallel rays, which has a closed form with the kink at ``u = v``,
:math:`I(0, u, v) = 2\min(u, v) - 1 + e^{-u} + e^{-v} - e^{-|u-v|}`, over
:math:`(\ln\chi, \ln\min(u, v), \ln(1 + |u-v|))` with the chord
:math:`\chi = |e - e'| = 2 \sin(\theta/2)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_CHORDS = (1e-5, 2.0, 96)
_LENGTHS = (3e-2, 3e3, 96)
_DIFFERENCES = (0.0, 12.0, 20)
_DECAY = 40.0
# Where the table is entered instead of beyond: least chord, least length, most apart.
LIMITS = (_CHORDS[0], _LENGTHS[0], _DIFFERENCES[1])


def parallel_rays(
    shorter: Float[Tensor, "*n"], difference: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """``I(0, u, u + difference)``; the series where cancellation would set in."""
    u, longer = shorter, shorter + difference
    exact = 2 * u + torch.expm1(-u) + torch.expm1(-longer) - torch.expm1(-difference)
    # u (u + Δ) − u (u + Δ)² / 2 + Δ … : the integral over the rectangle to third order.
    series = u * longer - (longer**3 - difference**3 + u**3) / 6
    return torch.where(longer < 1e-3, series, exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayTable:
    """The ratio ``I(θ, u, v) / I(0, u, v)``; see the module.

    Parameters
    ----------
    ratio
        On the regular grid of the three logarithms.
    starts, steps
        Of the three axes.
    """

    ratio: Float[Tensor, "chords lengths differences"]
    starts: tuple[float, float, float]
    steps: tuple[float, float, float]

    def __call__(
        self,
        chord: Float[Tensor, "*n"],
        one: Float[Tensor, "*n"],
        other: Float[Tensor, "*n"],
    ) -> Float[Tensor, "*n"]:
        """``I`` for chords of unit vectors and lengths in lengthscales, to 0.5%."""
        shorter = torch.minimum(one, other)
        difference = (one - other).abs()
        ratio = self._interpolate(
            chord.clamp_min(LIMITS[0]).log(),
            shorter.clamp_min(LIMITS[1]).log(),
            difference.clamp_max(LIMITS[2]).log1p(),
        )
        return ratio * parallel_rays(shorter, difference)

    def _interpolate(self, *coordinates: Tensor) -> Tensor:
        """Trilinear interpolation."""
        sizes = self.ratio.shape
        index = torch.zeros_like(coordinates[0], dtype=torch.int64)
        fractions = []
        for x, start, step, size in zip(coordinates, self.starts, self.steps, sizes):
            position = ((x - start) / step).clamp(0, size - 1 - 1e-9)
            lower = position.floor()
            fractions.append(position - lower)
            index = index * size + lower.long()
        flat = self.ratio.reshape(-1)
        a, b, c = fractions
        row, plane = sizes[2], sizes[1] * sizes[2]

        def along(offset: int) -> Tensor:
            first = flat[index + offset]
            return first + c * (flat[index + offset + 1] - first)

        def across(offset: int) -> Tensor:
            first = along(offset)
            return first + b * (along(offset + row) - first)

        first = across(0)
        return first + a * (across(plane) - first)


@cache
def ray_table() -> RayTable:
    r"""Build the table.

    With :math:`G(p, x) = \int_0^x e^{-\sqrt{p^2 + t^2}}\,\mathrm dt` the integral over
    one ray is :math:`H(u, v) = G(v \sin\theta, u - v \cos\theta) + G(v \sin\theta,
    v \cos\theta)`; ``I(θ, u, u)`` is twice the integral of ``H(v, v)``, and
    ``I(θ, u, v)`` adds that of ``H(u, t)`` from ``u`` to ``v``: cumulative sums.
    """
    chords = _axis(math.log(_CHORDS[0]), math.log(_CHORDS[1]), _CHORDS[2])
    lengths = _axis(math.log(_LENGTHS[0]), math.log(_LENGTHS[1]), _LENGTHS[2])
    differences = _axis(0.0, math.log1p(_DIFFERENCES[1]), _DIFFERENCES[2])
    u, delta = lengths.exp(), differences.expm1()
    # The last chord is 2 exactly, where rounding may pass it.
    turns = 2 * (chords.exp() / 2).clamp(max=1).asin()
    ratio = torch.stack([_ratios(turn, u, delta) for turn in turns])
    axes = chords, lengths, differences
    x, y, z = (float(axis[1] - axis[0]) for axis in axes)
    return RayTable(
        ratio=ratio,
        starts=(float(chords[0]), float(lengths[0]), float(differences[0])),
        steps=(x, y, z),
    )


def _axis(start: float, stop: float, count: int) -> Float[Tensor, " count"]:
    return torch.linspace(start, stop, count, dtype=torch.float64)


def _ratios(
    angle: Tensor, u: Float[Tensor, " lengths"], delta: Float[Tensor, " differences"]
) -> Float[Tensor, "lengths differences"]:
    """One angle of the table."""
    edges = torch.cat([u.new_zeros(1), u])
    # Below the first length the integrand is 2 v to first order: one panel will do.
    t, dt = _panels(edges[:-1], edges[1:], order=8)
    equal = 2 * (_across(angle, t, t) * dt).sum(1).cumsum(0)
    t, dt = _panels(u[:, None] + delta[:-1], u[:, None] + delta[1:], order=3)
    further = (_across(angle, u[:, None, None], t) * dt).sum(2).cumsum(1)
    covariance = equal[:, None] + torch.nn.functional.pad(further, (1, 0))
    return covariance / parallel_rays(u[:, None], delta.expand(len(u), -1))


def _across(angle: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """``H(u, v)``: one ray of length ``u`` integrated at the end of the other."""
    apart, along = v * angle.sin(), v * angle.cos()
    return decay_integral(apart, u - along) + decay_integral(apart, along)


def decay_integral(p: Tensor, x: Tensor) -> Tensor:
    """``G(p, x)``, by Gauss' rule in ``τ`` where ``t = p sinh τ``."""
    end = torch.asinh(x.clamp(-_DECAY, _DECAY) / p)
    edges = torch.linspace(0, 1, 6).to(p)
    tau, weights = (x.reshape(-1) for x in _panels(edges[:-1], edges[1:], order=6))
    height = p[..., None] * (tau * end[..., None]).cosh()
    return ((-height).exp() * height * weights).sum(-1) * end


def _panels(start: Tensor, end: Tensor, *, order: int) -> tuple[Tensor, Tensor]:
    """Gauss' nodes and weights on intervals, along a new last axis."""
    nodes, weights = (
        torch.from_numpy(x).to(start) for x in np.polynomial.legendre.leggauss(order)
    )
    half = (end - start)[..., None] / 2
    return start[..., None] + half * (nodes + 1), half * weights
