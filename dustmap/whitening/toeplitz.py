r"""HIP-GP's whitening on a box, through a positive circulant embedding.

``R`` are the box's rows of ``C^{1/2}`` and ``k_n = Rᵀ K⁻¹ k_un`` (eq. 20) takes a PCG
solve.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import Kernel
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.preconditioners import CirculantPreconditioner
from dustmap.linalg.toeplitz import (
    CirculantEmbedding,
    EmbeddingLimits,
    ToeplitzOperator,
    extend,
    restrict,
)


class ToeplitzWhitening:
    r"""HIP-GP's whitening: ``u = R ε`` with ``R = [first block row of C^{1/2}]``.

    Parameters
    ----------
    kernel, grid
        The prior covariance of the inducing points.
    lengthscales
        Correlation length per axis: decides which axis of the embedding grows.
    nugget
        Added to ``k(0)`` of the inducing values.
    limits
        Of the embedding.
    solver
        For ``K⁻¹``; ``max_steps`` is the paper's early stopping.
    shape
        Of the embedding, if it is not to grow by itself.
    device
        Of the products (float64); the embedding is made on the CPU.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Grid,
        *,
        lengthscales: Sequence[float],
        nugget: float = 0.0,
        limits: EmbeddingLimits | None = None,
        solver: ConjugateGradients | None = None,
        shape: tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.kernel = kernel
        self.grid = grid
        self.nugget = nugget
        self.lengthscales = tuple(lengthscales)
        self.limits = limits
        self.embedding = CirculantEmbedding(
            kernel,
            grid,
            lengthscales=lengthscales,
            nugget=nugget,
            limits=limits,
            shape=shape,
        )
        self.report = self.embedding.report
        positive = self.embedding.circulant.power(1.0)
        positive = positive.to(torch.float64, self.device)
        self.root = positive.power(0.5)
        self.covariance = ToeplitzOperator(positive, grid)
        self.preconditioner = CirculantPreconditioner(positive, grid.shape)
        self.solver = ConjugateGradients() if solver is None else solver

    @property
    def size(self) -> int:
        """Length of ε: the embedding's points."""
        return self.embedding.torus.size

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of ε on its grid: the embedding's."""
        return self.embedding.torus.shape

    @property
    def points(self) -> Float[Tensor, "m d"]:
        """The inducing points, those of the box."""
        return self.grid.points().to(self.device)

    def with_kernel(self, kernel: Kernel) -> ToeplitzWhitening:
        """The same ε (embedding shape, nugget, solver) under another kernel."""
        return ToeplitzWhitening(
            kernel,
            self.grid,
            lengthscales=self.lengthscales,
            nugget=self.nugget,
            limits=self.limits,
            solver=self.solver,
            shape=self.embedding.torus.shape,
            device=self.device,
        )

    def colour(self, eps: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch m"]:
        """``u = R ε``."""
        return restrict(self.root.matvec(eps), self.grid.shape, self.root)

    def colour_transpose(
        self, values: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch p"]:
        """``Rᵀ v``."""
        return self.root.matvec(extend(values, self.grid.shape, self.root))

    def solve(self, rhs: Float[Tensor, "b m"]) -> Solution:
        """``K⁻¹ v`` by PCG with the circulant preconditioner."""
        return self.solver.solve(
            self.covariance.matvec, rhs, preconditioner=self.preconditioner
        )

    def features(
        self, cross: Float[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b p"], Solution]:
        """``k_n = Rᵀ K⁻¹ k_un`` (eq. 20) of a batch of rows, and the solve's status."""
        solution = self.solve(cross)
        return self.colour_transpose(solution.value), solution
