"""Means, standard deviations and quantiles of predictions by posterior samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtr, ndtri, stdtrit
from torch import Tensor

from dustmap.linalg.compiled_tasks import compiled, in_parallel, thread_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and standard deviation of functionals, in the unit of the functional.

    ``std`` includes the conditional variance that the grid cannot resolve. Its relative
    Monte Carlo error is about ``1 / sqrt(2 S)`` with S independent samples and up to
    ``1 / sqrt(S)`` with antithetic pairs. ``log_mean`` and ``log_std`` are the moments
    of the logarithm of a positive density, ``degrees`` the degrees of freedom of the
    standard deviations, infinite where these do not depend on samples. ``tails`` are
    those of errors: beyond one standard deviation quantiles are further out, like those
    of a Student-T with the same central 68%.
    """

    mean: Float[Tensor, "*n"]
    std: Float[Tensor, "*n"]
    log_mean: Float[Tensor, "*n"] | None = None
    log_std: Float[Tensor, "*n"] | None = None
    degrees: Float[Tensor, "*n"] | None = None
    tails: Float[Tensor, "*n"] | None = None

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Join parts."""
        names = [field.name for field in fields(cls)]
        given = [name for name in names if getattr(parts[0], name) is not None]
        return cls(**{n: torch.cat([getattr(p, n) for p in parts]) for n in given})

    def quantile(self, probability: float) -> Float[Tensor, "*n"]:
        """Return one of the `quantiles`."""
        return self.quantiles([probability])[0]

    def quantiles(self, probabilities: Sequence[float]) -> list[Float[Tensor, "*n"]]:
        """Return quantiles of the normal or log-normal with the posterior's moments.

        A few samples determine two moments far better than an order statistic; the
        errors of these moments turn normal quantiles into those of a Student-T. Rays of
        zero length have quantiles of zero.
        """
        upper: dict[float, Tensor] = {}
        found = []
        for p in probabilities:
            if not 0 < p < 1:
                raise ValueError(f"a probability lies between 0 and 1, got {p}")
            one = round(max(p, 1 - p), 12)
            if one not in upper:
                upper[one] = self._deviations(one)
            found.append(self._at(upper[one] if p >= 0.5 else -upper[one]))
        return found

    def _deviations(self, probability: float) -> Tensor:
        """Return a quantile's distance above the median in standard deviations."""
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        if self.degrees is not None and probability != 0.5:
            z = torch.from_numpy(stdtrit(self.degrees.numpy(), probability))
        if self.tails is not None:
            z = z * _farther(probability, self.tails)
        return z

    def _at(self, deviations: Tensor) -> Float[Tensor, "*n"]:
        """Return the value at these standard deviations above the median."""
        if self.log_mean is None or self.log_std is None:
            return self.mean + deviations * self.std
        dark = torch.isinf(self.log_mean)
        spread = torch.where(dark, 0.0, self.log_std)
        return (self.log_mean + deviations * spread).exp()


def moments_over_samples(
    values: Float[Tensor, "s n"],
    unresolved: Float[Tensor, "s n"] | Float[Tensor, " n"],
    *,
    positive: bool,
) -> Moments:
    """Return moments over samples, each with a conditional variance, or all with one.

    For a positive density, a sample's value A and variance v represent a log-normal
    with these moments: its logarithm has variance τ² = ln(1 + v/A²) and mean
    ln A − τ²/2.
    """
    values, unresolved = values.cpu(), unresolved.cpu()
    variances = unresolved.reshape(-1, values.shape[1])
    mean, between = values.mean(dim=0), values.var(dim=0)
    variance = between + variances.mean(dim=0)
    if not positive:
        degrees = degrees_of(between, variance, len(values))
        return Moments(mean=mean, std=variance.sqrt(), degrees=degrees)
    log_mean, between, scatter = _of_logarithms(values, variances)
    between = torch.where(mean <= 0, 0.0, between)
    spread = between + scatter
    return Moments(
        mean=mean,
        std=variance.sqrt(),
        log_mean=log_mean,
        log_std=spread.sqrt(),
        degrees=degrees_of(between, spread, len(values)),
    )


def _of_logarithms(values: Tensor, variances: Tensor) -> tuple[Tensor, ...]:
    """Run `_log_moments` in threads."""
    given = [x.to(torch.float64).contiguous().numpy() for x in (values, variances)]
    found = np.empty((3, values.shape[1]))
    threads = thread_count(20 * values.numel())
    cuts = np.linspace(0, values.shape[1], threads + 1).astype(int)
    in_parallel(lambda n: _log_moments(cuts[n], cuts[n + 1], *given, found), threads)
    return tuple(map(torch.from_numpy, found))


@compiled
def _log_moments(first, last, values, variances, found):
    """Find mean and variance over samples of log-normals' means, and mean variances.

    For a value of zero (a ray of zero length) they are −∞ and 0.
    """
    samples, logarithms = len(values), np.empty(len(values))
    for n in range(first, last):
        mean, scatter = 0.0, 0.0
        for s in range(samples):
            value, variance = values[s, n], variances[min(s, len(variances) - 1), n]
            squared = math.log1p(variance / value**2) if value > 0 else 0.0
            logarithms[s] = math.log(value) - squared / 2
            mean += logarithms[s] / samples
            scatter += squared / samples
        total = 0.0
        for s in range(samples):
            total += (logarithms[s] - mean) ** 2
        found[0, n], found[1, n], found[2, n] = mean, total / (samples - 1), scatter


def _farther(probability: float, tails: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    r"""Return the factor from a normal's quantile to the one with these ``tails``.

    It is :math:`t_\nu(p) / (t_\nu(\Phi(1))\, z_p)`, and one at one standard deviation.
    """
    if probability == 0.5:
        return torch.ones_like(tails)
    # There is one value for each of a few kinds of functionals.
    degrees, kinds = tails.unique(return_inverse=True)
    far, one = (stdtrit(degrees.numpy(), p) for p in (probability, float(ndtr(1.0))))
    return torch.from_numpy(far / one / ndtri(probability))[kinds]


def degrees_of(
    between: Float[Tensor, " n"], variance: Float[Tensor, " n"], samples: int
) -> Float[Tensor, " n"]:
    r"""Return the degrees of freedom of a variance with a part estimated from samples.

    Welch's :math:`\nu = (B + W)^2 / (B^2 / \nu_B)`; antithetic pairs give one degree
    each, :math:`\nu_B = S / 2`.
    """
    share = torch.where(variance > 0, between / variance, 0.0)
    return samples / 2 / share.square()
