r"""Gaussian distributions ``q(ε) = N(m, S)`` and the natural-gradient step of all.

With ``E_n = E_q[ln p(y_n | f_n)]``, ``f_n ~ N(L_n μ + k_nᵀm, k_nᵀ S k_n + v_n)`` and
the gradients ``α_n = ∂E_n/∂mean_n``, ``β_n = ∂E_n/∂variance_n``, each times ``N/|B|``,
a step of length l in the natural parameters ``(S⁻¹m, −½ S⁻¹)`` along the gradient by
the expectation parameters ``(m, S + mmᵀ)`` (Hensman, Rattray & Lawrence 2012;
Salimbeni, Eleftheriadis & Hensman 2018; HIP-GP, S7–S12) is

``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂``, ``Λ̂ = I + Σ_n w_n k_n k_nᵀ``, ``w_n = −2 β_n``,
``m ← m + l S (b̂ − Λ̂ m)`` with the new S, ``b̂ = Σ_n (α_n + w_n k_nᵀm) k_n``,

where a family keeps of Λ̂ what it can hold. With normal noise ``w_n = N/(|B| σ_n²)`` and
``b̂ = Σ_n w_n r_n k_n`` whatever q is, and one step of l = 1 with all data is the
optimum of the full-rank family.

Three safeguards, all counted. A likelihood that is not log-concave may have β > 0,
which would take precision away: such rows add none (w ← 0). Where S is not full, the
step of m is cut to ``l ≤ 1 / λ_max(S Σ_n w_n k_n k_nᵀ)``: with blocks, unit steps
diverge. And where the bound is not quadratic in m, the step of m is halved while the
bound's part that depends on m, ``Σ_n E_n − ½ |m|²`` at the variances before the step,
falls; after ten halvings m stays.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

_HALVINGS = 10
# Rounding alone must not count as a cut.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A minibatch's ``Λ̂ = I + Σ w k kᵀ`` and ``b̂ = Σ t k`` (S2–S3).

    Parameters
    ----------
    features
        Rows ``k_n``.
    weight
        ``w_n``, not negative, times ``N/|B|``; with normal noise ``1/σ_n²``.
    target
        ``t_n = α_n + w_n k_nᵀm``, times ``N/|B|``; with normal noise ``w_n r_n``.
    clipped
        How many rows were left without curvature.
    objective
        ``m ↦ (N/|B|) Σ_n E_n`` at the variances before the step, where it is not
        quadratic.
    """

    features: Float[Tensor, "b p"]
    weight: Float[Tensor, " b"]
    target: Float[Tensor, " b"]
    clipped: int = 0
    objective: Callable[[Float[Tensor, " p"]], float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the safeguards of natural steps did, summed over steps.

    ``clipped`` counts rows with β > 0, ``limited`` steps of m cut to the stable length,
    ``halved`` those that were halved, ``refused`` those of them that left m as it was.
    """

    steps: int = 0
    clipped: int = 0
    limited: int = 0
    halved: int = 0
    refused: int = 0

    def __add__(self, other: StepReport) -> StepReport:
        names = [f.name for f in fields(self)]
        return StepReport(**{n: getattr(self, n) + getattr(other, n) for n in names})

    def __str__(self) -> str:
        return (
            f"{self.steps} natural steps: {self.limited} were cut for stability, "
            f"{self.halved} of the mean halved, {self.refused} refused; {self.clipped} "
            "rows without curvature"
        )


class NaturalGaussian(ABC):
    """A family that natural-gradient steps move; it starts as the prior N(0, I)."""

    mean: Float[Tensor, " p"]

    @abstractmethod
    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row."""

    @abstractmethod
    def trace(self) -> Float[Tensor, ""]:
        """``tr S``."""

    @abstractmethod
    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S|``."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε."""

    def divergence(self) -> float:
        """``KL(q ‖ N(0, I)) = ½ (tr S + mᵀm − ln|S| − P)`` (eq. 14, b')."""
        squares = (self.mean**2).sum()
        twice = self.trace() + squares - self.log_determinant() - len(self.mean)
        return 0.5 * float(twice)

    @property
    @abstractmethod
    def full_rank(self) -> bool:
        """Whether any Λ̂ is held exactly, so that steps with l ≤ 1 are stable."""

    @abstractmethod
    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """``S k`` of every row."""

    @abstractmethod
    def covariance_step(self, batch: Batch, rate: float) -> Self:
        """``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂`` (S10, S12); positive definite for l ≤ 1."""

    def frozen(self) -> NaturalGaussian:
        """The distribution to predict with, which further steps leave alone."""
        return self

    def with_mean(self, mean: Float[Tensor, " p"]) -> Self:
        """The same covariance, with what is cached of it, around another mean."""
        moved = copy.copy(self)
        moved.mean = mean
        return moved

    def direction(self, batch: Batch) -> Float[Tensor, " p"]:
        """``S (b̂ − Λ̂ m)`` with the S at hand."""
        misfit = batch.target - batch.weight * (batch.features @ self.mean)
        gradient = misfit @ batch.features - self.mean
        return self.covariance_times(gradient[None])[0]

    def curvature(self, batch: Batch) -> float:
        """``λ_max`` of ``S Σ w k kᵀ``, by the batch's own Gram matrix.

        ``S ≤ I``, since ``S⁻¹`` averages ``Λ̂ ≥ I``; so with ``l ≤ 1 / λ_max`` and
        ``l ≤ 1`` every eigenvalue of ``l S Λ̂`` is at most 2 and the step of m cannot
        diverge. In full rank, after a covariance step, ``l λ_max ≤ 1`` always.
        """
        scaled = batch.weight.sqrt()[:, None] * batch.features
        gram = scaled @ self.covariance_times(scaled).mT
        return float(torch.linalg.eigvalsh((gram + gram.mT) / 2)[-1])

    def step(self, batch: Batch, rate: float) -> Self:
        """One step of both moments (S11–S12), without safeguards."""
        q = self.covariance_step(batch, rate)
        return q.with_mean(q.mean + rate * q.direction(batch))

    def safe_step(self, batch: Batch, rate: float) -> tuple[Self, StepReport]:
        """One step of both moments, and what the safeguards did.

        The family before the step may share memory with the one after it.

        Raises
        ------
        ValueError
            If the rate does not lie in (0, 1].
        """
        if not 0 < rate <= 1:
            raise ValueError(
                f"a natural rate must lie in (0, 1], got {rate}: beyond 1 the "
                "covariance loses its positive definiteness"
            )
        q, length = self.covariance_step(batch, rate), rate
        if not q.full_rank:
            length = min(rate, 1 / max(q.curvature(batch), 1e-300))
        step = length * q.direction(batch)
        mean, halvings = _ascended(q.mean, step, batch.objective)
        return q.with_mean(mean), StepReport(
            steps=1,
            clipped=batch.clipped,
            limited=int(length * (1 + _ROUNDING) < rate),
            halved=int(halvings > 0),
            refused=int(halvings > _HALVINGS),
        )


def _ascended(
    start: Float[Tensor, " p"],
    step: Float[Tensor, " p"],
    objective: Callable[[Tensor], float] | None,
) -> tuple[Float[Tensor, " p"], int]:
    """m moved along the step until the bound does not fall, and the halvings."""
    if objective is None:
        return start + step, 0

    def bound(mean: Tensor) -> float:
        return objective(mean) - 0.5 * float(mean @ mean)

    before = bound(start)
    # At the optimum a step changes the bound by rounding only.
    slack = 1e-10 * abs(before)
    for halvings in range(_HALVINGS + 1):
        moved = start + 0.5**halvings * step
        if bound(moved) >= before - slack:
            return moved, halvings
    return start, _HALVINGS + 1
