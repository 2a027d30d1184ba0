"""The whitenings of inducing values, whose features take a solve."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import LinearOperator


@dataclass(eq=False)
class Whitening(ABC):
    """White ε to values ``u = R ε`` at M inducing points, with ``R Rᵀ = K``.

    R has P columns. Roots of one covariance differ by a rotation: compare features of
    different whitenings by their inner products.

    Parameters
    ----------
    kernel
        The prior covariance of the inducing values.
    at
        The inducing points: free ones, or a grid.
    nugget
        Added to the diagonal of K, in the unit of ``k(0)``.

    Notes
    -----
    Where hyperparameters or points carry gradients, :meth:`features` is differentiable
    in them. ``replace`` makes the same whitening of another kernel or other points.
    """

    kernel: Kernel
    at: Float[Tensor, "m d"] | Grid
    _: KW_ONLY
    nugget: float = 0.0
    covariance: LinearOperator = field(init=False)
    """K, nugget included."""

    @cached_property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points (float64)."""
        at = self.at.points() if isinstance(self.at, Grid) else self.at
        return at.to(torch.float64)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of ε, on a grid if the points lie on one."""
        return self.at.shape if isinstance(self.at, Grid) else (len(self.at),)

    @property
    def size(self) -> int:
        """P, the length of ε."""
        return math.prod(self.latent_shape)

    @abstractmethod
    def colour(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch m"]:
        """``u = R ε``."""

    @abstractmethod
    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch p"]:
        """``Rᵀ v``."""

    @abstractmethod
    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` of every row, without derivatives."""

    @abstractmethod
    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b p"], Float[Tensor, " b"], Solution]:
        """Return ``k_n = Rᵀ K⁻¹ k_un`` of every row, and what it explains.

        ``k_n · k_n' = k_unᵀ K⁻¹ k_un'``; the prior variance that the inducing values
        explain is ``|k_n|²``. The solution holds the status of the solves.
        """

    def with_kernel(self, kernel: Kernel) -> Self:
        """Return the same points, ε and settings under another kernel."""
        return replace(self, kernel=kernel)
