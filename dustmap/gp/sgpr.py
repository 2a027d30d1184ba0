r"""Sparse regression with the collapsed bound of Titsias (2009, AISTATS, eq. 9).

With ``K_uu = L Lᵀ``, ``Σ = diag(τ² + σ²)``, ``A = L⁻¹ K_un Σ^{-1/2}``,
``B = I + A Aᵀ`` and ``c = A Σ^{-1/2} r``:

``log p(y) ≥ log N(r | 0, Q + Σ) − ½ Σ_n (k_nn − q_nn)/Σ_n
= −½ [ N log 2π + log det Σ + log det B + rᵀ Σ⁻¹ r − cᵀ B⁻¹ c ]
− ½ [ Σ_n k_nn/Σ_n − tr A Aᵀ ]``.

Everything that grows with N is a sum over observations: the bound takes one pass over
them in blocks, its gradient a second one that makes each block anew (checkpointing), so
that memory does not grow with N. Cost: ``N M²`` per value, four times that with the
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dustmap.covariance import functional_variance
from dustmap.functionals import Functionals
from dustmap.gp.dense import BLOCK, leaf_gradient
from dustmap.gp.regression import MEAN, NOISE, Regression
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Kernel
from dustmap.models.means import ConstantMean
from dustmap.models.rowwise import cross_covariance
from dustmap.whitening import point_covariance


class _Sums(NamedTuple):
    """What the bound needs of all observations."""

    gram: Float[Tensor, "m m"]
    """``A Aᵀ``."""
    pull: Float[Tensor, " m"]
    """``A Σ^{-1/2} r``."""
    square: Float[Tensor, ""]
    """``rᵀ Σ⁻¹ r``."""
    log_noise: Float[Tensor, ""]
    """``log det Σ``."""
    prior: Float[Tensor, ""]
    """``Σ_n k_nn/Σ_n``."""


class SGPR(Regression):
    """Regression through M inducing values ``u_m = f(z_m)``.

    Parameters
    ----------
    kernel, functionals, observations, noise, mean, known_noise
        As in :class:`~dustmap.gp.regression.Regression`.
    points
        ``z_m``, held fixed.
    jitter
        A nugget of the inducing values, relative to ``k(0)``. They are then values of
        the field plus independent noise, and the bound stays a bound.

    Raises
    ------
    ValueError
        Also if there are no points, they are of another dimension than the inputs, or
        the jitter does not lie in [0, 1).
    """

    def __init__(
        self,
        kernel: Kernel,
        functionals: Functionals,
        observations: Float[Tensor, " n"],
        points: Float[Tensor, "m d"],
        *,
        noise: float | Tensor,
        mean: float | Tensor = 0.0,
        known_noise: Float[Tensor, " n"] | None = None,
        jitter: float = 1e-8,
    ) -> None:
        super().__init__(
            kernel,
            functionals,
            observations,
            noise=noise,
            mean=mean,
            known_noise=known_noise,
        )
        if points.ndim != 2 or points.shape[1] != functionals.dimension:
            raise ValueError(
                f"points must have shape (m, {functionals.dimension}) like the inputs, "
                f"got {tuple(points.shape)}"
            )
        if not (len(points) and 0 <= jitter < 1):
            raise ValueError(
                f"at least one point and a jitter in [0, 1) are needed, got "
                f"{len(points)} and {jitter}"
            )
        self.points = points.to(torch.float64)
        self.jitter = jitter
        self._solved: tuple[Tensor, _Sums] | None = None

    def log_marginal(self) -> float:
        with torch.no_grad():
            return float(self._bound(self._solve()[1]))

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        values: list[float] = []

        def pull(own: Mapping[str, Tensor]) -> None:
            kernel = self.kernel.with_parameters(
                {n: own[n] for n in self.kernel.parameters()}
            )
            factor = self._factor(kernel)
            value = self._bound(self._sums(kernel, own[NOISE], own[MEAN], factor))
            values.append(float(value.detach()))
            value.backward()

        gradient = leaf_gradient(self.parameters(), pull)
        return values[0], gradient

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Posterior moments of ``L_* (μ + f)``. Cost: ``M²`` per functional."""
        factor, sums = self._solve()
        means, variances = [], []
        offset = self.mean * ConstantMean(value=1.0).observed(functionals)
        with torch.no_grad():
            root = torch.linalg.cholesky(_plus_identity(sums.gram))
            weights = torch.cholesky_solve(sums.pull[:, None], root)[:, 0]
            for _, part in functionals.chunks(self._rows):
                cross = cross_covariance(self.kernel, part, self.points)
                projected = torch.linalg.solve_triangular(factor, cross.T, upper=False)
                kept = torch.linalg.solve_triangular(root, projected, upper=False)
                prior = functional_variance(self.kernel, part)
                means.append(weights @ projected)
                gained = (projected**2).sum(dim=0) - (kept**2).sum(dim=0)
                variances.append(prior - gained)
        return LatentMoments(
            mean=offset + torch.cat(means), variance=torch.cat(variances)
        )

    @property
    def _rows(self) -> int:
        return max(1, BLOCK // len(self.points))

    def _solve(self) -> tuple[Float[Tensor, "m m"], _Sums]:
        """The factor of ``K_uu`` and the sums, kept."""
        if self._solved is None:
            with torch.no_grad():
                factor = self._factor(self.kernel)
                total = self._sums(self.kernel, self.noise, self.mean, factor)
            self._solved = factor, total
        return self._solved

    def _factor(self, kernel: Kernel) -> Float[Tensor, "m m"]:
        K = point_covariance(kernel, self.points, self.points)
        nugget = self.jitter * torch.diagonal(K)
        factor, fault = torch.linalg.cholesky_ex(K + torch.diag(nugget))
        if int(fault):
            raise ValueError(
                "the covariance of the inducing points is not positive definite in "
                f"double precision (row {int(fault)} of {len(K)}): raise jitter above "
                f"{self.jitter:g}, or take fewer points or a shorter lengthscale"
            )
        return factor

    def _sums(
        self, kernel: Kernel, noise: Tensor, mean: Tensor, factor: Tensor
    ) -> _Sums:
        """Over all observations; of a block autograd keeps the sums alone."""
        parts = (
            checkpoint(
                self._block_sums,
                *(kernel, noise, mean, factor, rows, part),
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for rows, part in self.functionals.chunks(self._rows)
        )
        total = next(parts)
        for more in parts:
            total = _Sums(*(a + b for a, b in zip(total, more, strict=True)))
        return total

    def _block_sums(
        self,
        kernel: Kernel,
        noise: Tensor,
        mean: Tensor,
        factor: Tensor,
        rows: slice,
        part: Functionals,
    ) -> _Sums:
        variance = noise + self.known_noise[rows]
        residual = self.observations[rows] - mean * self.ones[rows]
        cross = cross_covariance(kernel, part, self.points) / variance.sqrt()[:, None]
        A = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        return _Sums(
            gram=A @ A.T,
            pull=A @ (residual / variance.sqrt()),
            square=(residual**2 / variance).sum(),
            log_noise=variance.log().sum(),
            prior=(functional_variance(kernel, part) / variance).sum(),
        )

    def _bound(self, sums: _Sums) -> Tensor:
        root = torch.linalg.cholesky(_plus_identity(sums.gram))
        white = torch.linalg.solve_triangular(root, sums.pull[:, None], upper=False)
        determinant = sums.log_noise + 2 * root.diagonal().log().sum()
        fit = sums.square - (white**2).sum()
        constant = len(self) * math.log(2 * math.pi)
        missed = sums.prior - sums.gram.diagonal().sum()
        return -0.5 * (constant + determinant + fit + missed)

    def _rebuilt(self, kernel: Kernel, noise: Tensor, mean: Tensor) -> Self:
        return type(self)(
            kernel,
            self.functionals,
            self.observations,
            self.points,
            noise=noise,
            mean=mean,
            known_noise=self.known_noise,
            jitter=self.jitter,
        )


def _plus_identity(gram: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    return gram + torch.eye(len(gram), dtype=gram.dtype)
