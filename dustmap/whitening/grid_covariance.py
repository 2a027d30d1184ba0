"""The covariance of inducing values on a grid, by its products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import Kernel
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.operator import LinearOperator
from dustmap.linalg.toeplitz import ToeplitzOperator, first_column


class GridCovariance(LinearOperator):
    """``K + nugget · I`` on a grid: hierarchical Toeplitz, two FFTs per product.

    Products need a circulant that holds K, but no positive one: it has about twice the
    grid's points per axis whatever the lengthscale. Where the kernel's hyperparameters
    carry gradients, products made while gradients are enabled are differentiable in
    them, each with a graph of its own.

    Parameters
    ----------
    kernel, grid
        k and z.
    nugget
        Added to the diagonal, in the unit of ``k(0)``.

    Raises
    ------
    ValueError
        If the nugget is negative or not finite.
    """

    def __init__(self, kernel: Kernel, grid: Grid, *, nugget: float = 0.0) -> None:
        if not 0 <= nugget < float("inf"):
            raise ValueError(f"nugget must be finite and not negative, got {nugget}")
        self.kernel = kernel
        self.grid = grid
        self.nugget = nugget
        self.shape = (grid.size, grid.size)
        self.dtype = torch.float64
        self.device = torch.device("cpu")
        self._kept: ToeplitzOperator | None = None

    def matvec(self, x: Tensor) -> Tensor:
        return self._operator().matvec(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)

    def _operator(self) -> ToeplitzOperator:
        parameters = self.kernel.parameters().values()
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return self._built()
        if self._kept is None:
            with torch.no_grad():
                self._kept = self._built()
        return self._kept

    def _built(self) -> ToeplitzOperator:
        shape = tuple(smooth_size(2 * n - 1) for n in self.grid.shape)
        torus = Torus(grid=self.grid, shape=shape)
        column = first_column(self.kernel, torus, self.nugget)
        return ToeplitzOperator(Circulant.from_first_column(column), self.grid)
