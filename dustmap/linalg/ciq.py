r"""``K^{±1/2} b`` from products alone: contour integral quadrature (CIQ).

``K^{-1/2} b ≈ Σ_q w_q (K + t_q I)⁻¹ b`` with the quadrature below and all shifts
solved in one Krylov space (Pleiss, Jankowiak, Eriksson, Damle & Gardner 2020,
arXiv:2006.11267). Departures, each because roots that were wrong went unnoticed
without it: the tolerance is that of the *root*, from which quadrature and solver take
theirs; Krylov bases are kept orthogonal; bounds of the spectrum are checked against all
Ritz values of the solve; and every root comes with a bound of its error from true
residuals.

With r_q the true residuals, ``e = y − K^{-1/2} b`` has

``‖e‖ ≤ δ ‖K^{-1/2} b‖ + Σ_q w_q ‖r_q‖ / (λ_min + t_q)``,
``‖b − K^{1/2} y‖ ≤ δ ‖b‖ + Σ_q w_q ‖r_q‖ / (2 √t_q)``,

δ the quadrature's relative error: K and all factors commute, and
``√λ/(λ + t) ≤ 1/(2√t)``.

Derivatives: ``dy = Σ_q w_q (K + t_q)⁻¹ (db − dK x_q)``, the forward answers x_q and one
more multi-shift solve for the incoming gradient.

The quadrature (`RootQuadrature`): ``λ^{-1/2} = (2/π) ∫_0^∞ ds / (λ + s²)``, and with
the substitution ``s = √m · sn(v)/cn(v)`` of modulus ``k'² = 1 − m/M`` the trapezoidal
rule converges as ``exp(−2π² Q / (log(M/m) + 3))`` for λ between m and M (Hale, Higham &
Trefethen 2008, SIAM J. Numer. Anal. 46, 2505, method 3; their complex arguments by
Jacobi's imaginary transformation).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ellipj, ellipkm1
from torch import Tensor
from torch.autograd.function import once_differentiable

from dustmap.linalg.cg import Solution
from dustmap.linalg.lanczos import Product, SpectralBounds, spectral_bounds
from dustmap.linalg.minres import Goal, MultiShiftMinres, ShiftedSolution
from dustmap.linalg.operator import ratio

# The share of the tolerance that the quadrature may take.
_QUADRATURE = 0.25
# Points of the paper; more where the tolerance asks for them.
_POINTS = 15
# How often a solve is repeated with bounds that its own Ritz values gave.
_REPEATS = 3
# Lanczos steps that the spectrum's bounds are sought by; of large batches up to five
# times as many, for which only four rows pay.
_BOUND_STEPS = 20
# Quadrature points that are always enough for tolerances that float64 can tell.
_MOST = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class RootQuadrature:
    """``λ^{-1/2} ≈ Σ_q weights_q / (λ + shifts_q)`` for ``lower ≤ λ ≤ upper``.

    ``error`` is the largest relative error on the interval, as evaluated there.
    """

    shifts: Float[Tensor, " q"]
    weights: Float[Tensor, " q"]
    error: float

    @classmethod
    def build(cls, lower: float, upper: float, points: int) -> RootQuadrature:
        """Build the rule with this number of points.

        Raises
        ------
        ValueError
            If the interval is not positive.
        """
        if not 0 < lower <= upper < math.inf:
            raise ValueError(
                "a root takes eigenvalues with 0 < lower <= upper, got lower "
                f"{lower} and upper {upper}"
            )
        shifts, weights = _rule(lower, upper, points)
        grid = np.geomspace(lower, upper, 40 * points)
        values = (weights / (grid[:, None] + shifts)).sum(axis=1)
        return cls(
            shifts=torch.from_numpy(shifts),
            weights=torch.from_numpy(weights),
            error=float(np.abs(1 - np.sqrt(grid) * values).max()),
        )

    @classmethod
    def within(
        cls, lower: float, upper: float, rtol: float, *, least: int = 1
    ) -> RootQuadrature:
        """Build the shortest rule of ``least`` points or more with error ≤ ``rtol``.

        Raises
        ------
        ValueError
            If none is accurate enough in float64.
        """
        for points in range(least, _MOST + 1):
            rule = cls.build(lower, upper, points)
            if rule.error <= rtol:
                return rule
        raise ValueError(
            f"no quadrature of up to {_MOST} points has a relative error of "
            f"{rtol:.1e} between {lower:.3g} and {upper:.3g} (reached "
            f"{rule.error:.1e}): ask for a looser tolerance or add a nugget"
        )


def _rule(lower: float, upper: float, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts and weights; the second half follow by ``s ↦ √(m M) / s``."""
    ratio = lower / upper
    period = float(ellipkm1(ratio))
    half = (points + 1) // 2
    middles = (np.arange(half) + 0.5) * period / points
    # Near v = K' the functions cancel; the reflection of the other half is exact.
    sn, cn, dn, _ = ellipj(middles, 1 - ratio)
    s = math.sqrt(lower) * sn / cn
    slope = math.sqrt(lower) * dn / cn**2
    rest = points - half
    mirrored = math.sqrt(lower * upper) / s[:rest]
    slopes = math.sqrt(lower * upper) / s[:rest] ** 2 * slope[:rest]
    s = np.concatenate([s, mirrored[::-1]])
    slope = np.concatenate([slope, slopes[::-1]])
    return s**2, 2 * period / (math.pi * points) * slope


class RootWarning(UserWarning):
    """A root whose error is not known to be within the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSolution(Solution):
    """``K^{±1/2} b`` and what it is worth.

    ``residual`` bounds ``‖b − K^{1/2} y‖ / ‖b‖`` and ``error`` the relative error
    ``‖e‖ / ‖y‖``, per row, by the bounds above; ``converged`` says whether that is
    within the tolerance. ``repeats`` counts solves whose Ritz values lay outside of
    the bounds.

    With a floor of the spectrum, ``error`` is a bound. Otherwise the smallest Ritz
    value stands for the smallest eigenvalue: sharp where the row converged, but a row
    that stopped far from it (0.1 and more) may be off by a few times as much.
    """

    error: Float[Tensor, " b"]
    quadrature: RootQuadrature
    bounds: SpectralBounds
    repeats: int

    @property
    def message(self) -> str:
        """One line for people."""
        worst = max(self.error.tolist(), default=0.0)
        found = (
            f"{max(self.iterations.tolist(), default=0)} iterations, "
            f"{len(self.quadrature.shifts)} quadrature points, eigenvalues from "
            f"{self.bounds.smallest:.1e} to {self.bounds.upper:.1e} "
            f"({self.bounds.source})"
        )
        if bool(self.converged.all()):
            return f"roots known to {worst:.1e} by {found}"
        failed = int((~self.converged).sum())
        return (
            f"{failed} of {len(self.converged)} roots are not known to be within the "
            f"tolerance (relative error bounded by {worst:.1e}) after {found}: raise "
            "max_steps, loosen rtol, give a preconditioner or add a nugget"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CIQ:
    """Roots of symmetric positive definite matrices that are known by products.

    Parameters
    ----------
    solver
        Its ``rtol`` is the relative error of the *root*; ``max_steps`` is J.
    """

    solver: MultiShiftMinres = field(default_factory=MultiShiftMinres)

    def inverse_root(
        self,
        product: Product,
        rhs: Float[Tensor, "b n"],
        *,
        floor: float = 0.0,
    ) -> RootSolution:
        """``K^{-1/2} b`` of every row, differentiable in b and through ``product``.

        Parameters
        ----------
        floor
            What no eigenvalue is below, as a nugget: error bounds are then rigorous,
            and no solve is repeated for an eigenvalue that came out smaller.

        Raises
        ------
        ValueError
            If K has a negative eigenvalue beyond rounding, or no quadrature reaches the
            tolerance in float64.

        Warns
        -----
        RootWarning
            If an error is not known to be within the tolerance.
        """
        return self._solve(product, rhs, floor, positive=False)

    def root(
        self,
        product: Product,
        rhs: Float[Tensor, "b n"],
        *,
        floor: float = 0.0,
    ) -> RootSolution:
        """``K^{1/2} b = K (K^{-1/2} b)``, else as :meth:`inverse_root`."""
        return self._solve(product, rhs, floor, positive=True)

    def _solve(
        self,
        product: Product,
        rhs: Tensor,
        floor: float,
        *,
        positive: bool,
    ) -> RootSolution:
        fixed = rhs.detach()
        steps = min(max(_BOUND_STEPS, 2 * len(rhs)), 5 * _BOUND_STEPS)
        bounds = spectral_bounds(product, fixed, steps, floor=floor)
        for repeats in range(1 + _REPEATS):  # noqa: B007
            ends = (bounds.lower, bounds.upper)
            allowed = _QUADRATURE * self.solver.rtol
            rule = RootQuadrature.within(*ends, allowed, least=_POINTS)
            goal = self._goal(rule, bounds, positive=positive)
            solved = self.solver.solve(product, fixed, rule.shifts, goal=goal)
            known = bounds.seen(*_extremes(solved, bounds), fixed.dtype)
            inside = (known.lower, known.upper) == ends
            if inside:
                break
            bounds = known
        used, nonzero = solved.used(goal), solved.scales[0] > 0
        value = torch.einsum("q,qbn->bn", rule.weights.to(fixed), solved.value)
        adjoint = self._adjoint(product, rule, known)
        answer = _WithDerivative.apply(rhs - solved.images, value, adjoint)
        damping = (rule.weights / (2 * rule.shifts.sqrt())).to(used)
        solution = RootSolution(
            value=product(answer) if positive else answer,
            residual=(rule.error + damping @ solved.residual) * nonzero,
            iterations=solved.iterations,
            # The quadrature must be for all of the spectrum that was seen.
            converged=(used <= 1) & (~nonzero | inside),
            error=(rule.error + used * (self.solver.rtol - rule.error)) * nonzero,
            quadrature=rule,
            bounds=known,
            repeats=repeats,
        )
        if not bool(solution.converged.all()):
            warnings.warn(solution.message, RootWarning, stacklevel=3)
        return solution

    def _goal(
        self, rule: RootQuadrature, bounds: SpectralBounds, *, positive: bool
    ) -> Goal:
        """The bound of ‖e‖, or of ‖K e‖, relative to ``‖K^{∓1/2} b‖``."""
        rtol, shifts = self.solver.rtol - rule.error, rule.shifts

        def used(residual: Tensor, scales: Tensor, smallest: float) -> Tensor:
            if positive:
                # λ/(λ + t) is largest for the largest λ.
                gains = rule.weights * bounds.upper / (bounds.upper + shifts)
            else:
                gains = rule.weights / (min(smallest, bounds.smallest) + shifts)
            return ratio(gains.to(residual) @ residual, rtol * scales[2 - positive])

        return used

    def _adjoint(
        self, product: Product, rule: RootQuadrature, bounds: SpectralBounds
    ) -> Callable[[Tensor], Tensor]:
        """The multi-shift solve of an incoming gradient, by the same rule, times w."""
        goal = self._goal(rule, bounds, positive=False)

        def solve(gradient: Tensor) -> Tensor:
            with torch.no_grad():
                solved = self.solver.solve(product, gradient, rule.shifts, goal=goal)
            ends = _extremes(solved, bounds)
            faults = []
            if not bounds.contain(*ends):
                faults.append(
                    f"its gradient sees eigenvalues from {ends[0]:.1e} to "
                    f"{ends[1]:.1e}, the root was taken for {bounds.lower:.1e} to "
                    f"{bounds.upper:.1e}: give a floor"
                )
            if not bool(solved.converged.all()):
                faults.append(solved.message)
            for fault in faults:
                message = f"the derivative of a root: {fault}"
                warnings.warn(message, RootWarning, stacklevel=2)
            return rule.weights.to(gradient)[:, None, None] * solved.value

        return solve


def _extremes(solved: ShiftedSolution, bounds: SpectralBounds) -> tuple[float, float]:
    """The Ritz values of all rows; the bounds' where every row was zero."""
    if not bool((solved.iterations > 0).any()):
        return bounds.smallest, bounds.upper
    return float(solved.smallest.min()), float(solved.largest.max())


class _WithDerivative(torch.autograd.Function):
    """``y``, with ``dy = Σ_q w_q (K + t_q)⁻¹ d(b − K x_q)`` for fixed x_q."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, change: Tensor, value: Tensor, adjoint: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.adjoint = adjoint
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, None, None]:
        return ctx.adjoint(gradient.contiguous()), None, None
