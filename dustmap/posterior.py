"""What a fit leaves behind: moments and samples of any functional of the field."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.functionals import Functionals
from dustmap.models.base import ForwardModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and standard deviation of functionals, in the unit of the functional.

    ``std`` contains the conditional variance of what the grid cannot resolve;
    its relative Monte Carlo error is about ``1 / sqrt(2 S)`` with S samples.
    """

    mean: Float[Tensor, " n"]
    std: Float[Tensor, " n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The posterior of a field by the mean and samples of its whitened parameters.

    Parameters
    ----------
    model
        Any forward model of the field; its functionals do not matter here.
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
        if self.mean.shape != (size,):
            raise ValueError(
                f"mean must have shape ({size},), got {tuple(self.mean.shape)}"
            )
        if self.samples.ndim != 2 or self.samples.shape[1] != size:
            raise ValueError(
                f"samples must have shape (s, {size}), got {tuple(self.samples.shape)}"
            )
        if len(self.samples) == 1:
            raise ValueError("a standard deviation needs no sample or at least two")

    def moments(self, functionals: Functionals, *, rows: int = 65536) -> Moments:
        """Mean and std of ``L_n ρ``; std is NaN if the posterior has no samples.

        ``var = (1/S) Σ_s (apply(ε_s) − mean)² + v_n``, for a linear model with the
        exact mean, so that S is the divisor. Cost: S + 1 applications, and the draws
        behind ``v_n``, per ``rows`` functionals.
        """
        means, stds = [], []
        for _, part in functionals.chunks(rows):
            model = self.model.at(part)
            tangent = model.linearise(self.mean)
            mean = tangent.prediction.to(torch.float64)
            total = torch.zeros_like(mean)
            for sample in self.samples:
                total += (model.apply(sample).to(torch.float64) - mean) ** 2
            variance = total / max(len(self.samples), 1) + tangent.variance
            if not len(self.samples):
                variance = torch.full_like(mean, float("nan"))
            means.append(mean.cpu())
            stds.append(variance.sqrt().cpu())
        if not means:
            empty = torch.zeros(0, dtype=torch.float64)
            return Moments(mean=empty, std=empty)
        return Moments(mean=torch.cat(means), std=torch.cat(stds))

    def draws(
        self, functionals: Functionals, generator: torch.Generator
    ) -> Float[Tensor, "s n"]:
        """Joint posterior draws of all functionals, sub-grid residual included."""
        if not len(self.samples):
            return torch.zeros(0, len(functionals), dtype=torch.float64)
        model = self.model.at(functionals)
        residual = model.residual_draws(self.samples, generator)
        values = torch.stack([model.apply(sample) for sample in self.samples])
        return (values + residual).to(torch.float64).cpu()
