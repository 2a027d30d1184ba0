r"""What an observation is uncertain by, beyond its stated error.

``Σ_n = (σ_n² + τ² + (b_n L'_n ρ)² + α v_n) / w_n``: the stated variance and a common
one, what an uncertain distance does to the extinction, what the grid cannot resolve
(α is the model's), and the weight that an outlier is left with. What depends on the
field is brought up to date between Gauss–Newton steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import State
from dustmap.functionals import Functionals
from dustmap.models.base import ForwardModel

# Degrees of freedom that are tried; the last counts as a normal distribution.
_DEGREES = (2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)


# By how much the variance of an observation grows that is set aside.
_NOTHING = 1e12
# The median of χ² with one degree of freedom.
_MEDIAN = 0.4549364


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    r"""The noise of N observations.

    Parameters
    ----------
    variance
        ``σ_n²``, with any common noise that is known.
    blur, blur_scale
        ``(b_n L'_n ρ)²`` is added to the variance, to first order what an error
        ``σ_d`` of a distance does: with ``L'`` the integral from ``d − σ_d`` to
        ``d + σ_d`` and ``b = ½``, the density around the star times ``σ_d``.
    degrees
        Degrees of freedom ν of a Student-T distribution; ``None`` for a normal one.
    learn_degrees
        Take the ν of highest likelihood instead, starting from ``degrees``.
    learn_common
        Learn a common variance ``τ²`` that is added to every Σ: as much as makes the
        median of ``r²/Σ`` that of a normal distribution. Structure that a model cannot
        follow concerns a minority, and leaves the median alone. With ``learn_share``
        both are learnt together.
    learn_share
        Learn which share of the unresolved variance is left to each observation
        (:mod:`dustmap.inference.subgrid_share`).
    neighbours
        For each observation, others that should see nearly the same. What they miss in
        common is structure that the model cannot follow, and no reason to doubt any of
        them: a residual counts as far as it differs from their median, and against
        their scatter (median absolute deviation) where that exceeds Σ.
    """

    variance: Float[Tensor, " n"]
    blur: Functionals | None = None
    blur_scale: Float[Tensor, " n"] | None = None
    degrees: float | None = None
    learn_degrees: bool = True
    learn_common: bool = False
    learn_share: bool = False
    neighbours: Int[Tensor, "n k"] | None = None

    def __post_init__(self) -> None:
        if (self.blur is None) != (self.blur_scale is None):
            raise ValueError("blur and blur_scale go together, one of them is missing")
        if self.blur is not None and len(self.blur) != len(self.variance):
            raise ValueError(
                f"blur has {len(self.blur)} rows for {len(self.variance)} observations"
            )
        if self.degrees is not None and not self.degrees > 1:
            raise ValueError(f"degrees must exceed 1, got {self.degrees}")

    @property
    def depends_on_field(self) -> bool:
        """Whether Σ changes with what is inferred."""
        return self.blur is not None or self.degrees is not None or self.learn_common


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
        self.noise = noise
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
        """Σ with the weights at hand."""
        return self.weighted(self.normal(eps, variance))

    def weighted(self, normal: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The weights, and what is set aside, brought into a Σ."""
        return self.without_aside(normal / self.weights)

    def without_aside(self, total: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Variances with which what is set aside tells nothing."""
        if self.aside is None:
            return total
        # Finite: perturbed data scatter by its root, and still tell nothing.
        return torch.where(self.aside, _NOTHING * total, total)

    def settled(
        self, squares: Float[Tensor, " n"], normal: Float[Tensor, " n"]
    ) -> bool:
        """Whether most observations are fitted, so that outliers can be told."""
        return float((squares / normal).median()) < 1.0

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
        if self.noise.neighbours is not None:
            around = residual[self.noise.neighbours]
            centre = around.median(dim=1).values
            scatter = 1.4826 * (around - centre[:, None]).abs().median(dim=1).values
            # The median of k independent residuals has π/2k of their variance.
            share = 1 + math.pi / 2 / around.shape[1]
            own = squares - residual**2 + (residual - centre) ** 2 / share
        if self.noise.learn_common and not self.noise.learn_share:
            self.common = _common_variance(own, normal - self.common)
        if self.degrees is None:
            return
        if scatter is not None:
            normal = torch.maximum(normal, scatter**2)
        ratio = (own / normal).to(torch.float64)
        if self.noise.learn_degrees:
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
