"""Solves with the precision of q, by factorisation or by conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.cg import ConjugateGradients, Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class IterativeSolver:
    """By block conjugate gradients with the diagonal for a preconditioner.

    ``kᵀ S k`` comes out with the square of ``rtol``, derivatives with ``rtol`` itself.
    """

    rtol: float = 1e-3
    max_steps: int = 500

    def solve(
        self, matrix: Float[Tensor, "p p"], rhs: Float[Tensor, "b p"]
    ) -> Solution:
        """``A⁻¹ b`` of every row. Cost: ``P²`` per row and iteration."""
        diagonal = matrix.diagonal()
        solver = ConjugateGradients(rtol=self.rtol, max_steps=self.max_steps)
        return solver.solve(
            lambda x: x @ matrix, rhs, preconditioner=lambda x: x / diagonal
        )


def cholesky_factor(matrix: Float[Tensor, "p p"]) -> Float[Tensor, "p p"]:
    """The lower Cholesky factor.

    Raises
    ------
    ValueError
        If the matrix is not positive definite.
    """
    lower, fault = torch.linalg.cholesky_ex(matrix)
    if int(fault):
        raise ValueError(
            f"a precision of order {len(matrix)} is not positive definite (row "
            f"{int(fault)}): lower the natural rate, or keep it in double precision"
        )
    return lower
