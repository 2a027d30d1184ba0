r"""A full-rank ``q(ε)`` whose natural steps factorise no P × P matrix.

Only the precision is kept, once and in place: α and β need ``k_nᵀ S k_n`` (one block
solve with S⁻¹ by conjugate gradients), the step of m one solve more: ``O(J P²)`` for J
iterations and each of the ``|B|`` + 1 right-hand sides (Pleiss et al. 2020, NeurIPS,
section 5.1). A factorisation takes ``P³/3`` operations, fewer than those for P below
some ``6 J |B|``: then take one block of all. The KL term and draws take one, too.
"""

from __future__ import annotations

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.blocks import BlockGaussian
from dustmap.inference.svi.gaussian import Batch, NaturalGaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.row_report import RowReport


class PrecisionGaussian(NaturalGaussian):
    """A full-rank ``q(ε)`` by its mean and precision, which steps change in place.

    Memory: ``8 P²`` bytes (800 MB for P = 10,000).

    Parameters
    ----------
    size
        P; q begins as the prior ``N(0, I)``.
    solver
        For everything that needs S; the diagonal is its preconditioner. ``kᵀ S k``
        comes out with the square of its tolerance, derivatives with the tolerance.
    device
        Of mean and precision.
    """

    def __init__(
        self,
        size: int,
        *,
        solver: ConjugateGradients,
        device: torch.device | str = "cpu",
    ) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.precision = torch.eye(size, dtype=torch.float64, device=device)
        self.solver = solver
        self.solves = RowReport()

    @property
    def full_rank(self) -> bool:
        return True

    def covariance_times(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, "b p"]:
        diagonal = self.precision.diagonal()
        solution = self.solver.solve(
            lambda x: x @ self.precision,
            rows,
            preconditioner=lambda x: x / diagonal,
        )
        self.solves = self.solves.with_solution(solution)
        return solution.value

    def quadratic(self, rows: Float[Tensor, "b p"]) -> Float[Tensor, " b"]:
        """``kᵀ S k`` of every row, differentiable in the rows.

        ``2 kᵀx − xᵀ S⁻¹ x`` with ``x ≈ S k``: its error is of second order in that of
        x, and its derivative by k is 2x.
        """
        x = self.covariance_times(rows.detach())
        square = (x * (x @ self.precision)).sum(dim=-1)
        return 2 * (rows * x).sum(dim=-1) - square

    def covariance_step(self, batch: Batch, rate: float) -> Self:
        """``S⁻¹ ← (1 − l) S⁻¹ + l Λ̂``, in place."""
        k = batch.features
        scaled = (rate * batch.weight)[:, None] * k
        self.precision.mul_(1 - rate)
        self.precision.diagonal().add_(rate)
        self.precision.addmm_(k.mT, scaled)
        return self

    def dense(self) -> BlockGaussian:
        """The same distribution, apart from this one, by a factorisation: ``O(P³)``."""
        index = torch.arange(len(self.mean), device=self.mean.device)
        return BlockGaussian(
            mean=self.mean, precision=self.precision[None].clone(), index=index[None]
        )

    def frozen(self) -> BlockGaussian:
        return self.dense()

    def divergence(self) -> float:
        return self.dense().divergence()

    def trace(self) -> Float[Tensor, ""]:
        return self.dense().trace()

    def log_determinant(self) -> Float[Tensor, ""]:
        return self.dense().log_determinant()

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "s p"]:
        """Draws of ε. Cost: ``O(P³)``."""
        return self.dense().sample(count, generator)
