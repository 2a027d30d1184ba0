"""Weights of a covariance and calibration of its errors from held-out rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri, stdtrit
from torch import Tensor

from dustmap.minimise import minimise
from dustmap.residual.corrections import DEGREES, central_factor
from dustmap.residual.kriging import Neighbourhoods
from dustmap.shapes import Vector
from dustmap.tails import OUTLIER_FACTOR, log_mixture, log_student


class Learnt(NamedTuple):
    """Weights of the components, and the ``nugget``, of independent residuals.

    ``outliers`` is the fraction of rows that are outliers, ``score`` the log density of
    the held-out rows.
    """

    weights: Float[Tensor, " j"]
    nugget: float
    outliers: float
    score: float


def learn_weights(
    hoods: Neighbourhoods,
    residuals: Vector,
    noise: Vector,
    observed: Float[Tensor, " m"],
    observed_noise: Float[Tensor, " m"],
    *,
    known: Float[Tensor, " j"] | None = None,
    expected: float | None = None,
) -> Learnt:
    r"""Maximise the log score of held-out residuals by L-BFGS.

    The search starts from the ``known`` weights, if any, else from several places, as
    each of two lengthscales that explain the data may have its own maximum. With an
    ``expected`` weight, logarithms of weights have the prior std 0.7 about it; without
    rows they stay there.

    The score is a mixture of two Student-T densities, one with the predicted variance
    and one of outliers, ten times as wide. The search is over logarithms of the
    weights, of the nugget :math:`\tau^2` that is added to every row's noise and of the
    degrees of freedom beyond two, and over the logit of the fraction of outliers.

    Raises `FloatingPointError` if the score is not finite where a search starts.
    """
    # Unit: the variance of the residuals beyond their noise, estimated by medians.
    spread = 1.5 * observed.abs().median() ** 2
    unit = (spread - observed_noise.median()).clamp_min(1e-2 * spread)
    largest = unit / hoods.prior.mean(dim=0).cpu()
    origin = torch.full((len(largest) + 3,), -math.log(len(largest) + 1)).double()
    # The score is flat in weights that do not matter.
    doubt = torch.full_like(origin, 5.0)
    if expected is not None:
        largest = torch.full_like(largest, expected)
        origin[:-3], doubt[:-3] = 0.0, 0.7
    scale = torch.cat([largest, unit[None]])
    # The fraction of outliers starts at 1.8%. A wider prior of the degrees of freedom
    # would allow five, for which normal errors have a variance a fifth too large.
    origin[-2:] = torch.tensor([-4.0, 0.0])
    doubt[-1] = 1.0

    def place(steps: Tensor) -> Tensor:
        # Line searches may go too far.
        return origin + 12.0 * (steps / 12.0).tanh()

    def score(place: Tensor) -> Tensor:
        values, outliers = scale * place[:-2].exp(), place[-2].sigmoid()
        degrees = 2 + (DEGREES - 2) * place[-1].exp()
        mean, variance = hoods.predict(values[:-1], noise + values[-1], residuals)
        square = (observed - mean) ** 2
        whole = variance + observed_noise + values[-1]
        usual, wide = (
            log_student(square, factor * whole, degrees, of="central68")
            for factor in (1.0, OUTLIER_FACTOR**2)
        )
        return log_mixture(usual, wide, outliers).sum()

    def loss(steps: Tensor) -> Tensor:
        return (steps / doubt).square().sum() / 2 - score(place(steps))

    j, starts = len(largest), [torch.zeros_like(origin)]
    if known is not None and len(known):
        steps = (known / largest).log() - origin[:j]
        # Weights that vanished before may matter now.
        starts[0][:j] = steps.clamp(-6.0, 6.0)
    elif j > 1:
        # Each start raises one component above the others.
        above = 6.0 * (torch.eye(j) - 0.5)
        starts += torch.nn.functional.pad(above, (0, 3)).to(origin)
    # With the widest prior, at most 1e-4 nats per number are left to gain.
    searches = (minimise(loss, start, slope=0.003) for start in starts)
    found = min(searches, key=lambda each: each.value)
    if math.isinf(found.value):
        raise FloatingPointError("the log score of held-out rows is not finite")
    with torch.no_grad():
        best = place(found.place)
        values = scale * best[:-2].exp()
        return Learnt(
            weights=values[:-1],
            nugget=float(values[-1]),
            outliers=float(best[-2].sigmoid()),
            score=float(score(best)),
        )


def tail_degrees(
    error: Vector, variance: Vector, noise: Vector, outliers: float = 0.0
) -> float:
    """Return the degrees of freedom of a Student-T whose 95% interval holds 95%.

    It has this variance, from `DEGREES` on: heavier tails leave the central 68%
    interval as it is. The fraction ``outliers`` of the errors is `OUTLIER_FACTOR` times
    as wide. Where noise dominates the variance, the result is about `DEGREES`.
    """
    # Trial values of 1/ν, whose prior standard deviation is 0.1.
    most, inverse = 0.95, torch.linspace(1e-3, 0.4, 81, dtype=torch.float64)
    quantiles = [stdtrit(1 / inverse.numpy(), p) for p in ((1 + most) / 2, ndtr(1.0))]
    core = torch.tensor([central_factor(float(1 / x)) for x in inverse]).double()
    wide = core * torch.from_numpy(quantiles[0] / quantiles[1]) ** 2
    normal = float(ndtri((1 + most) / 2))
    widths = wide[:, None] * variance + normal**2 * noise
    held = (error.abs() < widths.sqrt()).to(torch.float64).mean(dim=1)
    within = most + outliers * (math.erf(normal * 0.5**0.5 / OUTLIER_FACTOR) - most)
    # Noise may not be exactly normal: the fraction is uncertain by 0.0016.
    chance = (within * (1 - within) / len(error) + 0.0016**2) ** 0.5
    doubt = (inverse - 1 / DEGREES) / 0.1
    misfit = ((held - within) / chance) ** 2 + doubt**2
    return float(1 / inverse[misfit.argmin()])
