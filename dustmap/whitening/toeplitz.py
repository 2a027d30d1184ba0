r"""HIP-GP's whitening on a box, through a positive circulant embedding.

``R`` consists of the box's rows of ``C^{1/2}``; ``k_n = Rᵀ K⁻¹ k_un`` (eq. 20) takes a
PCG solve. Features are differentiated as a whole: autograd for kernel and the square
root of the spectrum, the analytic derivative of :mod:`dustmap.linalg.toeplitz`
for the solve. (HIP-GP's S13–S16 cover the solve alone; without the derivative of R the
gradient is wrong.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import Kernel
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.circulant import Circulant
from dustmap.linalg.preconditioners import CirculantPreconditioner
from dustmap.linalg.toeplitz import (
    CirculantEmbedding,
    EmbeddingLimits,
    ToeplitzOperator,
    extend,
    first_column,
    restrict,
    toeplitz_solve,
)
from dustmap.shapes import Device, EpsBatch, Places
from dustmap.whitening.inducing import Features, Values, Whitening


@dataclass(eq=False, kw_only=True)
class ToeplitzWhitening(Whitening):
    r"""HIP-GP's whitening of a grid: ``u = R ε``, ``R = [first block row of C^{1/2}]``.

    Parameters
    ----------
    lengthscales
        Correlation length per axis; it determines which axis of the embedding grows.
    limits
        Limits of the embedding.
    solver
        Solver for ``K⁻¹``; ``max_steps`` is the paper's early stopping.
    shape
        Points of the embedding per axis; by default it grows as needed.
    device
        Device of the products (float64); the embedding is made on the CPU.
    """

    lengthscales: Sequence[float]
    limits: EmbeddingLimits | None = None
    solver: ConjugateGradients = field(default_factory=ConjugateGradients)
    shape: tuple[int, ...] | None = None
    device: Device = "cpu"

    def __post_init__(self) -> None:
        self.embedding = CirculantEmbedding(
            self.kernel,
            self.grid,
            lengthscales=self.lengthscales,
            nugget=self.nugget,
            limits=self.limits,
            shape=self.shape,
        )
        self.report = self.embedding.report
        positive = self.embedding.circulant.power(1.0)
        positive = positive.to(torch.float64, torch.device(self.device))
        self.root = positive.power(0.5)
        self.covariance = ToeplitzOperator(positive, self.grid)
        self.preconditioner = CirculantPreconditioner(positive, self.grid).matvec

    @property
    def grid(self) -> Grid:
        """The box."""
        if not isinstance(self.at, Grid):
            raise ValueError(
                "a circulant embedding needs a grid, got free points: use "
                "CholeskyWhitening"
            )
        return self.at

    @cached_property
    def points(self) -> Places:
        """The inducing points, the grid points of the box."""
        return self.grid.points().to(self.device)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of ε on its grid: the embedding's."""
        return self.embedding.torus.shape

    def with_kernel(self, kernel: Kernel) -> ToeplitzWhitening:
        """Return the same ε (embedding shape, nugget, solver) under another kernel."""
        return replace(self, kernel=kernel, shape=self.latent_shape)

    def with_gradients(self, kernel: Kernel) -> ToeplitzWhitening:
        """Return this whitening with features differentiable in an equal kernel.

        The shape of the embedding, and thus the meaning of ε, stays fixed.
        """
        other = copy.copy(self)
        other.kernel = kernel
        return other

    def colour(self, eps: EpsBatch) -> Values:
        """Return ``u = R ε``."""
        return restrict(self.root.matvec(eps), self.grid.shape, self.root)

    def colour_transpose(self, values: Values) -> EpsBatch:
        """Return ``Rᵀ v``."""
        return self.root.matvec(extend(values, self.grid.shape, self.root))

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """Return ``K⁻¹ v`` by PCG with the circulant preconditioner."""
        product = self.covariance.matvec
        return self.solver.solve(product, rhs, preconditioner=self.preconditioner)

    def features(self, cross: Float[Tensor, "b m"]) -> Features:
        """Return ``k_n = Rᵀ a_n`` (eq. 20), ``a_n = K⁻¹ k_un``, and the solve's status.

        The explained variance is ``2 a_nᵀ k_un − |k_n|²``, which early stopping can
        only reduce. Cost: one solve for each row, and another one for derivatives.
        """
        parameters = self.kernel.parameters().values()
        if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            column, root = self._differentiable_spectra()
            dual, solution = toeplitz_solve(column, cross, self.solve)
        else:
            root, solution = self.root, self.solve(cross)
            dual = solution.value
        features = root.matvec(extend(dual, self.grid.shape, root))
        explained = 2 * (dual * cross).sum(dim=-1) - (features**2).sum(dim=-1)
        return features, explained, solution

    def _differentiable_spectra(self) -> tuple[Float[Tensor, "*n"], Circulant]:
        """Return the column of K at the box's lags, and ``C^{1/2}``, as functions of θ.

        Modes that the embedding drops are dropped here: they have no square root.
        """
        torus = self.embedding.torus
        column = first_column(self.kernel, torus, self.nugget, self.device)
        circulant = Circulant.from_first_column(column)
        kept = torch.fft.irfftn(circulant.power(1.0).spectrum, s=torus.shape)
        inside = tuple(slice(0, n) for n in self.grid.shape)
        return kept[inside], circulant.power(0.5)
