r"""Whitenings of inducing values, whose features need a solve; one for free points.

By the Cholesky factor (Hensman, Matthews & Ghahramani 2015, AISTATS; R = L of HIP-GP's
eq. 20): ``K = L Lᵀ``, ``u = L ε``, ``k_n = L⁻¹ k_un``, exact, ``O(M³)`` once.
"""

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
from dustmap.kernels import Kernel, point_covariance
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import LinearOperator, SymmetricOperator, inner, ratio
from dustmap.shapes import EpsBatch, Places

# Numbers at the inducing points; rows ``k_n``, the variance that they explain, and the
# status of their solves.
Values = Float[Tensor, "*b m"]
Features = tuple[Float[Tensor, "b p"], Float[Tensor, " b"], Solution]


@dataclass(eq=False)
class Whitening(ABC):
    """Map from white ε to values ``u = R ε`` at M inducing points, ``R Rᵀ = K``.

    R has P columns. Roots of one covariance differ by a rotation: compare features of
    different whitenings by their inner products.

    Parameters
    ----------
    kernel
        The prior covariance of the inducing values.
    at
        The inducing points: free points, or a grid.
    nugget
        Added to the diagonal of K, in the unit of ``k(0)``.

    Notes
    -----
    Where hyperparameters or points carry gradients, :meth:`features` is differentiable
    in them. ``replace`` makes the same whitening of another kernel or other points.
    """

    kernel: Kernel
    at: Places | Grid
    _: KW_ONLY
    nugget: float = 0.0
    covariance: LinearOperator = field(init=False)
    """K, nugget included."""

    @cached_property
    def points(self) -> Places:
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
    def colour(self, eps: EpsBatch) -> Values:
        """Return ``u = R ε``."""

    @abstractmethod
    def colour_transpose(self, values: Values) -> EpsBatch:
        """Return ``Rᵀ v``."""

    @abstractmethod
    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """Return ``K⁻¹ v`` of every row, without derivatives."""

    @abstractmethod
    def features(self, cross: Float[Tensor, "b m"]) -> Features:
        """Return ``k_n = Rᵀ K⁻¹ k_un`` of every row, and the explained variance.

        ``k_n · k_n' = k_unᵀ K⁻¹ k_un'``; the inducing values explain the prior variance
        ``|k_n|²``. The solution holds the status of the solves.
        """

    def with_kernel(self, kernel: Kernel) -> Self:
        """Return the same points, ε and settings under another kernel."""
        return replace(self, kernel=kernel)


class KernelMatrix(SymmetricOperator):
    """``K + nugget · I`` at free points, dense in float64.

    Where the kernel's hyperparameters or the points carry gradients, products made
    while gradients are enabled are differentiable in them, each with a graph of its
    own; otherwise K is kept.

    Raises `ValueError` if there are no points, a point is not finite, or the nugget is
    not finite or is negative.
    """

    def __init__(self, kernel: Kernel, points: Places, *, nugget: float = 0.0) -> None:
        if not 0 <= nugget < float("inf"):
            raise ValueError(f"nugget must be finite and not negative, got {nugget}")
        if points.ndim != 2 or not len(points):
            raise ValueError(
                "inducing points must be a matrix of at least one row, got shape "
                f"{tuple(points.shape)}"
            )
        faulty = int((~torch.isfinite(points)).any(dim=1).sum())
        if faulty:
            raise ValueError(f"{faulty} inducing points are not finite: remove them")
        self.kernel, self.points, self.nugget = kernel, points, nugget
        self.shape = (len(points), len(points))
        self.dtype, self.device = torch.float64, points.device
        self._kept: Tensor | None = None

    def to_dense(self) -> Float[Tensor, "m m"]:
        """Return K, with a new graph where it is differentiable."""
        inputs = (*self.kernel.parameters().values(), self.points)
        moving = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if self._kept is not None and not moving:
            return self._kept
        with torch.set_grad_enabled(moving):
            K = point_covariance(self.kernel, self.points, self.points)
            if self.nugget:
                K = K + self.nugget * torch.eye(len(K)).to(K)
        if not moving:
            self._kept = K
        return K

    def matvec(self, x: Tensor) -> Tensor:
        return x @ self.to_dense()


@dataclass(eq=False, kw_only=True)
class CholeskyWhitening(Whitening):
    """``u = L ε`` at points of any dimension.

    Parameters
    ----------
    max_jitter
        If given and K has no factor, add the first sufficient jitter, from 1e-12 of the
        mean diagonal in steps of ten up to this. It enters K and is ``jitter``. By
        default none is added.

    Notes
    -----
    Autograd runs through a factor once: :meth:`Whitening.with_kernel` starts a new
    graph.

    Raises
    ------
    FloatingPointError
        If K is not positive definite to working precision.
    """

    max_jitter: float | None = None

    def __post_init__(self) -> None:
        jitters, first = [0.0], 1e-12
        if self.max_jitter is not None:
            if not self.max_jitter >= first:
                raise ValueError(
                    f"max_jitter must be at least {first:g}, got {self.max_jitter}: "
                    "omit it for no jitter"
                )
            decades = math.floor(math.log10(self.max_jitter / first) + 1e-9)
            jitters += [first * 10.0**decade for decade in range(decades + 1)]
        self.covariance = KernelMatrix(self.kernel, self.points, nugget=self.nugget)
        K = self.covariance.to_dense()
        for jitter in jitters:
            added = jitter * K.diagonal().mean() * torch.eye(len(K)).to(K)
            factor, fault = torch.linalg.cholesky_ex(K + added if jitter else K)
            if not int(fault):
                break
        else:
            raise FloatingPointError(
                f"the covariance of {len(K)} inducing points is not positive definite "
                f"in double precision with a jitter of {jitters[-1]:.0e}: add a "
                "nugget, allow a larger max_jitter, or take fewer points, a shorter "
                "lengthscale or a rougher kernel"
            )
        self.jitter = jitter
        if jitter:
            total = self.nugget + jitter * float(K.detach().diagonal().mean())
            self.covariance = KernelMatrix(self.kernel, self.points, nugget=total)
        self._factor, self._detached = factor, factor.detach()

    @property
    def factor(self) -> Float[Tensor, "m m"]:
        """L, with its graph while gradients are enabled."""
        return self._factor if torch.is_grad_enabled() else self._detached

    def colour(self, eps: Values) -> Values:
        """Return ``L ε``."""
        return eps @ self.factor.mT

    def colour_transpose(self, values: Values) -> Values:
        """Return ``Lᵀ v``."""
        return values @ self.factor

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """Return ``K⁻¹ v`` by two triangular solves."""
        factor = self._detached
        value = torch.cholesky_solve(rhs.detach().mT, factor).mT
        return _status(value, (value @ factor) @ factor.mT, rhs)

    def features(self, cross: Float[Tensor, "b p"]) -> Features:
        """Return ``k_n = L⁻¹ k_un``; the residual is ``‖k_un − L k_n‖ / ‖k_un‖``."""
        rows = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False).mT
        status = _status(rows, rows.detach() @ self._detached.mT, cross)
        return rows, (rows**2).sum(dim=-1), status


def _status(value: Tensor, image: Tensor, rhs: Tensor) -> Solution:
    """Return a solution with its true residual."""
    off = rhs.detach() - image
    residual = ratio(inner(off, off).sqrt(), inner(rhs, rhs).detach().sqrt())
    return Solution(
        value=value,
        residual=residual,
        iterations=torch.ones(len(rhs), dtype=torch.int64, device=rhs.device),
        converged=torch.isfinite(residual),
    )
