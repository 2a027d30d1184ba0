r"""Whitening by products alone: ``R = K^{1/2}`` through contour integral quadrature.

``u = K^{1/2} ε`` and ``k_n = K^{-1/2} k_un`` (Pleiss et al. 2020, arXiv:2006.11267,
section 5), in ``O(J M²)`` for free points and ``O(J M log M)`` on a grid, for which K
is hierarchical Toeplitz.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.linalg.ciq import CIQ
from dustmap.linalg.operator import LinearOperator
from dustmap.whitening.kernel_matrix import GridCovariance, KernelMatrix


class CiqWhitening:
    """``u = K^{1/2} ε`` at free points of any dimension, or on a grid.

    Parameters
    ----------
    kernel
        The prior covariance of the inducing values.
    points
        Free points, or a :class:`~dustmap.grid.Grid`.
    nugget
        Added to the diagonal of K, in the unit of ``k(0)``.
    ciq
        How roots are taken, and how exact.

    Notes
    -----
    A root that misses its tolerance warns
    (:class:`~dustmap.linalg.ciq.RootWarning`) and says so in its status. Where
    hyperparameters or points carry gradients, :meth:`features` is differentiable in
    them and in the rows; the derivative takes one more solve.
    """

    def __init__(
        self,
        kernel: Kernel,
        points: Float[Tensor, "m d"] | Grid,
        *,
        nugget: float = 0.0,
        ciq: CIQ | None = None,
    ) -> None:
        self.kernel = kernel
        self.nugget = nugget
        self.ciq = CIQ() if ciq is None else ciq
        self.covariance: LinearOperator
        self._given = points
        if isinstance(points, Grid):
            self.covariance = GridCovariance(kernel, points, nugget=nugget)
            self.points, self.latent_shape = points.points(), points.shape
        else:
            self.covariance = KernelMatrix(kernel, points, nugget=nugget)
            self.points, self.latent_shape = self.covariance.points, (len(points),)

    @property
    def size(self) -> int:
        """M."""
        return len(self.points)

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
        """``K⁻¹ v`` by MINRES without a shift, to the residual ``ciq.solver.rtol``.

        Without derivatives; :meth:`features` has them.
        """
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
    ) -> tuple[Float[Tensor, "b m"], Solution]:
        """``k_n = K^{-1/2} k_un``, and a :class:`~dustmap.linalg.ciq.RootSolution`."""
        solution = self.ciq.inverse_root(
            self.covariance.matvec, cross, floor=self.nugget
        )
        return solution.value, solution

    def with_kernel(self, kernel: Kernel) -> CiqWhitening:
        """The same points and settings under another kernel."""
        return CiqWhitening(kernel, self._given, nugget=self.nugget, ciq=self.ciq)

    def with_points(self, points: Float[Tensor, "m d"] | Grid) -> CiqWhitening:
        """The same kernel and settings at other points."""
        return CiqWhitening(self.kernel, points, nugget=self.nugget, ciq=self.ciq)
