"""The covariance of inducing values, at free points or on a grid, as an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dustmap.grid import Grid, Torus, smooth_size
from dustmap.kernels import Kernel, Radial
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.operator import LinearOperator
from dustmap.linalg.toeplitz import ToeplitzOperator, first_column

# Entries of K that are evaluated together where K is not kept.
_BLOCK = 2**22
# Bytes of K that are kept.
_MEMORY = 2**31
Built = TypeVar("Built")


def point_covariance(
    kernel: Kernel, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"]
) -> Float[Tensor, "n m"]:
    """``k(x_n − z_m)``, once differentiable in everything.

    A radial kernel takes the scaled distance alone, without displacements along every
    axis: 14 times as fast in eight dimensions with the gradient.
    """
    if not isinstance(kernel, Radial):
        return kernel(x[:, None, :] - z[None, :, :])
    scale = kernel.lengthscale.to(x)
    # Not by the product of the matrices, which loses small distances.
    r = torch.cdist(x / scale, z / scale, compute_mode="donot_use_mm_for_euclid_dist")
    return kernel.variance.to(x) * kernel.radial(r)


class _Covariance(LinearOperator):
    """``K + nugget · I`` in float64, built once.

    Where the kernel's hyperparameters or the points carry gradients, products made
    while gradients are enabled are differentiable in them, each with a graph of its
    own.

    Raises
    ------
    ValueError
        If the nugget is negative or not finite.
    """

    def __init__(self, kernel: Kernel, size: int, nugget: float) -> None:
        if not 0 <= nugget < float("inf"):
            raise ValueError(f"nugget must be finite and not negative, got {nugget}")
        self.kernel = kernel
        self.nugget = nugget
        self.shape = (size, size)
        self.dtype = torch.float64
        self.device = torch.device("cpu")
        self.inputs = tuple(kernel.parameters().values())
        self._kept: Any = None

    @property
    def differentiable(self) -> bool:
        """True where K's inputs carry gradients, and those are enabled."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self.inputs)

    def _built(self, build: Callable[[], Built]) -> Built:
        """Build the matrix of products; keep it, unless it is differentiable."""
        if self.differentiable:
            return build()
        if self._kept is None:
            with torch.no_grad():
                self._kept = build()
        return self._kept

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)


class GridCovariance(_Covariance):
    """K on a grid: hierarchical Toeplitz, two FFTs per product.

    Products need a circulant that holds K, but no positive one: it has about twice the
    grid's points per axis whatever the lengthscale.
    """

    def __init__(self, kernel: Kernel, grid: Grid, *, nugget: float = 0.0) -> None:
        super().__init__(kernel, grid.size, nugget)
        self.grid = grid

    def matvec(self, x: Tensor) -> Tensor:
        return self._built(self._toeplitz).matvec(x)

    def _toeplitz(self) -> ToeplitzOperator:
        shape = tuple(smooth_size(2 * n - 1) for n in self.grid.shape)
        torus = Torus(grid=self.grid, shape=shape)
        column = first_column(self.kernel, torus, self.nugget)
        return ToeplitzOperator(Circulant.from_first_column(column), self.grid)


class KernelMatrix(_Covariance):
    """K at free points, kept if it fits into 2 GiB.

    Otherwise its rows are evaluated anew, block by block, for each product.

    Raises
    ------
    ValueError
        If there are no points, or they or the nugget are not finite.
    """

    def __init__(
        self,
        kernel: Kernel,
        points: Float[Tensor, "m d"],
        *,
        nugget: float = 0.0,
    ) -> None:
        if points.ndim != 2 or not len(points):
            raise ValueError(
                "inducing points must be a matrix of at least one row, got shape "
                f"{tuple(points.shape)}"
            )
        faulty = int((~torch.isfinite(points)).any(dim=1).sum())
        if faulty:
            raise ValueError(f"{faulty} inducing points are not finite: leave them out")
        super().__init__(kernel, len(points), nugget)
        self.points = points.to(torch.float64)
        self.inputs = (*self.inputs, self.points)
        self.device = points.device

    def to_dense(self) -> Float[Tensor, "m m"]:
        """K itself, with a new graph if ``differentiable``."""
        return self._built(lambda: self._rows(slice(None)))

    def matvec(self, x: Tensor) -> Tensor:
        size = self.shape[0]
        if 8 * size**2 <= _MEMORY:
            return x @ self.to_dense()
        rows = max(1, _BLOCK // size)
        parts = []
        for start in range(0, size, rows):
            block = slice(start, min(start + rows, size))
            # Its graph would hold all of K: evaluated again when gradients come.
            parts.append(
                checkpoint(self._product, x, block, use_reentrant=False)
                if self.differentiable
                else self._product(x, block)
            )
        return torch.cat(parts, dim=-1)

    def _product(self, x: Tensor, block: slice) -> Tensor:
        return x @ self._rows(block).mT

    def _rows(self, block: slice) -> Tensor:
        K = point_covariance(self.kernel, self.points[block], self.points)
        if not self.nugget:
            return K
        eye = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
        return K + self.nugget * eye[block]
