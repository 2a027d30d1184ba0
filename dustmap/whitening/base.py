"""What the whitenings of inducing values have in common."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import LinearOperator
from dustmap.tori import Tori
from dustmap.whitening.modes import Modes


class Whitening(Protocol):
    """White ε to values ``u = R ε`` at M inducing points, with ``R Rᵀ = K``.

    R has P columns; which R it is differs by a rotation, so that features of different
    whitenings are compared by their inner products.
    """

    @property
    def kernel(self) -> Kernel:
        """k."""
        ...

    @property
    def size(self) -> int:
        """P, the length of ε."""
        ...

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """How ε lies on a grid, if it does: its product is P."""
        ...

    @property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points (float64)."""
        ...

    @property
    def covariance(self) -> LinearOperator:
        """K, nugget included."""
        ...

    def colour(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch m"]:
        """``u = R ε``."""
        ...

    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch p"]:
        """``Rᵀ v``."""
        ...

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` of every row."""
        ...

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b p"], Solution]:
        """``k_n = Rᵀ K⁻¹ k_un`` of every row, and the status of what it took.

        ``k_n · k_n' = k_unᵀ K⁻¹ k_un'``.
        """
        ...

    def with_kernel(self, kernel: Kernel) -> Self:
        """The same points and settings under another kernel."""
        ...


class GridWhitening(Protocol):
    """Fourier modes ε of white noise to a field on the points of tori, without a solve.

    ``field = A ε``; :attr:`modes` says how ε lies.
    """

    tori: Tori
    modes: Modes
    refinement: int
    dtype: torch.dtype
    device: torch.device

    @property
    def kernel(self) -> Kernel:
        """The covariance of the field."""
        ...

    @property
    def size(self) -> int:
        """P, the length of ε."""
        ...

    @property
    def fine_size(self) -> int:
        """Length of the field: all points of the tori, refined."""
        ...

    def colour(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch f"]:
        """``A ε``."""
        ...

    def colour_transpose(
        self, field: Float[Tensor, "*batch f"]
    ) -> Float[Tensor, "*batch p"]:
        """``Aᵀ g``."""
        ...
