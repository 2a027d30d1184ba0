"""Posterior moments and samples of any functional of the field."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.models.base import ForwardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and standard deviation of functionals, in the unit of the functional.

    ``std`` includes the conditional variance that the grid cannot resolve. Its relative
    Monte Carlo error is about ``1 / sqrt(2 S)`` with S independent samples and up to
    ``1 / sqrt(S)`` with antithetic pairs. ``log_mean`` and ``log_std`` are the moments
    of the logarithm of a positive density.
    """

    mean: Float[Tensor, "*n"]
    std: Float[Tensor, "*n"]
    log_mean: Float[Tensor, "*n"] | None = None
    log_std: Float[Tensor, "*n"] | None = None

    def quantile(self, probability: float) -> Float[Tensor, "*n"]:
        """A quantile of the normal or log-normal with the posterior's moments.

        A few samples determine two moments far better than an order statistic. Rays of
        zero length have quantiles of zero.
        """
        if not 0 < probability < 1:
            raise ValueError(f"a probability lies between 0 and 1, got {probability}")
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        if self.log_mean is None or self.log_std is None:
            return self.mean + z * self.std
        dark = torch.isinf(self.log_mean)
        exponent = self.log_mean + z * torch.where(dark, 0.0, self.log_std)
        return exponent.exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The posterior of a field: mean and samples of its whitened parameters.

    Parameters
    ----------
    model
        Any forward model of the field; its functionals are not used.
    mean
        Posterior mean (or mode) m of ε.
    samples
        Exact posterior samples of ε.
    """

    model: ForwardModel
    mean: Float[Tensor, " p"]
    samples: Float[Tensor, "s p"]

    def __post_init__(self) -> None:
        size = self.model.latent_size
        for name, shape in (("mean", (size,)), ("samples", (len(self.samples), size))):
            found = tuple(getattr(self, name).shape)
            if found != shape:
                raise ValueError(f"{name} must have shape {shape}, got {found}")
        if len(self.samples) == 1:
            raise ValueError("a posterior needs no sample or at least two, got one")

    def moments(self, functionals: Functionals, *, rows: int = 65536) -> Moments:
        """Mean and std of ``L_n ρ``; std is NaN if the posterior has no samples.

        ``var = (1/S) Σ_s (apply(ε_s) − mean)² + v_n`` for a linear model, whose mean is
        exact; a non-linear model takes the mean over samples, the divisor S − 1 and the
        mean of ``v_n(ε_s)``. Cost: S + 1 applications, and the draws that estimate
        ``v_n``, per ``rows`` functionals.
        """
        parts = [self._part(part) for _, part in functionals.chunks(rows)]
        parts = parts or [self._part(functionals)]
        names = [field.name for field in fields(Moments)]
        given = [name for name in names if getattr(parts[0], name) is not None]
        return Moments(**{n: torch.cat([getattr(p, n) for p in parts]) for n in given})

    def _part(self, functionals: Functionals) -> Moments:
        """Moments of a few functionals."""
        model = self.model.at(functionals)
        if not model.linear and len(self.samples):
            return _moments_of_samples(model, self.samples)
        tangent = model.linearise(self.mean)
        mean = tangent.prediction.to(torch.float64)
        total = torch.zeros_like(mean)
        for sample in self.samples:
            total += (model.apply(sample).to(torch.float64) - mean) ** 2
        variance = total / max(len(self.samples), 1) + tangent.variance
        if not len(self.samples):
            variance = torch.full_like(mean, float("nan"))
        return Moments(mean=mean.cpu(), std=variance.sqrt().cpu())

    def draws(
        self, functionals: Functionals, generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """Joint posterior draws of all functionals, including the sub-grid residual."""
        if not len(self.samples):
            return torch.zeros(0, len(functionals), dtype=torch.float64)
        model = self.model.at(functionals)
        return self._values(model, model.residual_draws(self.samples, generator))

    def draws_from(
        self, functionals: Functionals, white: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        """Draws with sub-grid residuals from given standard normals.

        For models with independent residuals. Equal normals may be used for related
        functionals, such as the points along one ray: the moments of each do not
        change.
        """
        model = self.model.at(functionals)
        return self._values(model, model.residual_from(self.samples, white))

    def _values(
        self, model: ForwardModel, residual: Float[Tensor, "s n"]
    ) -> Float[Tensor, "s n"]:
        values = torch.stack([model.apply(sample) for sample in self.samples])
        return (values + residual).to(torch.float64).cpu()


def _moments_of_samples(model: ForwardModel, samples: Float[Tensor, "s p"]) -> Moments:
    """Moments over samples, each with its unresolved variance.

    For a positive density, a sample's value A and conditional variance v represent a
    log-normal with these moments: its logarithm has variance τ² = ln(1 + v/A²) and mean
    ln A − τ²/2.
    """
    shape = (len(samples), len(model.functionals))
    values = torch.zeros(shape, dtype=torch.float64, device=model.device)
    logarithms = torch.zeros_like(values)
    variance, scatter = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    for row, sample in enumerate(samples):
        tangent = model.linearise(sample)
        values[row] = tangent.prediction.to(torch.float64)
        unresolved = tangent.variance.to(torch.float64)
        variance += unresolved / len(samples)
        if model.positive:
            logarithms[row], squared = log_moments(values[row], unresolved)
            scatter += squared / len(samples)
    mean = values.mean(dim=0)
    moments = {"mean": mean, "std": (values.var(dim=0) + variance).sqrt()}
    if model.positive:
        spread = torch.where(mean <= 0, 0.0, logarithms.var(dim=0)) + scatter
        moments |= {"log_mean": logarithms.mean(dim=0), "log_std": spread.sqrt()}
    return Moments(**{name: value.cpu() for name, value in moments.items()})


def log_moments(
    mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of the logarithm of a log-normal with these moments.

    For a mean of zero (a ray of zero length) they are −∞ and 0.
    """
    dark = mean <= 0
    relative = torch.where(dark, 0.0, variance / torch.where(dark, 1.0, mean) ** 2)
    squared = torch.log1p(relative)
    return mean.log() - squared / 2, squared
