r"""Covariance of extinctions along neighbouring rays, by the density of a map.

Structure that is short against the rays adds up along them. At an angle
:math:`\theta`, with the amplitude :math:`a_n(s)` of `DensityCube`,

.. math::
   C_{nm} = \sum_b a_n(s_b)\, a_m(s_b)\, \Delta s_b
            \sum_j w_j\, \kappa_j(2 s_b \sin(\theta / 2)),

over shells up to the shorter ray's end, where

.. math::
   \kappa_j(b) = \int_{-\infty}^\infty e^{-\sqrt{b^2 + t^2} / \ell_j}\,dt
              = 2 b K_1(b / \ell_j)

is the exponential kernel integrated along the line of sight: :math:`2 \ell_j` at 0.
The scales :math:`\ell_j` are in proportion to the cells of the map's grid in a shell.
For rays shorter than :math:`\ell_j` this is too large: it ignores both ends.
With the chord for b the covariance is positive definite on every shell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.rays import Rays

# Argument below which x K₁(x) is 1 to rounding.
_NEAR = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AlongRay:
    """The scales [pc] and the bounds of the shells [pc]; see the module.

    In a shell all scales are shorter by its ``cells``, one or less.
    """

    edges: Float[Tensor, " b+1"]
    cells: Float[Tensor, " b"]
    lengthscales: tuple[float, ...]

    @property
    def middles(self) -> Float[Tensor, " b"]:
        """Where the density and the distance of two rays are taken [pc]."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    def components(self, one: Rays, other: Rays) -> Float[Tensor, "*n j"]:
        """The summands of unit ``w_j``, of rays that broadcast, element by element."""
        assert one.profile is not None
        assert other.profile is not None
        chord = (one.directions - other.directions).norm(dim=-1)
        shorter = torch.minimum(one.lengths, other.lengths)
        total = shorter.new_zeros(*shorter.shape, len(self.lengthscales))
        shells = zip(self.edges[:-1], self.edges[1:], self.middles, strict=True)
        for shell, (start, end, middle) in enumerate(shells):
            within = (shorter.clamp_max(float(end)) - start).clamp_min(0.0)
            product = one.profile[..., shell] * other.profile[..., shell] * within
            cell = float(self.cells[shell])
            for j, scale in enumerate(cell * s for s in self.lengthscales):
                total[..., j] += product * 2 * scale * bessel(chord * (middle / scale))
        return total


def bessel(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """``x K₁(x)``."""
    x = x.clamp_min(_NEAR)
    return x * torch.special.modified_bessel_k1(x)
