"""Means, standard deviations and quantiles of predictions by posterior samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.shapes import Draws, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Normal or, if ``positive``, log-normal distributions with a mean and a std.

    Both are in the unit of the functional, and quantiles are of the distribution that
    has them. ``std`` includes the conditional variance that the grid cannot resolve.
    Its relative Monte Carlo error is about ``1 / sqrt(2 S)`` with S independent samples
    and up to ``1 / sqrt(S)`` with antithetic pairs; less for moderated variances
    (`dustmap.residual.moderation`).
    """

    mean: Float[Tensor, "*n"]
    std: Float[Tensor, "*n"]
    positive: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Join parts."""
        mean, std = (torch.cat([getattr(p, n) for p in parts]) for n in ("mean", "std"))
        return cls(mean=mean, std=std, positive=parts[0].positive)

    def quantile(self, probability: float) -> Float[Tensor, "*n"]:
        """Return one quantile of every distribution."""
        return self.quantiles([probability])[0]

    def quantiles(self, probabilities: Sequence[float]) -> list[Float[Tensor, "*n"]]:
        """Return quantiles of every distribution; zero for rays of zero length.

        With :math:`σ^2 = ln(1 + std^2 / mean^2)` a log-normal quantile is
        :math:`mean exp(σ z_p - σ^2 / 2)`. A few samples determine two moments far
        better than an order statistic.
        """
        found = []
        for p in probabilities:
            if not 0 < p < 1:
                raise ValueError(f"a probability lies between 0 and 1, got {p}")
            z = torch.special.ndtri(torch.tensor(p, dtype=torch.float64))
            if not self.positive:
                found.append(self.mean + z * self.std)
                continue
            some = torch.where(self.mean > 0, self.mean, 1.0)
            variance = (self.std / some).square().log1p()
            found.append(self.mean * (z * variance.sqrt() - variance / 2).exp())
        return found


def sample_order(values: Draws, unresolved: Draws, white: Draws) -> Int[Tensor, "s n"]:
    """Return every sample's place in the order of all samples, from 0, by column.

    Values and standard normals ``white`` determine the order in proportion to the
    variance between values and to the conditional variances.
    """

    def places(numbers: Tensor) -> Tensor:
        return numbers.argsort(dim=0, stable=True).argsort(dim=0)

    scores = torch.special.ndtri((places(values) + 0.5) / len(values))
    _, between = _mean_and_variance(values)
    left = sum_in_order(unresolved) / len(unresolved)
    share = between / torch.where(between + left > 0, between + left, 1.0)
    return places(share.sqrt() * scores + (1 - share).sqrt() * white)


def moments_over_samples(
    values: Draws,
    unresolved: Draws | Vector,
    *,
    positive: bool,
    moderate: Callable[[Vector], Vector] | None = None,
) -> Moments:
    r"""Return moments over samples, each with a conditional variance, or all with one.

    Samples are summed one by one, so that the result at a place does not depend on the
    number of places, to the bit.

    ``moderate`` returns better estimates of positive values' `log_variance`,
    :math:`\tilde\sigma^2` from :math:`\sigma^2`. The median :math:`m e^{-\sigma^2 / 2}`
    between samples stays, which antithetic pairs determine best, and the mean
    :math:`\bar v` of conditional variances grows as squares of values do:

    .. math::
       \tilde m = m\, e^{(\tilde\sigma^2 - \sigma^2) / 2} , \qquad
       \tilde s^2 = \tilde m^2 (e^{\tilde\sigma^2} - 1)
           + \bar v\, e^{2 (\tilde\sigma^2 - \sigma^2)} .
    """
    values, unresolved = values.cpu().double(), unresolved.cpu().double()
    mean, between = _mean_and_variance(values)
    variances = unresolved.reshape(-1, values.shape[1])
    left = sum_in_order(variances) / len(variances)
    variance = between + left
    if moderate is not None:
        found = (between / mean**2).log1p()
        better = moderate(found)
        mean = mean * ((better - found) / 2).exp()
        variance = mean**2 * better.expm1() + left * (2 * (better - found)).exp()
    return Moments(mean=mean, std=variance.sqrt(), positive=positive)


def log_variance(values: Draws) -> Vector:
    """Return ln(1 + s² / m²), of log-normal values the variance of their logarithm."""
    mean, between = _mean_and_variance(values)
    return (between / mean**2).log1p()


def _mean_and_variance(values: Draws) -> tuple[Tensor, Tensor]:
    mean = sum_in_order(values) / len(values)
    squares = sum_in_order((value - mean) ** 2 for value in values)
    return mean, squares / (len(values) - 1)


def sum_in_order(rows: Iterable[Vector]) -> Vector:
    """Sum rows one by one, so that the bits do not depend on the number of columns."""
    return sum(rows, torch.zeros(()))
