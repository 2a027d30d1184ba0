"""The noise model of the observations: known and learnt parts."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from dustmap.functionals import Functionals


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
        """Whether Σ depends on the inferred field."""
        return self.blur is not None or self.degrees is not None or self.learn_common
