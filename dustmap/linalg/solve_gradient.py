r"""The derivative of a Toeplitz solve, without autograd through CG.

``x = K⁻¹ v`` depends on the right-hand side and on ``c``, the covariance at the box's
non-negative lags. With ``g`` the gradient in x and ``a = K⁻¹ g``,

``∂/∂v = a``,  ``∂/∂c = −∂(aᵀ K x)/∂c``   (HIP-GP, eq. S13–S15, in D dimensions).

The paper's S16 evaluates the last derivative in one dimension; here it is the folded
cross-correlation of :func:`dustmap.linalg.toeplitz.toeplitz_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from dustmap.linalg.cg import Solution
from dustmap.linalg.toeplitz import toeplitz_gradient

Solve = Callable[[Float[Tensor, "b m"]], Solution]


class _ToeplitzSolve(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, column: Tensor, rhs: Tensor, value: Tensor, solve: Solve
    ) -> Tensor:
        ctx.solve = solve
        ctx.save_for_backward(column, value)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        column, value = ctx.saved_tensors
        adjoint = ctx.solve(gradient).value
        by_column = None
        if ctx.needs_input_grad[0]:
            by_column = -toeplitz_gradient(adjoint, value, tuple(column.shape))
        return by_column, adjoint, None, None


def toeplitz_solve(
    column: Float[Tensor, "*n"], rhs: Float[Tensor, "b m"], solve: Solve
) -> tuple[Float[Tensor, "b m"], Solution]:
    """``K⁻¹ v`` for a batch of rows, differentiable in ``column`` and ``rhs``.

    Parameters
    ----------
    column
        k at the box's non-negative lags; its shape is that of the box.
    rhs
        The right-hand sides v.
    solve
        Solves with the very K that ``column`` describes. Called once forward and once
        backward; derivatives are as exact as its tolerance.

    Returns
    -------
    The answer with its derivative, and the forward solve's status.
    """
    solution = solve(rhs.detach())
    value = _ToeplitzSolve.apply(column, rhs, solution.value, solve)
    return value, solution  # pyright: ignore[reportReturnType]
