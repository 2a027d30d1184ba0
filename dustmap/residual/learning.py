"""Weights of a residual's covariance, by the log score of rows that were held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.residual.kriging import Kriging, Neighbourhoods

# Degrees of freedom of the score: rows far off count less than in a normal's.
_DEGREES = 5.0
_STEPS = 60
# Below this part of the largest weight a component adds nothing.
_LEAST = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Weights of the components, and the variance of what no neighbour shares.

    ``score`` is the mean log density of the held-out rows.
    """

    weights: Float[Tensor, " j"]
    nugget: float
    score: float


def learn_weights(
    hoods: Neighbourhoods,
    residuals: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    observed: Float[Tensor, " m"],
    observed_noise: Float[Tensor, " m"],
) -> Learnt:
    r"""Maximise the log score of held-out residuals by L-BFGS.

    The score is a Student-T density of the same variance, five degrees of freedom, so
    that a few outliers do not decide. Weights and the nugget :math:`\tau^2`, which is
    added to every row's noise, are positive: their logarithms are searched.
    """
    # In units of the residuals' own variance.
    unit = (observed**2 - observed_noise).mean().clamp_min(1e-3 * observed_noise.mean())
    shared = hoods.prior.mean(dim=0)
    scale = torch.cat([unit / shared, unit[None]])
    start = torch.full_like(scale, -math.log(len(scale)))
    logarithms = start.requires_grad_(True)

    def score() -> Tensor:
        values = scale * logarithms.exp()
        found = hoods.krige(values[:-1], noise + values[-1])
        variance = found.variance + observed_noise + values[-1]
        return log_score(observed - found.mean(residuals), variance).mean()

    search = torch.optim.LBFGS(
        [logarithms], max_iter=_STEPS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        search.zero_grad()
        loss = -score()
        loss.backward()
        return loss

    search.step(closure)
    with torch.no_grad():
        values = scale * logarithms.exp()
        return Learnt(
            weights=values[:-1], nugget=float(values[-1]), score=float(score())
        )


def log_score(
    error: Float[Tensor, " m"], variance: Float[Tensor, " m"], degrees: float = _DEGREES
) -> Float[Tensor, " m"]:
    """Log density of a Student-T with this variance (``degrees > 2``)."""
    spread = (degrees - 2) * variance
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    return (
        constant
        - 0.5 * (math.pi * spread).log()
        - (degrees + 1) / 2 * torch.log1p(error**2 / spread)
    )
