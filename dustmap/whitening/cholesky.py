r"""Whitening by the Cholesky factor: free inducing points, exact, ``O(M³)`` once.

``K = L Lᵀ``, ``u = L ε``, ``k_n = L⁻¹ k_un`` (Hensman, Matthews & Ghahramani 2015,
AISTATS; R = L of HIP-GP's eq. 20).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.kernels import Kernel
from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import inner, ratio
from dustmap.whitening.kernel_matrix import KernelMatrix

# The first jitter that is tried, relative to the mean of K's diagonal.
_FIRST = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class CholeskyReport:
    """What was added to the diagonal of K for its factor to exist.

    ``jitter`` is relative to the mean of K's diagonal, 0 where none was needed;
    ``attempts`` counts factorisations.
    """

    jitter: float
    attempts: int

    def __str__(self) -> str:
        if not self.jitter:
            return "no jitter was needed"
        return (
            f"a jitter of {self.jitter:.0e} of the prior variance was added to the "
            f"inducing values ({self.attempts} factorisations)"
        )


class CholeskyWhitening:
    """``u = L ε`` at free points of any dimension.

    Parameters
    ----------
    kernel, points
        The prior covariance of the inducing values.
    nugget
        Added to the diagonal of K, in the unit of ``k(0)``.
    max_jitter
        If given, a factor that does not exist is sought with a jitter from 1e-12 of
        the mean diagonal in steps of ten up to this; the one taken enters K and is in
        ``report``. By default none is added.

    Notes
    -----
    Where hyperparameters or points carry gradients, :meth:`features` is differentiable
    in them by autograd, once: :meth:`with_kernel` starts a new graph.

    Raises
    ------
    ValueError
        If K is not positive definite to working precision.
    """

    def __init__(
        self,
        kernel: Kernel,
        points: Float[Tensor, "m d"],
        *,
        nugget: float = 0.0,
        max_jitter: float | None = None,
    ) -> None:
        if max_jitter is not None and not max_jitter >= _FIRST:
            raise ValueError(
                f"max_jitter must be at least {_FIRST:g}, got {max_jitter}: leave it "
                "out for none"
            )
        self.kernel = kernel
        self.nugget = nugget
        self.max_jitter = max_jitter
        plain = self.covariance = KernelMatrix(kernel, points, nugget=nugget)
        self._factor, self.report = _factorised(plain.to_dense(), max_jitter)
        if self.report.jitter:
            unit = float(plain.to_dense().detach().diagonal().mean())
            total = nugget + self.report.jitter * unit
            self.covariance = KernelMatrix(kernel, points, nugget=total)
        self._detached = self._factor.detach()

    @property
    def size(self) -> int:
        """M."""
        return self.covariance.shape[0]

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Free points have no order: ``(M,)``."""
        return (self.size,)

    @property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points."""
        return self.covariance.points

    @property
    def factor(self) -> Float[Tensor, "m m"]:
        """L, with its graph while gradients are enabled."""
        return self._factor if torch.is_grad_enabled() else self._detached

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """``L ε``."""
        return eps @ self.factor.mT

    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch m"]:
        """``Lᵀ v``."""
        return values @ self.factor

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` by two triangular solves."""
        value = torch.cholesky_solve(rhs.mT, self.factor).mT
        factor = self._detached
        return _status(value, (value.detach() @ factor) @ factor.mT, rhs)

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b m"], Solution]:
        """``k_n = L⁻¹ k_un``; the residual is ``‖k_un − L k_n‖ / ‖k_un‖``."""
        rows = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False).mT
        return rows, _status(rows, rows.detach() @ self._detached.mT, cross)

    def with_kernel(self, kernel: Kernel) -> CholeskyWhitening:
        """The same points and settings under another kernel."""
        return self._copy(kernel, self.points)

    def with_points(self, points: Float[Tensor, "m d"]) -> CholeskyWhitening:
        """The same kernel and settings at other points."""
        return self._copy(self.kernel, points)

    def _copy(self, kernel: Kernel, points: Tensor) -> CholeskyWhitening:
        return CholeskyWhitening(
            kernel, points, nugget=self.nugget, max_jitter=self.max_jitter
        )


def _factorised(
    K: Float[Tensor, "m m"], max_jitter: float | None
) -> tuple[Tensor, CholeskyReport]:
    jitters = [0.0]
    if max_jitter is not None:
        decades = math.floor(math.log10(max_jitter / _FIRST) + 1e-9)
        jitters += [_FIRST * 10.0**decade for decade in range(decades + 1)]
    for attempts, jitter in enumerate(jitters, start=1):
        added = jitter * K.diagonal().mean() * torch.eye(len(K)).to(K)
        factor, fault = torch.linalg.cholesky_ex(K + added if jitter else K)
        if not int(fault):
            return factor, CholeskyReport(jitter=jitter, attempts=attempts)
    raise ValueError(
        f"the covariance of {len(K)} inducing points is not positive definite in "
        f"double precision with a jitter of {jitters[-1]:.0e}: add a nugget, allow a "
        "larger max_jitter, or take fewer points, a shorter lengthscale or a rougher "
        "kernel"
    )


def _status(value: Tensor, image: Tensor, rhs: Tensor) -> Solution:
    """A solution with its true residual."""
    off = rhs.detach() - image
    residual = ratio(inner(off, off).sqrt(), inner(rhs, rhs).detach().sqrt())
    return Solution(
        value=value,
        residual=residual,
        iterations=torch.ones(len(rhs), dtype=torch.int64, device=rhs.device),
        converged=torch.isfinite(residual),
    )
