r"""Σ, the noise variance of all observations, updated as the field improves.

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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import State
from dustmap.functionals import Functionals
from dustmap.inference.full_batch.noise_covariance import Independent, NoiseCovariance
from dustmap.inference.full_batch.subgrid_share import ShareFit, fit_share
from dustmap.models.base import ForwardModel, Linearisation
from dustmap.residual.vecchia import VecchiaPrecision

# Trial degrees of freedom; the last means a normal distribution.
_DEGREES = (2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)
# Factor on the variance of a held-out observation: finite, since perturbed data scatter
# by its square root.
_HELD_OUT_FACTOR = 1e12
# The median of χ² with one degree of freedom.
_MEDIAN = 0.4549364


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    r"""The noise of N observations.

    Parameters
    ----------
    variance
        ``σ_n²``, including any known common noise.
    blur, blur_scale
        Adds ``(b_n L'_n ρ)²`` to the variance, the effect of a distance error ``σ_d``
        to first order: the density around the star times ``σ_d``, with ``L'`` the
        integral from ``d − σ_d`` to ``d + σ_d`` and ``b = ½``.
    degrees
        Degrees of freedom ν of a Student-T distribution; ``None`` for a normal one.
    learn_degrees
        Learn ν by maximum likelihood, starting from ``degrees``.
    learn_common
        Learn a common variance ``τ²``, added to every Σ, that makes the median of
        ``r²/Σ`` that of a normal distribution. The median is robust to the minority
        of observations behind structure that the model cannot follow. With
        ``learn_share`` both are learnt together.
    learn_share
        Learn the share of the unresolved variance that is independent between
        observations (:mod:`dustmap.inference.full_batch.subgrid_share`).
    neighbours
        For each observation, others with nearly the same expected value. A residual
        common to neighbours is unmodelled structure, not an outlier: an observation is
        down-weighted when its residual differs from the neighbours' median by more than
        Σ and their scatter (median absolute deviation).
    correlation
        Σ with what neighbouring observations share; ``variance`` is its diagonal, and
        nothing of it is learnt.
    """

    variance: Float[Tensor, " n"]
    blur: Functionals | None = None
    blur_scale: Float[Tensor, " n"] | None = None
    degrees: float | None = None
    learn_degrees: bool = True
    learn_common: bool = False
    learn_share: bool = False
    neighbours: Int[Tensor, "n k"] | None = None
    correlation: VecchiaPrecision | None = None

    def __post_init__(self) -> None:
        if (self.blur is None) != (self.blur_scale is None):
            raise ValueError("blur and blur_scale go together, one of them is missing")
        if self.blur is not None and len(self.blur) != len(self.variance):
            raise ValueError(
                f"blur has {len(self.blur)} rows for {len(self.variance)} observations"
            )
        if self.degrees is not None and not self.degrees > 1:
            raise ValueError(f"degrees must exceed 1, got {self.degrees}")
        if self.correlation is not None and (self.depends_on_field or self.learn_share):
            raise ValueError("nothing of a noise that is correlated can be learnt")

    @property
    def depends_on_field(self) -> bool:
        """Whether Σ depends on the inferred field."""
        return self.blur is not None or self.degrees is not None or self.learn_common


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Means over samples of ``y − apply(ε_s)``, of its square, and of ``v_n``.

    ``spread`` is the variance of ``apply`` over samples with divisor S, since the mean
    of an antithetic pair has no error to first order.
    """

    residual: Float[Tensor, " n"]
    squares: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]
    spread: Float[Tensor, " n"]


def averages(
    model: ForwardModel, y: Float[Tensor, " n"], eps: Float[Tensor, "s p"]
) -> Averages:
    """Mean residuals, squared residuals and conditional variances over samples."""
    total = torch.zeros(4, len(y), dtype=torch.float64, device=y.device)
    first = model.apply(eps[0])
    for one in eps:
        tangent = model.linearise(one)
        # Relative to the first sample, against cancellation.
        beside = tangent.prediction - first
        residual = y - tangent.prediction
        total += torch.stack([beside, residual**2, tangent.variance, beside**2])
    beside, squares, variance, second = total / len(eps)
    return Averages(
        residual=y - (first + beside).to(y),
        squares=squares.to(y),
        variance=variance.to(y),
        spread=(second - beside**2).clamp(min=0.0).to(y),
    )


class NoiseState:
    """Σ of all observations under one model: weights ``w``, ν, τ² and held-out data."""

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
        self.held_out: Bool[Tensor, " n"] = torch.zeros_like(
            self.weights, dtype=torch.bool
        )

    def state(self) -> State:
        """Weights and hyperparameters of the noise (Σ also depends on the field)."""
        return {
            "weights": self.weights,
            "common": float(self.common),
            # Zero means a normal distribution.
            "degrees": float(self.degrees or 0.0),
            "held_out": self.held_out,
        }

    def restore(self, state: State) -> None:
        """Return to a state of :meth:`state`."""
        self.weights = state["weights"].to(self.weights.device)
        self.held_out = state["held_out"].to(self.weights.device)
        self.common, self.degrees = state["common"], state["degrees"] or None

    @property
    def fixed(self) -> bool:
        """Whether Σ is given with its correlations, whatever the field."""
        return self.given.correlation is not None

    def covariance(self, total: Float[Tensor, " n"]) -> NoiseCovariance:
        """Σ with these variances, or as it is given."""
        correlation = self.given.correlation
        return Independent(total) if correlation is None else correlation

    def normal(
        self, eps: Float[Tensor, "s p"], variance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Σ with all weights one; the effect of distance errors is averaged over ε."""
        total = self._stated + self.common
        if self.subgrid_noise and not self.fixed:
            total = total + variance
        if self._blurred is not None and self._scale is not None:
            for one in eps:
                blur = self._scale * self._blurred.apply(one)
                total = total + blur**2 / len(eps)
        return total

    def total(
        self, eps: Float[Tensor, "s p"], variance: Float[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Σ with the current weights."""
        return self._fitted(self.normal(eps, variance) / self.weights)

    def _fitted(self, total: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Variances that remove the influence of held-out observations."""
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
            self.reweigh(residual, squares, self._fitted(normal))
        total = self._fitted(normal / self.weights)
        return total, float((squares / total).mean())

    def update_over(
        self, model: ForwardModel, eps: Float[Tensor, "s p"]
    ) -> tuple[Float[Tensor, " n"], ShareFit]:
        """Σ with new weights from averages over samples, and the share α in it.

        If the share is learnt, it maximises the likelihood of the held-out data.
        """
        mean = averages(model, self.observations, eps)
        share, held_out = model.subgrid_share, self.held_out
        if not bool(held_out.any()):
            self.reweigh(mean.residual, mean.squares, self.normal(eps, mean.variance))
            same = ShareFit(share=share, common=self.common)
            return self.total(eps, mean.variance), same
        # Only variances of line integrals are proportional to the share.
        double = model.with_subgrid_share(2 * share)
        lines = averages(double, self.observations, eps).variance - mean.variance
        stated = self.normal(eps, mean.variance - lines) - self.common
        found = fit_share(
            mean.residual[held_out],
            (stated + mean.spread)[held_out],
            lines[held_out] / share,
            self.degrees,
            learn_common=self.given.learn_common,
        )
        self.common = found.common
        normal = self.normal(eps, mean.variance + (found.share / share - 1) * lines)
        # Samples are independent of held-out data, whose residuals scatter more.
        scale = torch.where(held_out, normal + 2 * mean.spread, normal)
        self.reweigh(mean.residual, mean.squares, scale)
        return self._fitted(normal / self.weights), found

    def include_all(
        self, model: ForwardModel, eps: Float[Tensor, "s p"]
    ) -> Float[Tensor, " n"]:
        """Σ with the held-out observations included again."""
        self.held_out = torch.zeros_like(self.held_out)
        return self.total(eps, averages(model, self.observations, eps).variance)

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
            fitted = ratio[~self.held_out]
            self.degrees = max(_DEGREES, key=lambda nu: _student_score(fitted, nu))
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
    constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    tail = (degrees + 1) / 2 * torch.log1p(ratio / degrees)
    return constant - 0.5 * math.log(degrees) - float(tail.mean())
