r"""Σ, the noise of all observations, updated as the field improves.

Independent noise has ``Σ_n = (σ_n² + τ² + u_n) / w_n``: the stated and a common
variance, the variance u that the field itself adds (unresolved variance, and distance
errors ``(b_n L'_n ρ)²``), and the weight w, which is small for outliers.

u contains the share α of the unresolved variance of line integrals: neighbouring rays
cross the same small clouds, and the map follows their common part. α may exceed one,
since the true spectrum may have more small-scale power than the kernel's. It is learnt
from the likelihood of observations that are held out meanwhile.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.checkpoint import misfit
from dustmap.functionals import Functionals
from dustmap.linalg.operator import LinearOperator
from dustmap.shapes import EpsBatch, Vector, Vectors
from dustmap.tails import log_student

# Trial degrees of freedom; the last means a normal distribution.
_DEGREES = (2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0, 10.0, 14.0, 20.0, 30.0, 50.0, 100.0)
# The median of χ² with one degree of freedom.
_MEDIAN = 0.4549364
FEWEST = 300
"""Least number of observations for which α can be estimated."""
# Factor on the variance of a held-out observation: finite, since perturbed data scatter
# by its square root.
_HELD_OUT_FACTOR = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Learnt parameters of independent noise: w, τ², ν (``None`` if normal) and α.

    ``held_out`` marks the observations that are excluded for now.
    """

    weights: Vector
    common: float
    degrees: float | None
    share: float
    held_out: Bool[Tensor, " n"]


class NoiseModel(ABC):
    """Σ of all observations, with a root R: ``Σ⁻¹ = Rᵀ R``.

    A ``fixed`` model neither depends on the field nor learns: updates change nothing.
    ``variance`` holds ``Σ_nn``.
    """

    variance: Vector
    fixed: bool = True
    learn_share: bool = False
    weights: Float[Tensor, "*n"] = torch.ones(())
    common: float = 0.0
    share: float = 1.0
    at_edge: bool = False
    degrees: float | None = None
    blur: Functionals | None = None
    blur_scale: Vector | None = None

    @abstractmethod
    def whitened(self, x: Vectors) -> Vectors:
        """Return ``R x``."""

    @abstractmethod
    def apply_precision(self, x: Vectors) -> Vectors:
        """Return ``Σ⁻¹ x``."""

    @abstractmethod
    def coloured(self, white: Vectors) -> Vectors:
        """Return ``R⁻¹ z``, of covariance Σ for standard normals z."""

    def gram(self, features: LinearOperator, x: EpsBatch) -> EpsBatch:
        """Return ``Φᵀ Σ⁻¹ Φ x``."""
        return features.rmatvec(self.apply_precision(features.matvec(x)))

    @property
    def depends_on_field(self) -> bool:
        """True if Σ depends on the inferred field."""
        return False

    def prepared(self, place: Tensor, share: float, generator: torch.Generator) -> Self:
        """Return the model before the first step, with Σ of the dtype of ``place``.

        ``share`` is the model's α; ``generator`` makes random choices.
        """
        return self

    def normal(self, unresolved: Vector) -> Vector:
        """Return ``Σ_nn`` with all weights one, where the field adds this variance."""
        return self.variance

    def given_unresolved(self, unresolved: Vector) -> Self:
        """Return Σ where the field adds this variance u."""
        return self

    def with_total(self, total: Vector) -> Self:
        """Return the model with these variances in Σ."""
        return self

    def updated(
        self,
        residual: Vector,
        spread: Vector | float,
        unresolved: Vector,
        lines: Vector | None = None,
    ) -> Self:
        """Return Σ updated by residuals.

        Parameters
        ----------
        residual, spread
            ``y − E[apply(ε)]`` and the variance of ``apply(ε)``, over samples of ε.
        unresolved, lines
            u, and the part of it that is proportional to the share α; α is learnt only
            if ``lines`` is given.
        """
        return self

    @property
    def learnt(self) -> Learnt | None:
        """Learnt parameters; ``None`` if ``fixed``."""
        return None

    def with_learnt(self, learnt: Learnt | None) -> Self:
        """Return the model with the parameters that an earlier one learnt.

        Raises `ValueError` if the earlier model was of another kind.
        """
        if learnt is not None:
            raise misfit("the noise", "correlated", "independent")
        return self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Normal(NoiseModel):
    """Independent normal noise.

    Parameters
    ----------
    stated
        ``σ_n²``, including any known common noise.
    blur, blur_scale
        Adds ``(b_n L'_n ρ)²`` to the variance, the effect of a distance error ``σ_d``
        to first order: the density around the star times ``σ_d``, with ``L'`` the
        integral from ``d − σ_d`` to ``d + σ_d`` and ``b = ½``.
    learn_common
        Learn a common variance ``τ²``, added to every Σ, with which the median of
        ``r²/Σ`` is as for normal residuals. The median is robust to the minority
        of observations behind structure that the model cannot follow. With
        ``learn_share`` both are learnt together.
    learn_share
        Learn the share α.
    common, share, weights
        τ², α and w.
    held_out
        Observations that are excluded for now.
    at_edge
        True if the learnt α is the smallest or largest trial value.
    total
        Σ at the present field; ``stated`` unless given.
    """

    stated: Vector
    blur: Functionals | None = None
    blur_scale: Vector | None = None
    learn_common: bool = False
    learn_share: bool = False
    common: float = 0.0
    share: float = 1.0
    weights: Float[Tensor, "*n"] = NoiseModel.weights
    held_out: Bool[Tensor, "*n"] = field(
        default_factory=lambda: torch.zeros((), dtype=torch.bool)
    )
    at_edge: bool = False
    total: Vector | None = None
    fixed = False

    def __post_init__(self) -> None:
        if (self.blur is None) != (self.blur_scale is None):
            raise ValueError("expected both blur and blur_scale, or neither; got one")
        if self.blur is not None and len(self.blur) != len(self.stated):
            raise ValueError(
                f"blur needs a row for each of {len(self.stated)} observations, got "
                f"{len(self.blur)}"
            )

    @property
    def variance(self) -> Vector:
        return self.stated if self.total is None else self.total

    @property
    def depends_on_field(self) -> bool:
        return self.blur is not None or self.learn_common

    def whitened(self, x: Vectors) -> Vectors:
        return x / self.variance.sqrt()

    def apply_precision(self, x: Vectors) -> Vectors:
        return x / self.variance

    def coloured(self, white: Vectors) -> Vectors:
        return self.variance.sqrt() * white.to(self.variance)

    def gram(self, features: LinearOperator, x: EpsBatch) -> EpsBatch:
        # One product instead of two where features are sparse.
        return features.gram(x, (1.0 / self.variance).to(features.dtype))

    def prepared(self, place: Tensor, share: float, generator: torch.Generator) -> Self:
        # A random tenth of the observations, 2,000 at most, is held out if the share is
        # learnt.
        held_out = torch.zeros(len(self.stated), dtype=torch.bool)
        if self.learn_share:
            some = min(round(0.1 * len(held_out)), 2_000)
            held_out[torch.randperm(len(held_out), generator=generator)[:some]] = True
        stated, scale = self.stated.to(place), self.blur_scale
        return replace(
            self,
            stated=stated,
            blur_scale=None if scale is None else scale.to(place),
            weights=torch.ones_like(stated),
            held_out=held_out.to(stated.device),
            share=share,
        )

    def normal(self, unresolved: Vector) -> Vector:
        return self.stated + self.common + unresolved

    def given_unresolved(self, unresolved: Vector) -> Self:
        return self.with_total(self._fitted(self.normal(unresolved)))

    def including_all(self) -> Self:
        """Return the model with the held-out observations included again."""
        return replace(self, held_out=torch.zeros_like(self.held_out))

    def with_total(self, total: Vector) -> Self:
        return replace(self, total=total)

    def _fitted(self, normal: Vector) -> Vector:
        """Return Σ with the weights; held-out observations have no influence."""
        total = normal / self.weights
        return torch.where(self.held_out, _HELD_OUT_FACTOR * total, total)

    def updated(
        self,
        residual: Vector,
        spread: Vector | float,
        unresolved: Vector,
        lines: Vector | None = None,
    ) -> Self:
        """Return Σ updated by residuals.

        A new τ² enters the next Σ, or this one if it is learnt together with α.
        """
        model, normal = self, self.normal(unresolved)
        # Held-out observations are not fitted, hence not outliers.
        scale = torch.where(self.held_out, _HELD_OUT_FACTOR * normal, normal)
        if lines is not None:
            out = self.held_out
            share, common, at_edge = learn_share(
                residual[out],
                (self.stated + (unresolved - lines) + spread)[out],
                lines[out] / self.share,
                self.degrees,
                learn_common=self.learn_common,
            )
            model = replace(self, share=share, common=common, at_edge=at_edge)
            normal = model.normal(unresolved + (share / self.share - 1) * lines)
            # Samples are independent of held-out data, whose residuals scatter more.
            scale = torch.where(self.held_out, normal + 2 * spread, normal)
        model = model._reweighed(residual, spread, scale)
        return model.with_total(model._fitted(normal))

    def _reweighed(
        self, residual: Vector, spread: Vector | float, normal: Vector
    ) -> Self:
        """Learn the common variance from ``E[r²] = residual² + spread``."""
        return self._with_common(residual**2 + spread, normal)

    def _with_common(self, squares: Vector, normal: Vector) -> Self:
        """Set τ², at least 0, so that ``r²/(Σ + τ²)`` has the median of ``χ²_1``."""
        if not self.learn_common or self.learn_share:
            return self
        known, low, high = normal - self.common, 0.0, float(squares.max())
        if float((squares / known).median()) <= _MEDIAN:
            return replace(self, common=0.0)
        for _ in range(40):
            middle = 0.5 * (low + high)
            above = float((squares / (known + middle)).median()) > _MEDIAN
            low, high = (middle, high) if above else (low, middle)
        return replace(self, common=low)

    @property
    def learnt(self) -> Learnt:
        own = {each.name: getattr(self, each.name) for each in fields(Learnt)}
        return Learnt(**own)

    def with_learnt(self, learnt: Learnt | None) -> Self:
        if learnt is None:
            raise misfit("the noise", "independent", "correlated")
        names = ("share", "weights", "held_out", "common")
        return replace(self, **{name: getattr(learnt, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudentT(Normal):
    """Independent Student-T noise, a mixture of normals with the weights w.

    Parameters
    ----------
    degrees
        Degrees of freedom ν.
    learn_degrees
        Learn ν by maximum likelihood, starting from ``degrees``.
    neighbours
        For each observation, others with nearly the same expected value. A residual
        common to neighbours is unmodelled structure, not an outlier: an observation is
        down-weighted when its residual differs from the neighbours' median by more than
        Σ and the neighbours' scatter (median absolute deviation).
    """

    degrees: float = 4.0
    learn_degrees: bool = True
    neighbours: Int[Tensor, "n k"] | None = None

    def __post_init__(self) -> None:
        Normal.__post_init__(self)
        if not self.degrees > 1:
            raise ValueError(f"degrees must exceed 1, got {self.degrees}")

    @property
    def depends_on_field(self) -> bool:
        return True

    def _reweighed(
        self, residual: Vector, spread: Vector | float, normal: Vector
    ) -> Self:
        """Return the model with ``w_n = (ν + 1) / (ν + E[r_n²]/Σ_n)``."""
        own, scale = residual**2 + spread, normal
        if self.neighbours is not None:
            around = residual[self.neighbours]
            centre = around.median(dim=1).values
            scatter = 1.4826 * (around - centre[:, None]).abs().median(dim=1).values
            # The median of k independent residuals has π/2k of their variance.
            part = 1 + math.pi / 2 / around.shape[1]
            own = spread + (residual - centre) ** 2 / part
            scale = torch.maximum(normal, scatter**2)
        model = self._with_common(own, normal)
        ratio, degrees = (own / scale).to(torch.float64), self.degrees
        if self.learn_degrees:
            fitted = ratio[~self.held_out]
            scores = {
                nu: float(log_student(fitted, 1.0, nu, of="scale").mean())
                for nu in _DEGREES
            }
            degrees = max(scores, key=lambda nu: scores[nu])
        weights = torch.ones_like(self.stated)
        if degrees < _DEGREES[-1]:
            weights = ((degrees + 1) / (degrees + ratio)).to(self.stated)
        return replace(model, degrees=degrees, weights=weights)

    def with_learnt(self, learnt: Learnt | None) -> Self:
        if learnt is None or learnt.degrees is None:
            raise misfit("the noise", "of a Student-T distribution", "another")
        model = replace(self, degrees=learnt.degrees)
        return super(StudentT, model).with_learnt(learnt)


def learn_share(
    residual: Vector,
    rest: Vector,
    lines: Vector,
    degrees: float | None,
    *,
    learn_common: bool,
) -> tuple[float, float, bool]:
    r"""Return α and τ² of highest posterior density, and whether α is at an end.

    The prior is ``ln α ~ N(0, 1)``. Residuals ``y − E[apply(ε)]`` over samples that
    were not fitted to these observations are Student-T, or normal if ``degrees`` is
    ``None``, with squared scale ``rest + τ² + α v``. ``lines`` is v, the unresolved
    variance of line integrals at a share of one, and ``rest`` the other variance of the
    residual: the noise, and the variance of ``apply(ε)`` over samples. τ² is zero
    unless ``learn_common``.
    """
    squares = residual.to(torch.float64) ** 2
    rest, lines = rest.to(torch.float64), lines.to(torch.float64)
    # Trial shares from 2^-8 to 2^3, eight per octave.
    shares = 2.0 ** torch.arange(-8, 3 + 1e-9, 1 / 8).to(squares)
    prior = shares.log() ** 2 / 2
    commons = [0.0]
    if learn_common and len(squares):
        size = float(squares.median())
        # The median r² in half octaves.
        commons += [size * 2.0 ** (step / 2) for step in range(-16, 5)]
    best, found = -math.inf, (1.0, 0.0, False)
    for common in commons:
        scale = rest + common + shares[:, None] * lines
        if degrees is None:
            density = -(squares / scale + scale.log()) / 2
        else:
            density = log_student(squares, scale, degrees, of="scale")
        scores = density.sum(dim=1) - prior
        index = int(scores.argmax())
        if float(scores[index]) > best:
            best, at_edge = float(scores[index]), index in (0, len(shares) - 1)
            found = float(shares[index]), common, at_edge
    return found
