r"""Natural gradients of a full-rank ``q(ε) = N(m, S)`` without factorising M × M.

With ``E_n = E_q[ln p(y_n | f_n)]``, ``f_n ~ N(L_n μ + k_nᵀm, k_nᵀ S k_n + v_n)`` and
slopes ``α_n = ∂E_n/∂mean_n``, ``β_n = ∂E_n/∂variance_n``, each times ``N/|B|``, a step
of length l in the natural parameters ``(S⁻¹m, −½ S⁻¹)`` along the gradient by the
expectation parameters ``(m, S + mmᵀ)`` (Hensman, Rattray & Lawrence 2012; Salimbeni,
Eleftheriadis & Hensman 2018) is

``S⁻¹ ← (1 − l) S⁻¹ + l (I − 2 Σ_n β_n k_n k_nᵀ)``,
``m ← m + l S (Σ_n α_n k_n − m)`` with the new S.

The KL term's part is analytic: I and −m. Only the precision is kept, once and in place;
α and β need ``k_nᵀ S k_n`` (one block solve with S⁻¹), the step of m one solve more:
``O(J M²)`` for J iterations and each of the ``|B|`` + 1 right-hand sides (Pleiss et al.
2020, NeurIPS, section 5.1). A factorisation takes ``M³/3`` operations, fewer than those
for M below some ``6 J |B|``. With normal noise β is ``−1/2σ²`` whatever S is, and only
the step of m is solved for; with all data a step of l = 1 is the optimum.

Two safeguards, both counted. A likelihood that is not log-concave may have β > 0, which
would take precision away: such rows add none (β ← 0). And the step of m, an ascent
direction for any positive definite S, is halved while the bound's part that depends on
m, ``Σ_n E_n − ½ |m|²`` at the variances before the step, falls; after ten halvings m
stays. With normal noise and l ≤ 1 it never falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.gp.svgp_solvers import IterativeSolver, cholesky_factor
from dustmap.inference.variational import BlockGaussian, full_rank
from dustmap.linalg.lanczos import LanczosQuadrature
from dustmap.models.row_report import RowReport

_HALVINGS = 10
_PROBES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """``KL(q ‖ N(0, I))`` and its standard error, 0 where it is exact."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """A minibatch as a natural step sees it.

    Parameters
    ----------
    features
        Rows ``k_n``.
    by_mean, by_variance
        α and β, each times ``N/|B|``.
    objective
        ``m ↦ (N/|B|) Σ_n E_n`` at the variances before the step.
    """

    features: Float[Tensor, "b p"]
    by_mean: Float[Tensor, " b"]
    by_variance: Float[Tensor, " b"]
    objective: Callable[[Float[Tensor, " p"]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the safeguards did, summed over steps.

    ``clipped`` counts rows with β > 0, ``halved`` steps of m that were cut, and
    ``refused`` those of them that ended where they began.
    """

    steps: int = 0
    clipped: int = 0
    halved: int = 0
    refused: int = 0

    def __add__(self, other: StepReport) -> StepReport:
        return StepReport(
            steps=self.steps + other.steps,
            clipped=self.clipped + other.clipped,
            halved=self.halved + other.halved,
            refused=self.refused + other.refused,
        )

    def __str__(self) -> str:
        return (
            f"{self.steps} natural steps: {self.clipped} rows without curvature, "
            f"{self.halved} steps of the mean halved, {self.refused} refused"
        )


class PrecisionGaussian:
    """A full-rank ``q(ε)`` by its mean and precision, which steps change in place.

    Memory: ``8 P²`` bytes (800 MB for P = 10,000), half of that in single precision.

    Parameters
    ----------
    size
        P; q begins as the prior ``N(0, I)``.
    solver
        For everything that needs S; by default a Cholesky factor, made once a step.
    dtype
        Of the precision.
    dense_limit
        Largest P for which ``ln |S|`` and ``tr S`` are taken from a factorisation.
    """

    def __init__(
        self,
        size: int,
        *,
        solver: IterativeSolver | None = None,
        dtype: torch.dtype = torch.float64,
        dense_limit: int = 4096,
    ) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.precision = torch.eye(size, dtype=dtype)
        self.solver = solver
        self._factor: Tensor | None = None
        self.dense_limit = dense_limit
        self.solves = RowReport()
        self.steps = StepReport()

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        """``S k`` of every row."""
        rows = rows.to(self.precision.dtype)
        if self.solver is None:
            return torch.cholesky_solve(rows.mT, self.factor).mT.to(torch.float64)
        solution = self.solver.solve(self.precision, rows)
        self.solves = self.solves.with_solution(solution)
        return solution.value.to(torch.float64)

    @property
    def factor(self) -> Float[Tensor, "p p"]:
        """The lower Cholesky factor of the precision. Cost: ``P³/3``, once a step."""
        if self._factor is None:
            self._factor = cholesky_factor(self.precision)
        return self._factor

    def frozen(self) -> BlockGaussian | PrecisionGaussian:
        """What to predict with: factorised if P is within ``dense_limit``."""
        if len(self.mean) > self.dense_limit:
            return self
        precision = self.precision.to(torch.float64, copy=True)
        return (
            full_rank((len(self.mean),))
            .with_precision(precision[None])
            .with_mean(self.mean)
        )

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row, differentiable in the rows.

        ``2 kᵀx − xᵀ S⁻¹ x`` with ``x ≈ S k``: its error is of second order in that of
        x, and its derivative by k is 2x.
        """
        x = self.covariance_times(rows.detach())
        square = (x * (x.to(self.precision.dtype) @ self.precision)).sum(dim=-1)
        return 2 * (rows * x).sum(dim=-1) - square

    def step(self, slopes: Slopes, rate: float) -> None:
        """One natural-gradient step of both moments.

        Raises
        ------
        ValueError
            If the rate does not lie in (0, 1].
        """
        check_rate(rate)
        k = slopes.features.detach()
        weight = (-2 * slopes.by_variance).clamp(min=0)
        part = k.to(self.precision.dtype)
        self._factor = None
        self.precision.mul_(1 - rate)
        self.precision.diagonal().add_(rate)
        scaled = (rate * weight).to(part.dtype)[:, None] * part
        self.precision.addmm_(part.mT, scaled)
        gradient = slopes.by_mean @ k - self.mean
        direction = rate * self.covariance_times(gradient[None])[0]
        halvings = self._climb(slopes, direction)
        self.steps = self.steps + StepReport(
            steps=1,
            clipped=int((slopes.by_variance > 0).sum()),
            halved=int(halvings > 0),
            refused=int(halvings > _HALVINGS),
        )

    def _climb(self, slopes: Slopes, direction: Float[Tensor, " p"]) -> int:
        """Move m as far along a direction as the bound does not fall; the halvings."""

        def objective(mean: Tensor) -> float:
            return slopes.objective(mean) - 0.5 * float(mean @ mean)

        before = objective(self.mean)
        # At the optimum a step changes the bound by rounding only.
        slack = 1e-10 * abs(before)
        for halvings in range(_HALVINGS + 1):
            moved = self.mean + 0.5**halvings * direction
            if objective(moved) >= before - slack:
                self.mean = moved
                return halvings
        return _HALVINGS + 1

    def divergence(self, generator: torch.Generator | None = None) -> Divergence:
        """``½ (tr S + mᵀm − ln|S| − P)``.

        By a factorisation up to ``dense_limit``; beyond, the determinant by stochastic
        Lanczos quadrature and the trace by random signs, with their standard errors.

        Raises
        ------
        ValueError
            If the estimate needs a generator and there is none.
        """
        size = len(self.mean)
        if size <= self.dense_limit:
            trace = float(self.trace())
            determinant = -float(self.log_determinant())
            error = 0.0
        elif generator is None:
            raise ValueError(
                f"the divergence of {size} parameters is estimated at random beyond "
                f"{self.dense_limit}: pass a generator"
            )
        else:
            trace, determinant, error = self._estimates(generator)
        square = float(self.mean @ self.mean)
        return Divergence(
            value=0.5 * (trace + square + determinant - size), error=error
        )

    def _estimates(self, generator: torch.Generator) -> tuple[float, float, float]:
        """``tr S``, ``ln |S⁻¹|`` and the standard error of half their sum."""
        size = len(self.mean)
        found = LanczosQuadrature(probes=_PROBES).estimate(
            lambda x: x @ self.precision, size, generator, dtype=self.precision.dtype
        )
        bits = torch.randint(0, 2, (_PROBES, size), generator=generator)
        signs = 2.0 * bits.to(torch.float64) - 1.0
        terms = (signs * self.covariance_times(signs)).sum(dim=1)
        scatter = float(terms.std()) / math.sqrt(_PROBES)
        error = 0.5 * math.hypot(scatter, found.error)
        return float(terms.mean()), found.value, error

    def trace(self) -> Float[Tensor, ""]:
        """``tr S``. Cost: ``O(P³)``."""
        return torch.cholesky_inverse(self.factor).diagonal().sum()

    def log_determinant(self) -> Float[Tensor, ""]:
        """``ln |S|``. Cost: ``O(P³)``."""
        return -2 * self.factor.diagonal().log().sum()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε. Cost: ``O(P³)``."""
        white = torch.randn(
            count, len(self.mean), generator=generator, dtype=self.precision.dtype
        )
        upper = self.factor.mT
        drawn = torch.linalg.solve_triangular(upper, white.mT, upper=True).mT
        return self.mean + drawn.to(torch.float64)


def check_rate(rate: float) -> None:
    """Is it one that keeps S positive definite?

    Raises
    ------
    ValueError
        If it does not lie in (0, 1].
    """
    if not 0 < rate <= 1:
        raise ValueError(
            f"a natural rate must lie in (0, 1], got {rate}: beyond 1 the covariance "
            "loses its positive definiteness"
        )
