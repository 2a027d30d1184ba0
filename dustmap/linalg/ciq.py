r"""``K^{±1/2} b`` from products alone: contour integral quadrature (CIQ).

``K^{-1/2} b ≈ Σ_q w_q (K + t_q I)⁻¹ b`` with the quadrature below and all shifts
solved in one Krylov space (Pleiss, Jankowiak, Eriksson, Damle & Gardner 2020,
arXiv:2006.11267). Departures, each because wrong roots went unnoticed without it: the
tolerance is that of the *root*, which determines those of quadrature and solver; Krylov
bases are kept orthogonal; the quadrature covers all Ritz values of the solve, and is
updated with them; and every root has an error bound from true residuals.

With r_q the true residuals, ``e = y − K^{-1/2} b`` has

``‖e‖ ≤ δ ‖K^{-1/2} b‖ + Σ_q w_q ‖r_q‖ / (λ_min + t_q)``,
``‖b − K^{1/2} y‖ ≤ δ ‖b‖ + Σ_q w_q ‖r_q‖ / (2 √t_q)``,

δ the quadrature's relative error: K and all factors commute, and
``√λ/(λ + t) ≤ 1/(2√t)``.

Derivatives: ``dy = Σ_q w_q (K + t_q)⁻¹ (db − dK x_q)``, with the forward solutions x_q
and one more multi-shift solve for the incoming gradient.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ellipj, ellipkm1
from torch import Tensor
from torch.autograd.function import once_differentiable

from dustmap.linalg.cg import Product, Solution
from dustmap.linalg.lanczos import Lanczos
from dustmap.linalg.operator import inner, ratio

# Share of the tolerance for the error of the quadrature.
_QUADRATURE = 0.25
# Quadrature points of the paper; tight tolerances take more.
_POINTS = 15
# Quadrature points that suffice for any tolerance possible in float64.
_MOST = 150
# Factors on Ritz values, which lie inside the spectrum. The largest converges at once,
# the smallest much later; a lower end costs a few quadrature points and no product.
_ABOVE, _BELOW = 1.1, 1e-3
# Ritz values below zero by more than this fraction of the largest are not rounding.
_NEGATIVE = 1e-8
# Bytes of the Krylov bases of rows that are solved at once.
_MEMORY = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class RootQuadrature:
    """``λ^{-1/2} ≈ Σ_q weights_q / (λ + shifts_q)`` for ``lower ≤ λ ≤ upper``.

    ``error`` is the largest relative error evaluated on the interval.
    """

    lower: float
    upper: float
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
                "expected eigenvalues with 0 < lower <= upper, got lower "
                f"{lower} and upper {upper}"
            )
        share = lower / upper
        period = float(ellipkm1(share))
        half = (points + 1) // 2
        middles = (np.arange(half) + 0.5) * period / points
        # Near v = K' the functions suffer cancellation; the reflection
        # ``s ↦ √(m M) / s`` of the other half is exact.
        sn, cn, dn, _ = ellipj(middles, 1 - share)
        s = math.sqrt(lower) * sn / cn
        slope = math.sqrt(lower) * dn / cn**2
        rest = points - half
        mirrored = math.sqrt(lower * upper) / s[:rest]
        slopes = math.sqrt(lower * upper) / s[:rest] ** 2 * slope[:rest]
        shifts = np.concatenate([s, mirrored[::-1]]) ** 2
        slope = np.concatenate([slope, slopes[::-1]])
        weights = 2 * period / (math.pi * points) * slope
        grid = np.geomspace(lower, upper, 40 * points)
        values = (weights / (grid[:, None] + shifts)).sum(axis=1)
        return cls(
            lower=lower,
            upper=upper,
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
            f"{rule.error:.1e}): loosen the tolerance or add a nugget"
        )


class RootWarning(UserWarning):
    """Warning that the error of a root may exceed the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSolution(Solution):
    """``K^{±1/2} b`` and its accuracy.

    ``residual`` bounds ``‖b − K^{1/2} y‖ / ‖b‖`` and ``error`` the relative error
    ``‖e‖ / ‖y‖``, per row, by the bounds above; ``converged`` is true if ``error`` is
    within the tolerance. The quadrature has this number of ``points``, for eigenvalues
    between ``smallest``, the least Ritz value or the floor, and ``largest``.

    With a floor of the spectrum, ``error`` is a bound. Otherwise the smallest Ritz
    value replaces the smallest eigenvalue: ``error`` is sharp for converged rows, but
    may be too small by a factor of a few for rows far from convergence (0.1 and more).
    """

    error: Float[Tensor, " b"]
    points: int
    smallest: float
    largest: float

    @property
    def message(self) -> str:
        """One line for people."""
        worst = max(self.error.tolist(), default=0.0)
        found = (
            f"{max(self.iterations.tolist(), default=0)} iterations, {self.points} "
            f"quadrature points, eigenvalues from {self.smallest:.1e} to "
            f"{self.largest:.1e}"
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
    """Roots of symmetric positive definite matrices, given by products.

    Parameters
    ----------
    rtol
        Relative error of a root.
    max_steps
        Limit J on products with K per row; never more than K has rows.

    Raises
    ------
    ValueError
        If the tolerance is not positive or no step is allowed.
    """

    rtol: float = 1e-3
    max_steps: int = 200

    def __post_init__(self) -> None:
        if not self.rtol > 0:
            raise ValueError(f"rtol must be positive, got {self.rtol}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")

    def inverse_root(
        self, product: Product, rhs: Float[Tensor, "b n"], *, floor: float = 0.0
    ) -> RootSolution:
        """Return ``K^{-1/2} b`` of rows, differentiable in b and through ``product``.

        If eigenvalues have a ``floor``, such as a nugget, error bounds are rigorous.

        Raises
        ------
        ValueError
            If K has a negative eigenvalue beyond rounding, or no quadrature reaches the
            tolerance in float64.

        Warns
        -----
        RootWarning
            If the bound of an error exceeds the tolerance.
        """
        return self._roots(product, rhs, floor, positive=False)

    def root(
        self, product: Product, rhs: Float[Tensor, "b n"], *, floor: float = 0.0
    ) -> RootSolution:
        """Return ``K^{1/2} b = K (K^{-1/2} b)``; see :meth:`inverse_root`."""
        return self._roots(product, rhs, floor, positive=True)

    def _blocks(self, rhs: Tensor) -> tuple[Tensor, ...]:
        """Split rows into blocks whose Krylov bases fit into memory, or single rows."""
        steps = min(self.max_steps, rhs.shape[1]) + 1
        row = max(1, rhs.element_size() * rhs.shape[1] * steps)
        return rhs.split(max(1, _MEMORY // row))

    def _roots(
        self, product: Product, rhs: Tensor, floor: float, *, positive: bool
    ) -> RootSolution:
        parts = [self._root(product, b, floor, positive) for b in self._blocks(rhs)]
        joined = Solution.joined(parts)
        solution = RootSolution(
            value=joined.value,
            residual=joined.residual,
            iterations=joined.iterations,
            converged=joined.converged,
            error=torch.cat([part.error for part in parts]),
            points=max(part.points for part in parts),
            smallest=min(part.smallest for part in parts),
            largest=max(part.largest for part in parts),
        )
        if not bool(solution.converged.all()):
            warnings.warn(solution.message, RootWarning, stacklevel=3)
        return solution

    def _root(
        self, product: Product, rhs: Tensor, floor: float, positive: bool
    ) -> RootSolution:
        """Return the roots of a few rows."""
        fixed = rhs.detach()
        krylov = Lanczos(fixed, min(self.max_steps, rhs.shape[1]))
        rule, smallest = self._quadrature(krylov, floor)

        def used(krylov: Lanczos) -> Tensor:
            nonlocal rule, smallest
            rule, smallest = self._quadrature(krylov, floor)
            return self._used(krylov, rule, smallest, positive=positive)

        krylov.run(product, used)
        parts = krylov.answers(rule.shifts)
        # Derivatives in K's parameters need these products.
        images = product(parts.reshape(-1, rhs.shape[1])).reshape(parts.shape)
        off = fixed - images.detach() - rule.shifts[:, None, None].to(fixed) * parts
        residual = inner(off, off).sqrt()
        spent = self._used(krylov, rule, smallest, positive=positive, residual=residual)
        value = torch.einsum("q,qbn->bn", rule.weights.to(fixed), parts)
        adjoint = self._adjoint(product, rule, smallest)
        answer = _WithDerivative.apply(rhs - images, value, adjoint)
        nonzero = krylov.scale > 0
        damping = (rule.weights / (2 * rule.shifts.sqrt())).to(spent)
        return RootSolution(
            value=product(answer) if positive else answer,
            residual=(rule.error + damping @ ratio(residual, krylov.scale)) * nonzero,
            iterations=krylov.steps,
            converged=spent <= 1,
            error=(rule.error + spent * (self.rtol - rule.error)) * nonzero,
            points=len(rule.shifts),
            smallest=smallest,
            largest=rule.upper,
        )

    def _quadrature(
        self, krylov: Lanczos, floor: float
    ) -> tuple[RootQuadrature, float]:
        """Return a rule for the Ritz values so far, and the smallest eigenvalue."""
        smallest, largest = krylov.ends()
        eps = torch.finfo(krylov.basis.dtype).eps
        if smallest < -max(_NEGATIVE, eps) * largest or not largest > 0:
            raise ValueError(
                "a square root needs a positive definite matrix, Lanczos found an "
                f"eigenvalue of {smallest:.3g} in a largest of {largest:.3g}: add a "
                "nugget or give a product in higher precision"
            )
        upper = _ABOVE * largest
        # Smaller values are rounding.
        least = eps * upper
        smallest = max(smallest, least)
        lower = max(_BELOW * smallest, least)
        if least < floor < upper:
            # Leave room for rounding of Ritz values.
            lower, smallest = 0.9 * floor, floor
        allowed = _QUADRATURE * self.rtol
        return RootQuadrature.within(lower, upper, allowed, least=_POINTS), smallest

    def _used(
        self,
        krylov: Lanczos,
        rule: RootQuadrature,
        smallest: float,
        *,
        positive: bool = False,
        residual: Float[Tensor, "q b"] | None = None,
    ) -> Float[Tensor, " b"]:
        """Return the residuals' share of the error bound, over its tolerance.

        The error is ‖e‖ or ‖K e‖; residuals are those by recursion unless given.
        """
        found, energy = krylov.residuals(rule.shifts)
        found = found if residual is None else residual
        if positive:
            # λ/(λ + t) is largest for the largest λ.
            gains = rule.weights * rule.upper / (rule.upper + rule.shifts)
            size = krylov.diagonal[:, 0].clamp(min=0).sqrt() * krylov.scale
        else:
            gains, size = rule.weights / (smallest + rule.shifts), energy.sqrt()
        return ratio(gains.to(found) @ found, (self.rtol - rule.error) * size)

    def _adjoint(
        self, product: Product, rule: RootQuadrature, smallest: float
    ) -> Callable[[Tensor], Tensor]:
        """Return the multi-shift solve of a gradient by the same rule, times w."""

        def solve(gradient: Tensor) -> Tensor:
            krylov = Lanczos(gradient, min(self.max_steps, gradient.shape[1]))

            def used(krylov: Lanczos) -> Tensor:
                return self._used(krylov, rule, min(smallest, krylov.ends()[0]))

            krylov.run(product, used)
            ends, faults = krylov.ends(), []
            inside = rule.lower <= ends[0] <= ends[1] <= rule.upper
            if krylov.steps.any() and not inside:
                faults.append(
                    f"its gradient sees eigenvalues from {ends[0]:.1e} to "
                    f"{ends[1]:.1e}, the root was taken for {rule.lower:.1e} to "
                    f"{rule.upper:.1e}: give a floor"
                )
            failed = int((used(krylov) > 1).sum())
            if failed:
                faults.append(
                    f"{failed} of {len(gradient)} rows did not converge in "
                    f"{int(krylov.steps.max())} iterations: raise max_steps"
                )
            for fault in faults:
                message = f"the derivative of a root: {fault}"
                warnings.warn(message, RootWarning, stacklevel=2)
            weights = rule.weights.to(gradient)[:, None, None]
            return weights * krylov.answers(rule.shifts)

        return solve


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
