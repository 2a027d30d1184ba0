r"""Prediction of a place from its nearest rows, and the likelihood that follows from it.

With the covariance ``C`` of the rows, their noise ``D`` and residuals ``r``, from the
neighbours :math:`N` of a place,

.. math::
   m = c^\top (C_{NN} + D_N)^{-1} r_N, \qquad
   v = C_{**} - c^\top (C_{NN} + D_N)^{-1} c .

With all rows for neighbours this is the exact Gaussian process. Vecchia's likelihood
(Vecchia 1988, JRSS B 50, 297) is the product of such predictions of every row from the
nearest rows before it; with all rows before it for neighbours it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Neighbourhoods that are factorised together: some 60 MiB of 30 × 30 matrices.
_BLOCK = 2048


class Covariance(Protocol):
    """A sum of covariances of rows that are indexed like tensors."""

    def components(self, one: Any, other: Any) -> Float[Tensor, "*n j"]:
        """Each of them, of rows that broadcast against one another."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kriging:
    """Weights of the neighbours' residuals, and the variance that is left.

    ``weights`` are zero where a place has fewer neighbours, ``variance`` is that of the
    noise-free value.
    """

    neighbours: Int[Tensor, "m k"]
    weights: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]

    def mean(self, residuals: Float[Tensor, "*s n"]) -> Float[Tensor, "*s m"]:
        """The prediction from residuals of all rows."""
        return (residuals[..., self.neighbours] * self.weights).sum(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhoods:
    """Places with their neighbours, and the components of all their covariances.

    ``neighbours`` are rows, ``-1`` where a place has fewer. Components do not depend on
    their weights, so that weights may be varied without making them again. Memory:
    ``8 m k² j`` bytes.
    """

    neighbours: Int[Tensor, "m k"]
    among: Float[Tensor, "m k k j"]
    across: Float[Tensor, "m k j"]
    prior: Float[Tensor, "m j"]

    @classmethod
    def of(
        cls, covariance: Covariance, rows: Any, places: Any, neighbours: Tensor
    ) -> Neighbourhoods:
        """The components of places and their neighbours among rows."""
        near = rows[neighbours.clamp_min(0)]
        among = covariance.components(near[:, :, None], near[:, None, :])
        across = covariance.components(places[:, None], near)
        none = (neighbours < 0)[..., None]
        # A neighbour that is not there knows of nothing.
        return cls(
            neighbours=neighbours,
            among=among.masked_fill(none[:, :, None] | none[:, None], 0.0),
            across=across.masked_fill(none, 0.0),
            prior=covariance.components(places, places),
        )

    def krige(
        self, weights: Float[Tensor, " j"], noise: Float[Tensor, " n"]
    ) -> Kriging:
        """Predict with these weights of the components; differentiable.

        Raises
        ------
        FloatingPointError
            If a neighbourhood's covariance is not positive definite.
        """
        none = self.neighbours < 0
        index = self.neighbours.clamp_min(0)
        diagonal = torch.diag_embed(noise[index].masked_fill(none, 1.0))
        factor, failed = torch.linalg.cholesky_ex(self.among @ weights + diagonal)
        if bool(failed.any()):
            raise FloatingPointError(
                f"{int((failed > 0).sum())} of {len(failed)} neighbourhoods have a "
                "covariance that is not positive definite"
            )
        across = self.across @ weights
        solved = torch.cholesky_solve(across[..., None], factor)[..., 0]
        variance = self.prior @ weights - (solved * across).sum(1)
        return Kriging(neighbours=index, weights=solved, variance=variance)


def krige(
    covariance: Covariance,
    weights: Float[Tensor, " j"],
    rows: Any,
    noise: Float[Tensor, " n"],
    places: Any,
    neighbours: Int[Tensor, "m k"],
) -> Iterator[tuple[slice, Kriging]]:
    """Predict places from neighbouring rows, some thousand at a time."""
    for start in range(0, len(neighbours), _BLOCK):
        part = slice(start, start + _BLOCK)
        hoods = Neighbourhoods.of(covariance, rows, places[part], neighbours[part])
        yield part, hoods.krige(weights, noise)


def vecchia_log_likelihood(
    covariance: Covariance,
    weights: Float[Tensor, " j"],
    rows: Any,
    noise: Float[Tensor, " n"],
    residuals: Float[Tensor, " n"],
    neighbours: Int[Tensor, "n k"],
) -> Float[Tensor, ""]:
    """Log density of the residuals, neighbours being earlier rows (`earlier`)."""
    total = residuals.new_zeros(())
    for part, found in krige(covariance, weights, rows, noise, rows, neighbours):
        variance = found.variance + noise[part]
        error = residuals[part] - found.mean(residuals)
        terms = error**2 / variance + (2 * torch.pi * variance).log()
        total = total - 0.5 * terms.sum()
    return total
