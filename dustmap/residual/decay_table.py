r"""The integral of a sum of exponentials along a line, tabulated.

The density at a point and the integral along a ray of length ``v`` covary, for the
covariance :math:`\sum_j w_j e^{-r/\ell_j}`, by

.. math::
   J = F(p, v - x) + F(p, x), \qquad
   F(p, x) = \sum_j w_j \int_0^x e^{-\sqrt{p^2 + t^2} / \ell_j}\,dt ,

where ``p`` is the distance of the point from the ray's line and ``x`` that of its foot
from the observer. ``F`` is odd in ``x``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float

from dustmap.residual.ray_table import decay_integral

# Least and largest of both arguments, in the least and the largest scale. Closer to its
# line a point covaries no more, and further away by less than e^-10.
_NEAREST, _FURTHEST = 1e-4, 10.0
_COUNT = 384


@lru_cache(maxsize=8)
def decay_table(
    scales: tuple[float, ...], weights: tuple[float, ...]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Logarithms of the arguments [pc], a regular grid, and F on its mesh."""
    ends = np.log(_NEAREST * min(scales)), np.log(_FURTHEST * max(scales))
    logarithms = torch.linspace(*ends, _COUNT, dtype=torch.float64)
    apart, along = torch.meshgrid(logarithms.exp(), logarithms.exp(), indexing="ij")
    total = torch.zeros_like(apart)
    for scale, weight in zip(scales, weights, strict=True):
        total += weight * scale * decay_integral(apart / scale, along / scale)
    return logarithms.numpy(), total.numpy()
