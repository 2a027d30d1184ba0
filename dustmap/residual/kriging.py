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


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhoods:
    """Places with their neighbours, and the components of all their covariances.

    Components do not depend on their weights, which may be varied without making them
    again. Memory: ``8 m k² j`` bytes.
    """

    neighbours: Int[Tensor, "m k"]
    among: Float[Tensor, "m k k j"]
    across: Float[Tensor, "m k j"]
    prior: Float[Tensor, "m j"]

    def predict(
        self,
        weights: Float[Tensor, " j"],
        noise: Float[Tensor, " n"],
        residuals: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        r"""Mean and variance of every place, with gradients in weights and noise.

        With :math:`a = K^{-1} c` and :math:`b = K^{-1} r` held fixed,
        :math:`c^\top b + a^\top r - a^\top K b` and
        :math:`C_{**} - 2 c^\top a + a^\top K a` have the values and the gradients of
        the prediction, and are linear in the weights: factors are not differentiated.

        Raises
        ------
        FloatingPointError
            If a neighbourhood's covariance is not positive definite.
        """
        near, across = residuals[self.neighbours], self.across @ weights
        right = torch.stack([across, near], dim=-1).detach()
        with torch.no_grad():
            a, b = self._solve(weights, noise, right).unbind(-1)
        pairs = torch.stack([a * b, a * a], dim=1)
        outer = torch.stack([b, a], dim=1)[:, :, None] * a[:, None, :, None]
        count, k = a.shape
        among = self.among.reshape(count, k * k, -1)
        inner = outer.reshape(count, 2, k * k) @ among
        own = JITTER * torch.diagonal(self.among, dim1=1, dim2=2).mT
        inner = (inner + pairs @ own) @ weights
        inner = inner + (pairs * noise[self.neighbours][:, None]).sum(-1)
        mean = (across * b).sum(1) + (a * near).sum(1) - inner[:, 0]
        known = 2 * (across * a).sum(1) - inner[:, 1]
        return mean, self._floored(weights, known)

    def _floored(self, weights: Tensor, known: Float[Tensor, " m"]) -> Tensor:
        """The prior variance less what is known, at least the tables' accuracy."""
        prior = self.prior @ weights
        return torch.maximum(prior - known, JITTER * prior)

    def _solve(
        self, weights: Tensor, noise: Tensor, right: Float[Tensor, "m k c"]
    ) -> Float[Tensor, "m k c"]:
        """``(C + D)⁻¹`` of every neighbourhood applied to columns."""
        among = self.among @ weights
        own = JITTER * torch.diagonal(among, dim1=1, dim2=2) + noise[self.neighbours]
        return torch.cholesky_solve(right, cholesky_factors(among, own))


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
