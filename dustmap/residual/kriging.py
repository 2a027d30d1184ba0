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

# Neighbourhoods that are factorised together: some 20 MiB of 30 × 30 matrices.
_BLOCK = 2048


class Covariance(Protocol):
    """A covariance of rows, which are indexed like tensors (`Rays`, or a tensor)."""

    def __call__(self, one: Any, other: Any) -> Tensor:
        """Element by element, of rows that broadcast against one another."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kriging:
    """Weights of the neighbours' residuals, and the variance that is left.

    Parameters
    ----------
    neighbours
        Rows; ``-1`` where a place has fewer.
    weights
        Zero where there is no neighbour.
    variance
        Of the noise-free value.
    """

    neighbours: Int[Tensor, "m k"]
    weights: Float[Tensor, "m k"]
    variance: Float[Tensor, " m"]

    def mean(self, residuals: Float[Tensor, "*s n"]) -> Float[Tensor, "*s m"]:
        """The prediction from residuals of all rows."""
        return (residuals[..., self.neighbours] * self.weights).sum(-1)


def krige(
    covariance: Covariance,
    rows: Any,
    noise: Float[Tensor, " n"],
    places: Any,
    neighbours: Int[Tensor, "m k"],
) -> Kriging:
    """Predict places from neighbouring rows; float64, differentiable.

    Raises
    ------
    FloatingPointError
        If a neighbourhood's covariance is not positive definite.
    """
    none = neighbours < 0
    index = neighbours.clamp_min(0)
    near = rows[index]
    across = covariance(places[:, None], near).masked_fill(none, 0.0)
    among = covariance(near[:, :, None], near[:, None, :])
    # A neighbour that is not there is white noise by itself.
    among = among.masked_fill(none[:, :, None] | none[:, None, :], 0.0)
    among = among + torch.diag_embed(noise[index].masked_fill(none, 1.0))
    factor, failed = torch.linalg.cholesky_ex(among)
    if bool(failed.any()):
        raise FloatingPointError(
            f"{int((failed > 0).sum())} of {len(failed)} neighbourhoods have a "
            "covariance that is not positive definite"
        )
    weights = torch.cholesky_solve(across[..., None], factor)[..., 0]
    return Kriging(
        neighbours=index,
        weights=weights,
        variance=covariance(places, places) - (weights * across).sum(1),
    )


def krige_blocks(
    covariance: Covariance,
    rows: Any,
    noise: Float[Tensor, " n"],
    places: Any,
    neighbours: Int[Tensor, "m k"],
) -> Iterator[Kriging]:
    """`krige` some thousand places at a time, so that memory stays bounded."""
    for start in range(0, len(neighbours), _BLOCK):
        part = slice(start, start + _BLOCK)
        yield krige(covariance, rows, noise, places[part], neighbours[part])


def vecchia_log_likelihood(
    covariance: Covariance,
    rows: Any,
    noise: Float[Tensor, " n"],
    residuals: Float[Tensor, " n"],
    neighbours: Int[Tensor, "n k"],
) -> Float[Tensor, ""]:
    """Log density of the residuals, neighbours being earlier rows (`earlier`)."""
    total = residuals.new_zeros(())
    parts = zip(
        krige_blocks(covariance, rows, noise, rows, neighbours),
        residuals.split(_BLOCK),
        noise.split(_BLOCK),
        strict=True,
    )
    for found, observed, own in parts:
        variance = found.variance + own
        error = observed - found.mean(residuals)
        total = total - 0.5 * (error**2 / variance + (2 * torch.pi * variance).log()).sum()
    return total
