r"""The integral of an exponential along a line, tabulated.

The density at a point and the integral along a ray of length ``v`` covary, for the
covariance :math:`e^{-r/\ell}` and with lengths in units of :math:`\ell`, by

.. math::
   J = G(p, v - x) + G(p, x), \qquad G(p, x) = \int_0^x e^{-\sqrt{p^2 + t^2}}\,dt ,

where ``p`` is the distance of the point from the ray's line and ``x`` that of its foot
from the observer. ``G`` is odd in ``x``. The table holds :math:`G / (1 - e^{-x})` over
the logarithms of ``p`` and ``x``, good to 0.1%.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from jaxtyping import Float

from dustmap.residual.ray_table import decay_integral

# Least and largest of both arguments. Closer to its line a point covaries no more, and
# further away by less than e^-30.
NEAREST, FURTHEST = 1e-5, 30.0
_COUNT = 256
START = float(np.log(NEAREST))
STEP = float(np.log(FURTHEST / NEAREST)) / (_COUNT - 1)


@cache
def decay_table() -> Float[np.ndarray, "apart along"]:
    """The ratio on the regular grid of the two logarithms."""
    values = (START + STEP * torch.arange(_COUNT, dtype=torch.float64)).exp()
    apart, along = torch.meshgrid(values, values, indexing="ij")
    return (decay_integral(apart, along) / -torch.expm1(-along)).numpy()
