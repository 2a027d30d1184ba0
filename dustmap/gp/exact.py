r"""Exact Gaussian process regression by a dense Cholesky factor.

With ``A = K + diag(τ² + σ²)`` and ``r = y − L μ`` (Rasmussen & Williams 2006, eq. 2.30
and 5.9):

``log p(y) = −½ [ rᵀ A⁻¹ r + log det A + N log 2π ]``,
``∂ log p / ∂θ = ½ tr[ (α αᵀ − A⁻¹) ∂A/∂θ ]``, ``α = A⁻¹ r``.

Cost: ``N³`` per value, about three times that with the gradient.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import functional_variance
from dustmap.functionals import Functionals
from dustmap.gp.dense import (
    BLOCK,
    covariance,
    covariance_gradient,
    symmetric_covariance,
)
from dustmap.gp.regression import MEAN, NOISE, Regression
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Kernel
from dustmap.models.means import ConstantMean

# Matrices of N × N doubles that are held at once.
_MATRICES = 4


class ExactGP(Regression):
    """The posterior without approximation, for up to some 8,000 observations.

    Parameters
    ----------
    kernel, functionals, observations, noise, mean, known_noise
        As in :class:`~dustmap.gp.regression.Regression`.
    memory_budget
        What the matrices may take [bytes].

    Raises
    ------
    ValueError
        Also if the matrices would not fit into ``memory_budget``.
    """

    def __init__(
        self,
        kernel: Kernel,
        functionals: Functionals,
        observations: Float[Tensor, " n"],
        *,
        noise: float | Tensor,
        mean: float | Tensor = 0.0,
        known_noise: Float[Tensor, " n"] | None = None,
        memory_budget: float = 4e9,
    ) -> None:
        count = len(functionals)
        needed = _MATRICES * 8.0 * count**2
        if needed > memory_budget:
            most = int(math.sqrt(memory_budget / _MATRICES / 8))
            raise ValueError(
                f"{count} observations need {needed:.3g} bytes for an exact solution, "
                f"the budget is {memory_budget:.3g}: take at most {most}, raise the "
                "budget, or use inducing points (SGPR)"
            )
        super().__init__(
            kernel,
            functionals,
            observations,
            noise=noise,
            mean=mean,
            known_noise=known_noise,
        )
        self.memory_budget = memory_budget
        self._solved: tuple[Tensor, Tensor] | None = None

    def log_marginal(self) -> float:
        factor, alpha = self._solve()
        return self._value(factor, alpha)

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        factor, alpha = self._solve()
        weights = -0.5 * torch.cholesky_inverse(factor)
        weights.addr_(alpha, alpha, alpha=0.5)
        gradient = covariance_gradient(self.kernel, self.functionals, weights)
        gradient[NOISE] = weights.diagonal().sum()
        gradient[MEAN] = self.ones @ alpha
        return self._value(factor, alpha), gradient

    def predict(self, functionals: Functionals) -> LatentMoments:
        """Posterior moments of ``L_* (μ + f)``. Cost: ``N²`` per functional."""
        factor, alpha = self._solve()
        means, variances = [], []
        offset = self.mean * ConstantMean(value=1.0).observed(functionals)
        with torch.no_grad():
            for _, part in functionals.chunks(max(1, BLOCK // len(self))):
                cross = covariance(self.kernel, part, self.functionals)
                projected = torch.linalg.solve_triangular(factor, cross.T, upper=False)
                prior = functional_variance(self.kernel, part)
                means.append(cross @ alpha)
                variances.append(prior - (projected**2).sum(dim=0))
        return LatentMoments(
            mean=offset + torch.cat(means), variance=torch.cat(variances)
        )

    def _solve(self) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
        """The Cholesky factor of A and ``A⁻¹ r``, kept."""
        if self._solved is None:
            with torch.no_grad():
                total = symmetric_covariance(self.kernel, self.functionals)
                total.diagonal().add_(self.noise_variance)
                factor, fault = torch.linalg.cholesky_ex(total)
                if int(fault):
                    raise ValueError(
                        "the covariance of the observations is not positive definite "
                        f"in double precision (row {int(fault)}): the noise of "
                        f"{float(self.noise):.3g} is too small beside the kernel's "
                        "variance, raise it"
                    )
                alpha = torch.cholesky_solve(self.residual[:, None], factor)[:, 0]
            self._solved = factor, alpha
        return self._solved

    def _value(self, factor: Tensor, alpha: Tensor) -> float:
        determinant = 2 * factor.diagonal().log().sum()
        constant = len(self) * math.log(2 * math.pi)
        return float(-0.5 * (self.residual @ alpha + determinant + constant))

    def _rebuilt(self, kernel: Kernel, noise: Tensor, mean: Tensor) -> Self:
        return type(self)(
            kernel,
            self.functionals,
            self.observations,
            noise=noise,
            mean=mean,
            known_noise=self.known_noise,
            memory_budget=self.memory_budget,
        )
