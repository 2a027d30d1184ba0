r"""Roots ``K^{±1/2} b`` from products with K: contour integral quadrature (CIQ).

``K^{-1/2} b ≈ y = Σ_q w_q x_q``, ``(K + t_q) x_q = b``, and ``K^{1/2} b ≈ K y``
(Pleiss, Jankowiak, Eriksson, Damle & Gardner 2020, NeurIPS, arXiv:2006.11267). Unlike
there, the tolerance applies to the root, the quadrature follows the Ritz values
(eigenvalues of T) and errors are bounded: otherwise wrong roots go unnoticed.

*Quadrature*: ``λ^{-1/2} = (2/π) ∫_0^∞ ds / (λ + s²)``. With ``s = √m sn(v)/cn(v)`` of
modulus ``k'² = 1 − m/M`` the error of the trapezoidal rule with Q points falls as
``exp(−2π² Q / (log(M/m) + 3))`` for ``m ≤ λ ≤ M`` (Hale, Higham & Trefethen 2008, SIAM
J. Numer. Anal. 46, 2505, method 3; real by Jacobi's imaginary transformation).

*Solves*: k steps of Lanczos give ``K V = V T + β v e_kᵀ``, T tridiagonal, for all
shifts: ``x = V u``, ``(T + t) u = ‖b‖ e_1``, has the residual ``β |u_k|``. New vectors
are orthogonalised against all of V: rounding would otherwise delay convergence by many
times the order of K (Parlett 1998, The Symmetric Eigenvalue Problem, ch. 13).

*Error*: K and all factors commute, so with the true residuals r_q and the relative
error δ of the quadrature ``e = y − K^{-1/2} b`` has
``‖e‖ ≤ δ ‖K^{-1/2} b‖ + Σ_q w_q ‖r_q‖ / (λ_min + t_q)``,
``‖K e‖ ≤ δ ‖K^{1/2} b‖ + Σ_q w_q ‖r_q‖ λ_max / (λ_max + t_q)``, and
``‖b − K^{1/2} y‖ ≤ δ ‖b‖ + Σ_q w_q ‖r_q‖ / (2 √t_q)``. The signs of u alternate and
its entries only grow with k, so ``‖y‖ ≤ (1 + δ) ‖K^{-1/2} b‖``.

*Derivative*: ``dy = Σ_q w_q (K + t_q)⁻¹ (db − dK x_q)``, one more multi-shift solve.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ellipj, ellipkm1
from torch import Tensor

from dustmap.linalg.cg import Block, Product, Solution
from dustmap.linalg.operator import inner, ratio
from dustmap.memory import rows_within


class RootQuadrature(NamedTuple):
    """``λ^{-1/2} ≈ Σ_q weights_q / (λ + shifts_q)`` for ``lower ≤ λ ≤ upper``.

    ``error`` is relative, the largest on a grid; ``smallest`` is λ_min of the bounds.
    """

    lower: float
    upper: float
    shifts: Float[Tensor, " q"]
    weights: Float[Tensor, " q"]
    error: float
    smallest: float


def root_quadrature(lower: float, upper: float, rtol: float) -> RootQuadrature:
    """Return the shortest rule of 15 points or more with an error within ``rtol``.

    Raises `ValueError` if none is so accurate in float64.
    """
    low, middle = math.sqrt(lower), math.sqrt(lower * upper)
    period = float(ellipkm1(lower / upper))
    # The paper has 15 points; ten times as many do for any matrix in float64.
    for points in range(15, 150):
        v = (np.arange((points + 1) // 2) + 0.5) * period / points
        sn, cn, dn, _ = ellipj(v, 1 - lower / upper)
        s, slope = low * sn / cn, low * dn / cn**2
        # Beyond half the period cn cancels; the reflection s ↦ √(m M) / s is exact.
        half = s[: points // 2]
        shifts = np.append(s, middle / half) ** 2
        slope = np.append(slope, middle / half**2 * slope[: points // 2])
        weights = 2 * period / (math.pi * points) * slope
        grid = np.geomspace(lower, upper, 40 * points)
        values = np.sqrt(grid) * (weights / (grid[:, None] + shifts)).sum(axis=1)
        if (error := float(np.abs(1 - values).max())) <= rtol:
            parts = torch.from_numpy(shifts), torch.from_numpy(weights)
            return RootQuadrature(lower, upper, *parts, error, lower)
    raise ValueError(
        f"no quadrature is accurate to {rtol:.1e} between {lower:.3g} and {upper:.3g}: "
        "loosen the tolerance or add a nugget"
    )


class _Lanczos:
    """V and T of every row b of a batch; a step takes one product for all rows.

    ``diagonal`` and ``off`` are T by steps; ``off`` begins with 0 and ends with β, 0 if
    the Krylov space is exhausted. ``scale`` is ``‖b‖``.
    """

    def __init__(self, b: Block, limit: int) -> None:
        self.scale = inner(b, b).sqrt()
        self.diagonal: list[Float[Tensor, " b"]] = []
        self.off = [torch.zeros_like(self.scale)]
        self.limit = min(limit, b.shape[1])
        self.basis = b.new_zeros(len(b), self.limit + 1, b.shape[1])
        # Any direction does for b = 0.
        some = self.scale[:, None] > 0
        self.basis[:, 0] = (b / self.scale[:, None]).where(some, b.shape[1] ** -0.5)

    def advance(self, product: Product) -> None:
        """Make a step."""
        step, vector = len(self.diagonal), self.basis[:, len(self.diagonal)]
        image = product(vector)
        size, alpha = inner(image, image).sqrt(), inner(vector, image)
        if not bool(torch.isfinite(size).all()):
            raise ValueError("products with the matrix are not finite")
        # The last vector of the basis is zero before the first step.
        image = image - self.off[-1].to(image)[:, None] * self.basis[:, step - 1]
        image = image - alpha.to(image)[:, None] * vector
        # Orthogonalise again after the two terms of T, to rounding.
        known = self.basis[:, : step + 1]
        image = image - ((known @ image[..., None]).mT @ known)[:, 0]
        beta = inner(image, image).sqrt()
        # A vector of rounding errors: the Krylov space is exhausted.
        beta = beta.where(beta > 1e-14 * size, 0.0)
        self.basis[:, step + 1] = image / beta.where(beta > 0, torch.inf)[:, None]
        self.off.append(beta)
        # Beyond the last entry of an exhausted row, the first extends no range.
        self.diagonal.append(alpha.where(size > 0, (self.diagonal or [alpha])[0]))

    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest Ritz value of all rows."""
        T = torch.diag_embed(torch.stack(self.diagonal, dim=1))
        off = torch.stack(self.off[:-1], dim=1)[:, 1:]
        ends = torch.linalg.eigvalsh(T + torch.diag_embed(off, offset=-1)).aminmax()
        return float(ends.min), float(ends.max)

    def solve(self, shifts: Float[Tensor, " q"]) -> Float[Tensor, "k q b"]:
        """Return u of every shift, by elimination."""
        d = [alpha + shifts.to(self.scale)[:, None] for alpha in self.diagonal]
        u, lower = [self.scale.expand_as(d[0])], []
        for step in range(1, len(d)):
            lower.append(self.off[step] / d[step - 1])
            d[step] = d[step] - lower[-1] * self.off[step]
            u.append(-lower[-1] * u[-1])
        u = list(torch.stack(u) / torch.stack(d))
        for step in range(len(d) - 1, 0, -1):
            u[step - 1] = u[step - 1] - lower[step - 1] * u[step]
        return torch.stack(u)


class RootWarning(UserWarning):
    """Warning that the error of a root may exceed the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSolution(Solution):
    """``K^{±1/2} b`` and its accuracy per row.

    ``residual`` bounds ``‖b − K^{1/2} y‖ / ‖b‖``, ``error`` the relative error, within
    the tolerance where ``converged``. With a floor as λ_min bounds are rigorous; with
    the smallest Ritz value errors of 0.1 and more may be a factor of a few too small.
    """

    error: Float[Tensor, " b"]


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
        if not (self.rtol > 0 and self.max_steps >= 1):
            raise ValueError(f"{self} needs a positive rtol and max_steps")

    def inverse_root(
        self, product: Product, b: Block, floor: float = 0.0
    ) -> RootSolution:
        """Return ``K^{-1/2} b`` of rows, once differentiable in b and in ``product``.

        ``floor`` is a lower bound of the eigenvalues if one is known, such as a nugget.

        Raises
        ------
        ValueError
            If K has a negative eigenvalue beyond rounding, a product is not finite, or
            no quadrature reaches the tolerance in float64.

        Warns
        -----
        RootWarning
            If the bound on the error of a root or a derivative exceeds the tolerance.
        """
        return self._roots(product, b, floor, positive=False)

    def root(self, product: Product, b: Block, floor: float = 0.0) -> RootSolution:
        """Return ``K^{1/2} b`` of rows; see :meth:`inverse_root`."""
        return self._roots(product, b, floor, positive=True)

    def _roots(
        self, product: Product, b: Tensor, floor: float, *, positive: bool
    ) -> RootSolution:
        """Take roots of as many rows at a time as memory allows."""
        row = b.element_size() * b.shape[1] * (min(self.max_steps, b.shape[1]) + 1)
        # A gibibyte for the Krylov bases of rows that share products.
        parts = b.split(rows_within(row, 2**30))
        roots = [self._root(product, part, floor, positive) for part in parts]
        solution = RootSolution.joined(roots)
        if not bool(solution.converged.all()):
            warnings.warn(solution.message, RootWarning, stacklevel=3)
        return solution

    def _root(
        self, product: Product, b: Tensor, floor: float, positive: bool
    ) -> RootSolution:
        krylov, rule, parts = self._solve(product, b.detach(), floor, positive)
        # Derivatives in the parameters of K need these products.
        change = b - product(parts.flatten(0, 1)).reshape(parts.shape)
        off = change.detach() - rule.shifts[:, None, None].to(parts) * parts
        value = torch.einsum("q,qbn->bn", rule.weights.to(parts), parts)
        if change.requires_grad:
            # Zero, with the derivative of the root.
            change = change - change.detach()
            change.register_hook(lambda g: self._adjoint(product, g[0], rule))
            value = value + change.sum(dim=0)
        residual, nonzero = inner(off, off).sqrt(), krylov.scale > 0
        spent = self._spent(krylov, rule, positive, residual)
        back = (rule.weights / (2 * rule.shifts.sqrt())).to(residual) @ residual
        return RootSolution(
            value=product(value) if positive else value,
            residual=(rule.error + ratio(back, krylov.scale)) * nonzero,
            iterations=len(krylov.diagonal) * nonzero,
            converged=spent <= 1,
            error=(rule.error + spent * (self.rtol - rule.error)) * nonzero,
        )

    @torch.no_grad()
    def _solve(
        self, product: Product, b: Tensor, floor: float | RootQuadrature, positive: bool
    ) -> tuple[_Lanczos, RootQuadrature, Float[Tensor, "q b n"]]:
        """Return ``(K + t_q)⁻¹ b`` for a rule that is given, or follows Ritz values."""
        krylov, eps = _Lanczos(b, self.max_steps), torch.finfo(b.dtype).eps
        while True:
            done = len(krylov.diagonal)
            # A check after k steps takes as long as k / 15 steps.
            for _ in range(min(max(8, done // 8), krylov.limit - done)):
                krylov.advance(product)
            smallest, largest = krylov.ends()
            # Negative values closer to zero are rounding.
            if smallest < -max(1e-8, eps) * largest or not largest > 0:
                raise ValueError(
                    "a square root needs a positive definite matrix, Lanczos found "
                    f"eigenvalues from {smallest:.3g} to {largest:.3g}: add a nugget"
                )
            if isinstance(floor, RootQuadrature):
                rule = floor._replace(smallest=min(smallest, floor.smallest))
            else:
                # The largest Ritz value converges at once, the smallest late, and from
                # above. A floor leaves room for rounding.
                upper, least = 1.1 * largest, eps * 1.1 * largest
                smallest = floor if least < floor < largest else max(smallest, least)
                lower = max((0.9 if smallest == floor else 1e-3) * smallest, least)
                # Points of the quadrature cost no products.
                rule = root_quadrature(lower, upper, 0.25 * self.rtol)
                rule = rule._replace(smallest=smallest)
            left = (krylov.off[-1] > 0) & (len(krylov.diagonal) < krylov.limit)
            # Rounding makes true residuals larger than the recursion's.
            left &= self._spent(krylov, rule, positive) > 0.9
            if not bool(left.any()):
                u = krylov.solve(rule.shifts).to(b)
                basis = krylov.basis[:, : len(u)]
                return krylov, rule, torch.einsum("kqb,bkn->qbn", u, basis)

    def _spent(
        self, krylov: _Lanczos, rule: RootQuadrature, positive: bool, *true: Tensor
    ) -> Float[Tensor, " b"]:
        """Return the residuals' part of the bound of ``‖e‖`` or, of positive roots,
        ``‖K e‖`` over its part of the tolerance; residuals are by recursion or true."""
        shifts, weights = rule.shifts.to(krylov.scale), rule.weights.to(krylov.scale)
        u = krylov.solve(shifts)
        gains = weights / (rule.smallest + shifts)
        size = torch.einsum("q,kqb->kb", weights, u).norm(dim=0)
        if positive:
            gains = weights * rule.upper / (rule.upper + shifts)
            size = krylov.diagonal[0].clamp(min=0).sqrt() * krylov.scale
        (residual,) = true or (krylov.off[-1] * u[-1].abs(),)
        return ratio(gains @ residual, (self.rtol - rule.error) * size)

    def _adjoint(
        self, product: Product, gradient: Tensor, rule: RootQuadrature
    ) -> Float[Tensor, "q b n"]:
        """Return ``w_q (K + t_q)⁻¹ g`` of the rows of a gradient, by the same rule."""
        if torch.is_grad_enabled():
            raise NotImplementedError("roots have first derivatives only")
        krylov, rule, parts = self._solve(product, gradient, rule, positive=False)
        failed = bool((self._spent(krylov, rule, False) > 1).any())
        outside = not rule.lower <= rule.smallest <= krylov.ends()[1] <= rule.upper
        if failed or (outside and bool(gradient.any())):
            message = "the derivative of roots has not converged, or has eigenvalues "
            message += "beyond theirs: raise max_steps or give a floor"
            warnings.warn(message, RootWarning, stacklevel=2)
        return rule.weights.to(gradient)[:, None, None] * parts
