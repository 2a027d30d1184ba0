r"""Σ of all observations, brought up to date as the field improves.

``Σ_n = (σ_n² + τ² + (b_n L'_n ρ)² + α v_n) / w_n``: the stated variance and a common
one, what an uncertain distance does to the extinction, what the grid cannot resolve
(α is the model's), and the weight that an outlier is left with.

Between Gauss–Newton steps to the mode w, τ² and ν follow the residuals there
(:meth:`NoiseState.update_at`); between rounds of samples those averaged over samples,
and so does α (:meth:`NoiseState.update_over`), from observations that the samples have
not seen, until these are included again (:meth:`NoiseState.include_all`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dustmap.checkpoint import State
from dustmap.inference.full_batch.noise import Noise
from dustmap.inference.full_batch.sample_averages import averages
from dustmap.inference.full_batch.subgrid_share import best_leftover
from dustmap.models.base import ForwardModel, Linearisation

# Degrees of freedom that are tried; the last counts as a normal distribution.
_DEGREES = (2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)
# By how much the variance of an observation grows that is set aside.
_NOTHING = 1e12
# The median of χ² with one degree of freedom.
_MEDIAN = 0.4549364


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Σ over samples, and the model's share α that it holds for.

    ``at_edge`` says that α is the least or the largest that is tried.
    """

    total: Float[Tensor, " n"]
    share: float
    at_edge: bool = False


class NoiseState:
    """Σ of all observations under one model, brought up to date as ρ improves."""

    def __init__(
        self,
        model: ForwardModel,
        observations: Float[Tensor, " n"],
        noise: Noise,
        *,
        subgrid_noise: bool,
    ) -> None:
        place = {"dtype": model.dtype, "device": model.device}
        self.given = noise
        self.subgrid_noise = subgrid_noise
        self.degrees = noise.degrees
        self.common = 0.0
        self.observations = observations.to(**place)
        self._stated = noise.variance.to(**place)
        self._scale = None if noise.blur_scale is None else noise.blur_scale.to(**place)
        self._blurred = None if noise.blur is None else model.at(noise.blur)
        self.weights = torch.ones_like(self._stated)
        # Observations that count for nothing for now.
        self.aside: Bool[Tensor, " n"] | None = None

    def state(self) -> State:
        """What reweighing has found; Σ itself is no function of this alone."""
        aside = self.aside
        none = torch.zeros_like(self.weights, dtype=torch.bool)
        return {
            "weights": self.weights,
            "common": float(self.common),
            # Zero stands for a normal distribution.
            "degrees": 0.0 if self.degrees is None else float(self.degrees),
            "aside": none if aside is None else aside,
        }

    def restore(self, state: State) -> None:
        """Return to what :meth:`state` told."""
        self.weights = state["weights"].to(self.weights.device)
        self.common, self.degrees = state["common"], state["degrees"] or None
        aside = state["aside"].to(self.weights.device)
        self.aside = aside if bool(aside.any()) else None

    def normal(
        self, eps: Float[Tensor, "s p"], variance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Σ of a normal distribution: every weight is one; blur is averaged over ε."""
        total = self._stated + self.common
        if self.subgrid_noise:
            total = total + variance
        if self._blurred is not None:
            assert self._scale is not None
            for one in eps:
                blur = self._scale * self._blurred.apply(one)
                total = total + blur**2 / len(eps)
        return total

    def total(
        self, eps: Float[Tensor, "s p"], variance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Σ with the current weights."""
        return self._weighted(self.normal(eps, variance))

    def _weighted(self, normal: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The weights, and what is set aside, brought into a Σ."""
        return self._without_aside(normal / self.weights)

    def _without_aside(self, total: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Variances with which what is set aside tells nothing."""
        if self.aside is None:
            return total
        # Finite: perturbed data scatter by its root, and still tell nothing.
        return torch.where(self.aside, _NOTHING * total, total)

    def update_at(
        self, eps: Float[Tensor, " p"], tangent: Linearisation
    ) -> tuple[Float[Tensor, " n"], float]:
        """Σ at ε with new weights, and ``mean (y − apply)²/Σ``.

        Outliers are weighed down once most observations are fitted.
        """
        normal = self.normal(eps[None], tangent.variance)
        residual = self.observations - tangent.prediction
        squares = residual**2
        if float((squares / normal).median()) < 1.0:
            # What is set aside is not fitted, and no outlier for that.
            self.reweigh(residual, squares, self._without_aside(normal))
        total = self._weighted(normal)
        return total, float((squares / total).mean())

    def update_over(self, model: ForwardModel, eps: Float[Tensor, "s p"]) -> Update:
        """Σ with new weights by averages over samples, and the share if it is learnt.

        This is that of highest likelihood of what was set aside.
        """
        seen = averages(model, self.observations, eps)
        residual, variance = self.observations - seen.prediction, seen.variance
        share = model.subgrid_share
        if self.aside is None:
            self.reweigh(residual, seen.squares, self.normal(eps, variance))
            return Update(total=self.total(eps, variance), share=share)
        # Of line integrals alone: nothing else is proportional to the share.
        double = model.with_subgrid_share(2 * share)
        lines = averages(double, self.observations, eps).variance - variance
        stated = self.normal(eps, variance - lines) - self.common
        aside = self.aside
        found = best_leftover(
            residual[aside],
            (stated + seen.spread)[aside],
            lines[aside] / share,
            self.degrees,
            learn_common=self.given.learn_common,
        )
        variance = variance + (found.share / share - 1) * lines
        self.common = found.common
        normal = self.normal(eps, variance)
        # Samples know nothing of these: their residuals scatter by twice the spread.
        scale = torch.where(aside, normal + 2 * seen.spread, normal)
        self.reweigh(residual, seen.squares, scale)
        total = self._weighted(normal)
        return Update(total=total, share=found.share, at_edge=found.at_edge)

    def include_all(
        self, model: ForwardModel, eps: Float[Tensor, "s p"]
    ) -> Float[Tensor, " n"]:
        """Σ with those that were set aside among the others again."""
        self.aside = None
        seen = averages(model, self.observations, eps)
        return self.total(eps, seen.variance)

    def reweigh(
        self,
        residual: Float[Tensor, " n"],
        squares: Float[Tensor, " n"],
        normal: Float[Tensor, " n"],
    ) -> None:
        """``w_n = (ν + 1) / (ν + E[r_n²]/Σ_n)``: a scale mixture of normals.

        ``residual`` and ``squares`` are ``E[r_n]`` and ``E[r_n²]``. ν is that of
        highest likelihood of the residuals, if it is learnt.
        """
        own, scatter = squares, None
        if self.given.neighbours is not None:
            around = residual[self.given.neighbours]
            centre = around.median(dim=1).values
            scatter = 1.4826 * (around - centre[:, None]).abs().median(dim=1).values
            # The median of k independent residuals has π/2k of their variance.
            share = 1 + math.pi / 2 / around.shape[1]
            own = squares - residual**2 + (residual - centre) ** 2 / share
        if self.given.learn_common and not self.given.learn_share:
            self.common = _common_variance(own, normal - self.common)
        if self.degrees is None:
            return
        if scatter is not None:
            normal = torch.maximum(normal, scatter**2)
        ratio = (own / normal).to(torch.float64)
        if self.given.learn_degrees:
            told = ratio if self.aside is None else ratio[~self.aside]
            scores = [_student_score(told, nu) for nu in _DEGREES]
            self.degrees = _DEGREES[scores.index(max(scores))]
        if self.degrees >= _DEGREES[-1]:
            self.weights = torch.ones_like(self._stated)
            return
        weights = (self.degrees + 1) / (self.degrees + ratio)
        self.weights = weights.to(self._stated)


def _common_variance(squares: Float[Tensor, " n"], known: Float[Tensor, " n"]) -> float:
    """The ``τ² ≥ 0`` at which the median of ``r²/(Σ + τ²)`` is that of ``χ²_1``."""
    low, high = 0.0, float(squares.max())
    if float((squares / known).median()) <= _MEDIAN:
        return 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        above = float((squares / (known + middle)).median()) > _MEDIAN
        low, high = (middle, high) if above else (low, middle)
    return low


def _student_score(ratio: Float[Tensor, " n"], degrees: float) -> float:
    """Mean log density of a Student-T, up to the scale's term, at ``r²/Σ``."""
    half = torch.tensor(degrees / 2, dtype=torch.float64)
    constant = torch.lgamma(half + 0.5) - torch.lgamma(half)
    constant = constant - 0.5 * torch.log(2 * half)
    tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
    return float(constant - tail.mean())
