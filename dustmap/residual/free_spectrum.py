r"""Covariance of extinctions whose spectrum is free: a sum of exponentials along rays."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.ray_table import ray_table
from dustmap.residual.rays import Rays


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpectrum:
    r""":math:`C_{nm} = g_n g_m \sum_j w_j \ell_j^2 I(\theta, d_n/\ell_j, d_m/\ell_j)`.

    ``g`` is the mean density along a ray, :math:`w_j \ge 0` the variance of the relative
    density on the scale :math:`\ell_j` [pc].
    """

    weights: Float[Tensor, " j"]
    lengthscales: tuple[float, ...]

    def __call__(self, one: Rays, other: Rays) -> Float[Tensor, "*n"]:
        """Of rays that broadcast against one another, element by element."""
        chord = (one.directions - other.directions).norm(dim=-1)
        a, b = torch.broadcast_tensors(one.lengths, other.lengths)
        table = ray_table()
        total = sum(
            weight * scale**2 * table(chord, a / scale, b / scale)
            for weight, scale in zip(self.weights, self.lengthscales)
        )
        return one.density * other.density * total
