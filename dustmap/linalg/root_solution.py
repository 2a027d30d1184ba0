"""Roots times vectors: what they are worth, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dustmap.linalg.cg import Solution
from dustmap.linalg.root_quadrature import RootQuadrature
from dustmap.linalg.spectral_bounds import SpectralBounds


class RootWarning(UserWarning):
    """A root whose error is not known to be within the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSolution(Solution):
    """``K^{±1/2} b`` and what it is worth.

    ``residual`` bounds ``‖b − K^{1/2} y‖ / ‖b‖`` and ``error`` the relative error
    ``‖e‖ / ‖y‖``, per row (see :mod:`dustmap.linalg.ciq`); ``converged`` says whether
    that is within the tolerance. ``defect`` is ``|yᵀ K y / bᵀ b − 1|``, which needs no
    bounds of the spectrum, and ``quadrature`` the rule. ``repeats`` counts solves whose
    Ritz values lay outside of the bounds.

    With a floor of the spectrum, ``error`` is a bound. Otherwise the smallest Ritz
    value stands for the smallest eigenvalue: sharp where the row converged, but a row
    that stopped far from it (0.1 and more) may be off by a few times as much.
    """

    error: Float[Tensor, " b"]
    defect: Float[Tensor, " b"]
    quadrature: RootQuadrature
    bounds: SpectralBounds
    repeats: int

    @property
    def message(self) -> str:
        """One line for people."""
        worst = float(self.error.max()) if len(self.error) else 0.0
        steps = int(self.iterations.max()) if len(self.iterations) else 0
        found = (
            f"{steps} iterations, {len(self.quadrature.shifts)} quadrature points, "
            f"eigenvalues from {self.bounds.smallest:.1e} to {self.bounds.upper:.1e} "
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


class RootDerivative(torch.autograd.Function):
    """``y`` with its derivatives in ``K x_q`` (the images) and b."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        images: Tensor,
        rhs: Tensor,
        value: Tensor,
        weights: Tensor,
        solve: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.solve = solve
        ctx.save_for_backward(weights)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (weights,) = ctx.saved_tensors
        adjoint = weights[:, None, None] * ctx.solve(gradient.contiguous())
        by_images = -adjoint if ctx.needs_input_grad[0] else None
        by_rhs = adjoint.sum(dim=0) if ctx.needs_input_grad[1] else None
        return by_images, by_rhs, None, None, None
