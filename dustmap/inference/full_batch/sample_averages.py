"""Predictions and residuals averaged over posterior samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.models.base import ForwardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Means over samples: of ``apply``, of ``(y − apply(ε_s))²``, and of ``v_n``.

    ``spread`` is the variance of ``apply`` over samples with divisor S, since the mean
    of an antithetic pair has no error to first order.
    """

    prediction: Float[Tensor, " n"]
    squares: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    spread: Float[Tensor, " n"]


def averages(
    model: ForwardModel, y: Float[Tensor, " n"], eps: Float[Tensor, "s p"]
) -> Averages:
    """Mean predictions, squared residuals and conditional variances over samples."""
    total = torch.zeros(4, len(y), dtype=torch.float64, device=y.device)
    first = model.apply(eps[0])
    for one in eps:
        tangent = model.linearise(one)
        beside = tangent.prediction - first
        total[0] += beside
        total[1] += (y - tangent.prediction) ** 2
        total[2] += tangent.variance
        # Relative to the first sample, against cancellation.
        total[3] += beside**2
    beside, squares, variance, second = total / len(eps)
    return Averages(
        prediction=(first + beside).to(y),
        squares=squares.to(y),
        variance=variance.to(y),
        spread=(second - beside**2).clamp(min=0.0).to(y),
    )
