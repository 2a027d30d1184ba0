r"""Exact Gaussian process regression by a dense Cholesky factor.

With ``A = K + diag(τ² + σ²)`` and ``r = y − L μ`` (Rasmussen & Williams 2006, eq. 2.30
and 5.9):

``log p(y) = −½ [ rᵀ A⁻¹ r + log det A + N log 2π ]``,
``∂ log p / ∂θ = ½ tr[ (α αᵀ − A⁻¹) ∂A/∂θ ]``, ``α = A⁻¹ r``.

Cost: ``N³`` per value, about three times as much with the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.covariance import functional_covariance, functional_variance
from dustmap.functionals import Functionals, PointValues
from dustmap.gp.regression import (
    MEAN,
    NOISE,
    ScoredRegression,
    block_rows,
    gradients_of,
    leaves_of,
)
from dustmap.kernels import Kernel, point_covariance
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.shapes import Draws, Pairs, Vector


@dataclass(eq=False)
class ExactGP(ScoredRegression):
    """The posterior without approximation, for up to some 8,000 observations.

    Memory: four matrices of N × N doubles. Parameters as in
    :class:`~dustmap.gp.regression.Regression`.
    """

    def log_marginal(self) -> float:
        factor, alpha = self._solved
        determinant = 2 * factor.diagonal().log().sum()
        constant = len(self) * math.log(2 * math.pi)
        return float(-0.5 * (self.residual @ alpha + determinant + constant))

    def value_and_gradient(self) -> tuple[float, dict[str, Tensor]]:
        factor, alpha = self._solved
        weights = -0.5 * torch.cholesky_inverse(factor)
        weights.addr_(alpha, alpha, alpha=0.5)
        leaves = leaves_of(self.kernel.parameters())
        moved = self.kernel.with_parameters(leaves)
        for rows, rest, block in _upper_blocks(moved, self.functionals):
            # Count the part right of the diagonal block twice, for its mirror image.
            twice = torch.full((block.shape[1],), 2.0, dtype=torch.float64)
            twice[: block.shape[0]] = 1.0
            (weights[rows, rest] * twice * block).sum().backward()
        gradient = gradients_of(leaves)
        gradient[NOISE] = weights.diagonal().sum()
        gradient[MEAN] = self.ones @ alpha
        return self.log_marginal(), gradient

    @torch.no_grad()
    def samples(self, functionals: Functionals, count: int, seed: int) -> Draws:
        """Draw ``L_* (μ + f)`` jointly ``count`` times. Cost: ``n³``, dense."""
        factor, _ = self._solved
        cross = _covariance(self.kernel, self.functionals, functionals)
        explained = torch.linalg.solve_triangular(factor, cross, upper=False)
        prior = _covariance(self.kernel, functionals, functionals)
        # It is singular at repeated places: Cholesky would need a jitter.
        values, vectors = torch.linalg.eigh(prior - explained.T @ explained)
        generator = torch_stream(seed, Purpose.SAMPLES)
        white = torch.randn(count, len(values), generator=generator, dtype=values.dtype)
        drawn = (white * values.clamp(min=0).sqrt()) @ vectors.T
        return self.predict(functionals).mean + drawn

    def _moments(self, part: Functionals) -> tuple[Tensor, Tensor]:
        factor, alpha = self._solved
        cross = _covariance(self.kernel, part, self.functionals)
        projected = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        prior = functional_variance(self.kernel, part)
        return cross @ alpha, prior - (projected**2).sum(dim=0)

    @cached_property
    def _solved(self) -> tuple[Float[Tensor, "n n"], Vector]:
        """Cholesky factor of A, and ``A⁻¹ r``."""
        with torch.no_grad():
            A = torch.empty(len(self), len(self), dtype=torch.float64)
            for rows, rest, block in _upper_blocks(self.kernel, self.functionals):
                A[rows, rest] = block
                A[rest, rows] = block.T
            A.diagonal().add_(self.noise_variance)
            factor, fault = torch.linalg.cholesky_ex(A)
            if int(fault):
                raise FloatingPointError(
                    "the covariance of the observations is not positive definite in "
                    f"double precision (row {int(fault)}): raise the noise above "
                    f"{float(self.noise):.3g}"
                )
            return factor, torch.cholesky_solve(self.residual[:, None], factor)[:, 0]


def _covariance(kernel: Kernel, left: Functionals, right: Functionals) -> Pairs:
    """Return ``Cov(L_n f, L_m f)``, directly for point values."""
    if isinstance(left, PointValues) and isinstance(right, PointValues):
        return point_covariance(kernel, left.points, right.points)
    return functional_covariance(kernel, left, right)


def _upper_blocks(
    kernel: Kernel, functionals: Functionals
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield rows of the covariance from the diagonal on: each pair once."""
    count = len(functionals)
    for rows, part in functionals.chunks(block_rows(count)):
        rest = functionals.select(torch.arange(rows.start, count))
        yield rows, slice(rows.start, count), _covariance(kernel, part, rest)
