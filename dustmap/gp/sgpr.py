r"""Sparse regression with the collapsed bound of Titsias (2009, AISTATS, eq. 9).

With ``K_uu = L Lᵀ``, ``Σ = diag(τ² + σ²)``, ``A = L⁻¹ K_un Σ^{-1/2}``,
``B = I + A Aᵀ`` and ``c = A Σ^{-1/2} r``:

``log p(y) ≥ log N(r | 0, Q + Σ) − ½ Σ_n (k_nn − q_nn)/Σ_n
= −½ [ N log 2π + log det Σ + log det B + rᵀ Σ⁻¹ r − cᵀ B⁻¹ c ]
− ½ [ Σ_n k_nn/Σ_n − tr A Aᵀ ]``.

All terms that grow with N are sums over observations: the bound takes one pass over
blocks, its gradient a second pass that recomputes each block (checkpointing), so that
memory does not grow with N. Cost: ``N M²`` per value, four times that with gradient.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dustmap.covariance import functional_variance, inducing_covariance
from dustmap.functionals import Functionals
from dustmap.gp.regression import ScoredRegression, block_rows, gradients_of, leaves_of
from dustmap.kernels import point_covariance


class _Sums(NamedTuple):
    """Sums over all observations that determine the bound.

    ``A Aᵀ``, ``A Σ^{-1/2} r``, ``rᵀ Σ⁻¹ r``, ``log det Σ`` and ``Σ_n k_nn/Σ_n``.
    """

    gram: Float[Tensor, "m m"]
    pull: Float[Tensor, " m"]
    square: Float[Tensor, ""]
    log_noise: Float[Tensor, ""]
    prior: Float[Tensor, ""]

    def root(self) -> Float[Tensor, "m m"]:
        """Return the lower Cholesky factor of B."""
        eye = torch.eye(len(self.gram), dtype=self.gram.dtype)
        return torch.linalg.cholesky(self.gram + eye)


@dataclass(eq=False)
class SGPR(ScoredRegression):
    """Regression through M inducing values ``u_m = f(z_m)``.

    ``points`` are ``z_m``, held fixed. ``jitter`` is a nugget of the inducing values,
    relative to ``k(0)``: the inducing values then include independent noise, and the
    bound remains a bound.

    Raises a ValueError also if there are no points, they are of another dimension than
    the inputs, or the jitter does not lie in [0, 1).
    """

    points: Float[Tensor, "m d"]
    _: KW_ONLY
    jitter: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = self.functionals.dimension
        if self.points.ndim != 2 or self.points.shape[1] != axes:
            raise ValueError(
                f"points must have shape (m, {axes}) like the inputs, got "
                f"{tuple(self.points.shape)}"
            )
        if not (len(self.points) and 0 <= self.jitter < 1):
            raise ValueError(
                f"expected at least one point and a jitter in [0, 1), got "
                f"{len(self.points)} and {self.jitter}"
            )
        self.points = self.points.to(torch.float64)

    def log_marginal(self) -> float:
        with torch.no_grad():
            return float(self._bound(self._solved[1]))

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        leaves = leaves_of(self.parameters())
        moved = self.with_parameters(leaves)
        with torch.enable_grad():
            bound = moved._bound(moved._sums(moved._factor()))
            bound.backward()
        return float(bound.detach()), gradients_of(leaves)

    @property
    def _width(self) -> int:
        return len(self.points)

    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        factor, sums = self._solved
        root = sums.root()
        weights = torch.cholesky_solve(sums.pull[:, None], root)[:, 0]
        cross = inducing_covariance(self.kernel, part, self.points)
        projected = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        kept = torch.linalg.solve_triangular(root, projected, upper=False)
        gained = (projected**2).sum(dim=0) - (kept**2).sum(dim=0)
        return weights @ projected, functional_variance(self.kernel, part) - gained

    @cached_property
    def _solved(self) -> tuple[Float[Tensor, "m m"], _Sums]:
        """Cholesky factor of ``K_uu``, and the sums."""
        with torch.no_grad():
            factor = self._factor()
            return factor, self._sums(factor)

    def _factor(self) -> Float[Tensor, "m m"]:
        K = point_covariance(self.kernel, self.points, self.points)
        nugget = self.jitter * torch.diagonal(K)
        factor, fault = torch.linalg.cholesky_ex(K + torch.diag(nugget))
        if int(fault):
            raise FloatingPointError(
                "the covariance of the inducing points is not positive definite in "
                f"double precision (row {int(fault)} of {len(K)}): raise jitter above "
                f"{self.jitter:g}, or take fewer points or a shorter lengthscale"
            )
        return factor

    def _sums(self, factor: Tensor) -> _Sums:
        """Add up block by block; autograd keeps only the sums of a block."""
        variance, residual, total = self.noise_variance, self.residual, None
        block = block_rows(len(self.points))
        if len(self) <= block:
            # At its first call `checkpoint` imports the compiler of torch for 3 s.
            return self._block_sums(factor, variance, residual, self.functionals)
        for rows, part in self.functionals.chunks(block):
            more = checkpoint(
                self._block_sums,
                *(factor, variance[rows], residual[rows], part),
                use_reentrant=False,
                preserve_rng_state=False,
            )
            total = more if total is None else _Sums(*map(torch.add, total, more))
        assert total is not None
        return total

    def _block_sums(
        self, factor: Tensor, variance: Tensor, residual: Tensor, part: Functionals
    ) -> _Sums:
        cross = inducing_covariance(self.kernel, part, self.points)
        scaled = cross / variance.sqrt()[:, None]
        A = torch.linalg.solve_triangular(factor, scaled.T, upper=False)
        return _Sums(
            gram=A @ A.T,
            pull=A @ (residual / variance.sqrt()),
            square=(residual**2 / variance).sum(),
            log_noise=variance.log().sum(),
            prior=(functional_variance(self.kernel, part) / variance).sum(),
        )

    def _bound(self, sums: _Sums) -> Tensor:
        root = sums.root()
        white = torch.linalg.solve_triangular(root, sums.pull[:, None], upper=False)
        determinant = sums.log_noise + 2 * root.diagonal().log().sum()
        fit = sums.square - (white**2).sum()
        constant = len(self) * math.log(2 * math.pi)
        missed = sums.prior - sums.gram.diagonal().sum()
        return -0.5 * (constant + determinant + fit + missed)
