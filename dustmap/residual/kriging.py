r"""Prediction of a place from its nearest rows.

With the covariance ``C`` of the rows, their noise ``D`` and residuals ``r``, from the
neighbours :math:`N` of a place,

.. math::
   m = c^\top (C_{NN} + D_N)^{-1} r_N, \qquad
   v = C_{**} - c^\top (C_{NN} + D_N)^{-1} c .

With all rows for neighbours this is the exact Gaussian process (nearest-neighbour
Gaussian processes: Datta et al. 2016, JASA 111, 800).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Rows' own variances are raised by this part: covariances are from a table that is good
# to as much, and of rays close to one another would not be positive definite.
JITTER = 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kriging:
    """Weights of the neighbours' residuals, and the variance that is left.

    ``variance`` is that of the noise-free value.
    """

    neighbours: Int[Tensor, "m k"]
    weights: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]

    def mean(self, residuals: Float[Tensor, "*s n"]) -> Float[Tensor, "*s m"]:
        """The prediction from residuals of all rows."""
        rows = residuals.reshape(-1, residuals.shape[-1])
        # One set of residuals at a time: all neighbours' are k times as many numbers.
        found = [(row[self.neighbours] * self.weights).sum(-1) for row in rows]
        return torch.stack(found).reshape(*residuals.shape[:-1], -1)


def cholesky_factors(
    covariance: Float[Tensor, "m k k"], noise: Float[Tensor, "m k"]
) -> Float[Tensor, "m k k"]:
    """Lower factors of every neighbourhood's covariance and noise.

    Raises
    ------
    FloatingPointError
        If one is not positive definite.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance + torch.diag_embed(noise))
    if bool(failed.any()):
        raise FloatingPointError(
            f"{int((failed > 0).sum())} of {len(failed)} neighbourhoods have a "
            "covariance that is not positive definite"
        )
    return factor
