r"""Σ of all observations, brought up to date as the field improves.

``Σ_n = (σ_n² + τ² + (b_n L'_n ρ)² + α v_n) / w_n``: the stated and a common variance,
the effect of distance errors, the variance that the grid cannot resolve (α belongs to
the model), and the weight w, which is small for outliers.

Between Gauss–Newton steps to the mode, w, τ² and ν are estimated from the residuals
(:meth:`NoiseState.update_at`); between rounds of samples, from residuals averaged over
samples (:meth:`NoiseState.update_over`). α is then estimated from held-out
observations, which :meth:`NoiseState.include_all` returns to the data in the end.
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
from dustmap.inference.full_batch.subgrid_share import fit_share
from dustmap.models.base import ForwardModel, Linearisation

# Trial degrees of freedom; the last means a normal distribution.
_DEGREES = (2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)
# Factor on the variance of a held-out observation.
_HELD_OUT_FACTOR = 1e12
# The median of χ² with one degree of freedom.
_MEDIAN = 0.4549364


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Σ over samples, and the share α it was computed with.

    ``at_edge``: α is the smallest or largest trial value.
    """

    total: Float[Tensor, " n"]
    share: float
    at_edge: bool = False


class NoiseState:
    """Σ of all observations under one model, updated as ρ improves."""

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
        # Observations without influence for now.
        self.held_out: Bool[Tensor, " n"] | None = None

    def state(self) -> State:
        """Weights and hyperparameters of the noise (Σ also depends on the field)."""
        held_out = self.held_out
        none = torch.zeros_like(self.weights, dtype=torch.bool)
        return {
            "weights": self.weights,
            "common": float(self.common),
            # Zero means a normal distribution.
            "degrees": 0.0 if self.degrees is None else float(self.degrees),
            "held_out": none if held_out is None else held_out,
        }

    def restore(self, state: State) -> None:
        """Return to a state of :meth:`state`."""
        self.weights = state["weights"].to(self.weights.device)
        self.common, self.degrees = state["common"], state["degrees"] or None
        held_out = state["held_out"].to(self.weights.device)
        self.held_out = held_out if bool(held_out.any()) else None

    def normal(
        self, eps: Float[Tensor, "s p"], variance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Σ with all weights one; the effect of distance errors is averaged over ε."""
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
        """Σ with weights, held-out observations without influence."""
        return self._without_held_out(normal / self.weights)

    def _without_held_out(self, total: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Variances that remove the influence of held-out observations."""
        if self.held_out is None:
            return total
        # Finite, since perturbed data scatter by its square root.
        return torch.where(self.held_out, _HELD_OUT_FACTOR * total, total)

    def update_at(
        self, eps: Float[Tensor, " p"], tangent: Linearisation
    ) -> tuple[Float[Tensor, " n"], float]:
        """Σ at ε with new weights, and ``mean (y − apply)²/Σ``.

        Outliers are down-weighted once most observations are fitted.
        """
        normal = self.normal(eps[None], tangent.variance)
        residual = self.observations - tangent.prediction
        squares = residual**2
        if float((squares / normal).median()) < 1.0:
            # Held-out observations are not fitted, hence not outliers.
            self.reweigh(residual, squares, self._without_held_out(normal))
        total = self._weighted(normal)
        return total, float((squares / total).mean())

    def update_over(self, model: ForwardModel, eps: Float[Tensor, "s p"]) -> Update:
        """Σ with new weights from averages over samples.

        If the share is learnt, it maximises the likelihood of the held-out data.
        """
        mean = averages(model, self.observations, eps)
        residual, variance = self.observations - mean.prediction, mean.variance
        share = model.subgrid_share
        if self.held_out is None:
            self.reweigh(residual, mean.squares, self.normal(eps, variance))
            return Update(total=self.total(eps, variance), share=share)
        # Only variances of line integrals are proportional to the share.
        double = model.with_subgrid_share(2 * share)
        lines = averages(double, self.observations, eps).variance - variance
        stated = self.normal(eps, variance - lines) - self.common
        held_out = self.held_out
        found = fit_share(
            residual[held_out],
            (stated + mean.spread)[held_out],
            lines[held_out] / share,
            self.degrees,
            learn_common=self.given.learn_common,
        )
        variance = variance + (found.share / share - 1) * lines
        self.common = found.common
        normal = self.normal(eps, variance)
        # Samples are independent of held-out data, whose residuals scatter more.
        scale = torch.where(held_out, normal + 2 * mean.spread, normal)
        self.reweigh(residual, mean.squares, scale)
        total = self._weighted(normal)
        return Update(total=total, share=found.share, at_edge=found.at_edge)

    def include_all(
        self, model: ForwardModel, eps: Float[Tensor, "s p"]
    ) -> Float[Tensor, " n"]:
        """Σ with the held-out observations included again."""
        self.held_out = None
        mean = averages(model, self.observations, eps)
        return self.total(eps, mean.variance)

    def reweigh(
        self,
        residual: Float[Tensor, " n"],
        squares: Float[Tensor, " n"],
        normal: Float[Tensor, " n"],
    ) -> None:
        """``w_n = (ν + 1) / (ν + E[r_n²]/Σ_n)``: a scale mixture of normals.

        ``residual`` and ``squares`` are ``E[r_n]`` and ``E[r_n²]``. If ν is learnt, it
        maximises the likelihood of the residuals.
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
            fitted = ratio if self.held_out is None else ratio[~self.held_out]
            scores = [_student_score(fitted, nu) for nu in _DEGREES]
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
    """Mean Student-T log density at ``r²/Σ``, without the term of the scale."""
    half = torch.tensor(degrees / 2, dtype=torch.float64)
    constant = torch.lgamma(half + 0.5) - torch.lgamma(half)
    constant = constant - 0.5 * torch.log(2 * half)
    tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
    return float(constant - tail.mean())
