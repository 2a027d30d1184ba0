"""What is stated of the noise of observations, and what is to be learnt of it."""

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
        (:mod:`dustmap.inference.full_batch.subgrid_share`).
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
