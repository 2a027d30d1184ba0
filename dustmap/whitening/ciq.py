r"""Whitening by products alone: ``R = K^{1/2}`` through contour integral quadrature.

``u = K^{1/2} ε`` and ``k_n = K^{-1/2} k_un`` (Pleiss et al. 2020, arXiv:2006.11267,
section 5), in ``O(J M²)`` for free points and ``O(J M log M)`` on a grid, for which K
is hierarchical Toeplitz.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.linalg.cg import Solution
from dustmap.linalg.ciq import CIQ
from dustmap.whitening.base import Whitening
from dustmap.whitening.kernel_matrix import GridCovariance, KernelMatrix


@dataclass(eq=False, kw_only=True)
class CiqWhitening(Whitening):
    """``u = K^{1/2} ε`` at points of any dimension, or on a grid.

    Parameters
    ----------
    ciq
        How roots are taken, and how exact.

    Notes
    -----
    A root that misses its tolerance warns
    (:class:`~dustmap.linalg.ciq.RootWarning`) and says so in its status. The derivative
    of :meth:`features` takes one more solve.
    """

    ciq: CIQ = field(default_factory=CIQ)

    def __post_init__(self) -> None:
        self.covariance = (
            GridCovariance(self.kernel, self.at, nugget=self.nugget)
            if isinstance(self.at, Grid)
            else KernelMatrix(self.kernel, self.points, nugget=self.nugget)
        )

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """``K^{1/2} ε``. Cost: a root."""
        rows = eps.reshape(-1, self.size)
        found = self.ciq.root(self.covariance.matvec, rows, floor=self.nugget)
        return found.value.reshape(eps.shape)

    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch m"]:
        """``K^{1/2} v``, as the root is symmetric."""
        return self.colour(values)

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` by MINRES without a shift, to the residual ``ciq.solver.rtol``."""
        zero = torch.zeros(1, dtype=torch.float64)
        solved = self.ciq.solver.solve(self.covariance.matvec, rhs.detach(), zero)
        return Solution(
            value=solved.value[0],
            residual=solved.residual[0],
            iterations=solved.iterations,
            converged=solved.converged,
        )

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b m"], Float[Tensor, " b"], Solution]:
        """``k_n = K^{-1/2} k_un``, and a :class:`~dustmap.linalg.ciq.RootSolution`."""
        solution = self.ciq.inverse_root(
            self.covariance.matvec, cross, floor=self.nugget
        )
        return solution.value, (solution.value**2).sum(dim=-1), solution
