r"""Whitening by products alone: ``R = K^{1/2}`` through contour integral quadrature.

``u = K^{1/2} ε`` and ``k_n = K^{-1/2} k_un`` (Pleiss et al. 2020, arXiv:2006.11267,
section 5), in ``O(J M²)`` for free points and ``O(J M log M)`` on a grid, for which K
is hierarchical Toeplitz. With a preconditioner P the root is
``R = K P^{-1/2} M^{-1/2}``, ``M = P^{-1/2} K P^{-1/2}``; again ``R Rᵀ = K``.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.linalg.ciq import CIQ, Product
from dustmap.linalg.nystrom_root import NystromRoot
from dustmap.linalg.operator import LinearOperator
from dustmap.whitening.grid_covariance import GridCovariance
from dustmap.whitening.kernel_matrix import KernelMatrix


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
    preconditioner
        ``P^{-1/2} x``, symmetric, of a P like K, as
        :class:`~dustmap.linalg.nystrom_root.NystromRoot`.
    floor
        What no eigenvalue of M (of K without P) is known to be below; the nugget
        without P, by default.

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
        preconditioner: Product | None = None,
        floor: float | None = None,
    ) -> None:
        self.kernel = kernel
        self.nugget = nugget
        self.ciq = CIQ() if ciq is None else ciq
        self.preconditioner = preconditioner
        if floor is None:
            floor = nugget if preconditioner is None else 0.0
        self.floor = floor
        self.grid = points if isinstance(points, Grid) else None
        self.covariance: LinearOperator
        if isinstance(points, Grid):
            self.covariance = GridCovariance(kernel, points, nugget=nugget)
            self._points = points.points()
        else:
            self.covariance = KernelMatrix(kernel, points, nugget=nugget)
            self._points = self.covariance.points

    @property
    def size(self) -> int:
        """M."""
        return len(self._points)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The grid's shape; ``(M,)`` for free points."""
        return (self.size,) if self.grid is None else self.grid.shape

    @property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points."""
        return self._points

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """``R ε``. Cost: a root."""
        rows = eps.reshape(-1, self.size)
        if self.preconditioner is None:
            found = self._root(rows)
        else:
            inner = self.ciq.inverse_root(self._scaled, rows, floor=self.floor).value
            found = self.covariance.matvec(self.preconditioner(inner))
        return found.reshape(eps.shape)

    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch m"]:
        """``Rᵀ v``. Cost: a root."""
        rows = values.reshape(-1, self.size)
        if self.preconditioner is None:
            found = self._root(rows)
        else:
            found = self.features(self.covariance.matvec(rows))[0]
        return found.reshape(values.shape)

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` by MINRES without a shift, to the residual ``ciq.solver.rtol``.

        Without derivatives; :meth:`features` has them.
        """
        change = self.preconditioner
        product = self.covariance.matvec if change is None else self._scaled
        rows = rhs if change is None else change(rhs)
        solved = self.ciq.solver.solve(
            product, rows.detach(), torch.zeros(1, dtype=torch.float64)
        )
        value = solved.value[0] if change is None else change(solved.value[0])
        return Solution(
            value=value,
            residual=solved.residual[0],
            iterations=solved.iterations,
            converged=solved.converged,
        )

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b m"], Solution]:
        """``k_n = K^{-1/2} k_un``, and a :class:`~dustmap.linalg.ciq.RootSolution`."""
        solution = self.ciq.inverse_root(
            self.covariance.matvec,
            cross,
            preconditioner=self.preconditioner,
            floor=self.floor,
        )
        return solution.value, solution

    def preconditioned(self, rank: int, generator: torch.Generator) -> CiqWhitening:
        """The same K by another root, which a Nyström sketch makes cheaper to take.

        Cost: ``rank`` products, and ``rank`` vectors of memory.
        """
        root = NystromRoot.with_nugget(
            self.covariance.matvec, self.size, rank, generator, nugget=self.nugget
        )
        return CiqWhitening(
            self.kernel,
            self._points if self.grid is None else self.grid,
            nugget=self.nugget,
            ciq=self.ciq,
            preconditioner=root,
            floor=self.nugget,
        )

    def with_kernel(self, kernel: Kernel) -> CiqWhitening:
        """The same points, settings and P under another kernel.

        A floor that is not the nugget must hold for that kernel too; a Nyström root's
        holds for the kernel it was made for only, and is left out.
        """
        return self._copy(kernel, self._points if self.grid is None else self.grid)

    def with_points(self, points: Float[Tensor, "m d"] | Grid) -> CiqWhitening:
        """The same kernel and settings at other points."""
        return self._copy(self.kernel, points)

    def _root(self, rows: Tensor) -> Tensor:
        return self.ciq.root(self.covariance.matvec, rows, floor=self.floor).value

    def _copy(self, kernel: Kernel, points: Tensor | Grid) -> CiqWhitening:
        return CiqWhitening(
            kernel,
            points,
            nugget=self.nugget,
            ciq=self.ciq,
            preconditioner=self.preconditioner,
            floor=0.0 if isinstance(self.preconditioner, NystromRoot) else self.floor,
        )

    def _scaled(self, x: Tensor) -> Tensor:
        assert self.preconditioner is not None
        return self.preconditioner(self.covariance.matvec(self.preconditioner(x)))
