r"""Covariance of extinctions along neighbouring rays, with a free spectrum.

.. math::
   C_{nm} = g_n g_m \sum_j w_j \ell_j^2\, I(\theta, d_n / \ell_j, d_m / \ell_j),

with the mean density ``g`` along each ray and the variance :math:`w_j \ge 0` of the
relative density on the scale :math:`\ell_j` [pc]; ``I`` is that of
:mod:`dustmap.residual.ray_table`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.ray_table import ray_table
from dustmap.residual.rays import Rays


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpectrum:
    """The scales of the spectrum [pc]; see the module."""

    lengthscales: tuple[float, ...] = (5.0, 20.0, 60.0, 180.0)

    def components(self, one: Rays, other: Rays) -> Float[Tensor, "*n j"]:
        """The summands of unit ``w_j``, of rays that broadcast, element by element."""
        chord = (one.directions - other.directions).norm(dim=-1)
        a, b = torch.broadcast_tensors(one.lengths, other.lengths)
        table = ray_table()
        parts = [s**2 * table(chord, a / s, b / s) for s in self.lengthscales]
        return (one.density * other.density)[..., None] * torch.stack(parts, dim=-1)
