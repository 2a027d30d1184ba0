"""What stochastic variational regression asks of a whitening."""

from __future__ import annotations

from typing import Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution


class Whitening(Protocol):
    """``u = R ε`` with ``R Rᵀ = K_uu`` at some inducing points."""

    @property
    def kernel(self) -> Kernel:
        """k."""
        ...

    @property
    def size(self) -> int:
        """P, the length of ε."""
        ...

    @property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points."""
        ...

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b p"], Solution]:
        """``k_n`` with ``k_n · k_n' = k_unᵀ K⁻¹ k_un'``, differentiable."""
        ...

    def with_kernel(self, kernel: Kernel) -> Self:
        """The same points under another kernel."""
        ...


@runtime_checkable
class MovableWhitening(Protocol):
    """A whitening whose inducing points may be learnt."""

    def with_points(self, points: Float[Tensor, "m d"]) -> Self:
        """The same kernel at other points."""
        ...


class DenseCholesky:
    """``R = L``, the Cholesky factor of ``K_uu`` at free points: ``k_n = L⁻¹ k_un``.

    Parameters
    ----------
    kernel, points
        The prior covariance of the inducing values.
    jitter
        A nugget of the inducing values, relative to ``k(0)``.
    """

    def __init__(
        self, kernel: Kernel, points: Float[Tensor, "m d"], *, jitter: float = 1e-8
    ) -> None:
        self.kernel = kernel
        self.points = points.to(torch.float64)
        self.jitter = jitter
        self._factor: Tensor | None = None

    @property
    def size(self) -> int:
        """M."""
        return len(self.points)

    @property
    def factor(self) -> Float[Tensor, "m m"]:
        """L. ``ValueError`` if ``K_uu`` is not positive definite."""
        if self._factor is None:
            K = self.kernel(self.points[:, None, :] - self.points[None, :, :])
            K = K + self.jitter * torch.diag(K.diagonal())
            lower, fault = torch.linalg.cholesky_ex(K)
            if int(fault):
                raise ValueError(
                    "the covariance of the inducing points is not positive definite "
                    f"in double precision (row {int(fault)} of {len(K)}): raise the "
                    f"jitter above {self.jitter:g}, or take fewer points"
                )
            self._factor = lower
            return lower
        return self._factor

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b m"], Solution]:
        """``L⁻¹ k_un`` of a batch of rows."""
        rows = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False).mT
        zero = torch.zeros(len(cross), dtype=torch.float64)
        return rows, Solution(
            value=rows,
            residual=zero,
            iterations=zero.to(torch.int64),
            converged=zero == 0,
        )

    def with_kernel(self, kernel: Kernel) -> DenseCholesky:
        """The same points under another kernel."""
        return DenseCholesky(kernel, self.points, jitter=self.jitter)

    def with_points(self, points: Float[Tensor, "m d"]) -> DenseCholesky:
        """The same kernel at other points."""
        return DenseCholesky(self.kernel, points, jitter=self.jitter)
