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

from dustmap.linalg.cg import Solution
from dustmap.linalg.operator import inner, ratio
from dustmap.whitening.base import Whitening
from dustmap.whitening.kernel_matrix import KernelMatrix

# The first jitter that is tried, relative to the mean of K's diagonal.
_FIRST = 1e-12


@dataclass(eq=False, kw_only=True)
class CholeskyWhitening(Whitening):
    """``u = L ε`` at points of any dimension.

    Parameters
    ----------
    max_jitter
        If given, a factor that does not exist is sought with a jitter from 1e-12 of
        the mean diagonal in steps of ten up to this; the one taken enters K and is
        ``jitter``. By default none is added.

    Notes
    -----
    Autograd runs through a factor once:
    :meth:`~dustmap.whitening.base.Whitening.with_kernel` starts a new graph.

    Raises
    ------
    ValueError
        If K is not positive definite to working precision.
    """

    max_jitter: float | None = None

    def __post_init__(self) -> None:
        jitters = [0.0]
        if self.max_jitter is not None:
            if not self.max_jitter >= _FIRST:
                raise ValueError(
                    f"max_jitter must be at least {_FIRST:g}, got {self.max_jitter}: "
                    "leave it out for none"
                )
            decades = math.floor(math.log10(self.max_jitter / _FIRST) + 1e-9)
            jitters += [_FIRST * 10.0**decade for decade in range(decades + 1)]
        plain = self.covariance = KernelMatrix(
            self.kernel, self.points, nugget=self.nugget
        )
        K = plain.to_dense()
        for jitter in jitters:
            added = jitter * K.diagonal().mean() * torch.eye(len(K)).to(K)
            factor, fault = torch.linalg.cholesky_ex(K + added if jitter else K)
            if not int(fault):
                break
        else:
            raise ValueError(
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
        factor = self._detached
        value = torch.cholesky_solve(rhs.detach().mT, factor).mT
        return _status(value, (value @ factor) @ factor.mT, rhs)

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b m"], Float[Tensor, " b"], Solution]:
        """``k_n = L⁻¹ k_un``; the residual is ``‖k_un − L k_n‖ / ‖k_un‖``."""
        rows = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False).mT
        status = _status(rows, rows.detach() @ self._detached.mT, cross)
        return rows, (rows**2).sum(dim=-1), status


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
