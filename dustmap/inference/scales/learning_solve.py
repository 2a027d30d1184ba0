r"""The posterior at one point of the hyperparameters, as learning needs it.

Mean and antithetic deviations of a linear model from one block of conjugate gradients,
with the same white noise at every θ: the sampled objective is then smooth in θ, and the
answer at one θ is a start for the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch import Precision
from dustmap.inference.scales.hyperpoint import Hyperpoint
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A posterior (or its approximation ``m ± δ``) at one θ.

    Parameters
    ----------
    mean
        m, or the mode.
    deltas
        Draws of ``ε − m``, used with both signs.
    total_variance
        What the observations were weighted with, sub-grid noise included.
    tangent
        Of the model at m.
    draws
        For a linear model, the draws ``w_s ~ N(0, C⁻¹)`` that belong to the deviations:
        with them the gradient scatters less
        (:mod:`dustmap.inference.scales.dual_gradient`).
    preconditioner
        Of Λ, if there is one.
    products
        Vectors that Φ or Φᵀ was applied to for this.
    converged
        Whether the solver says so.
    """

    mean: Float[Tensor, " p"]
    deltas: Float[Tensor, "s p"]
    total_variance: Float[Tensor, " n"]
    tangent: Linearisation
    draws: Float[Tensor, "s n"] | None = None
    preconditioner: NystromPreconditioner | None = None
    products: int = 0
    converged: bool = True


class Samples(Protocol):
    """What the gradient and its scatter are computed from, at one θ."""

    @property
    def subgrid_noise(self) -> bool:
        """Whether ``v_n`` is part of the noise."""
        ...

    @property
    def products(self) -> int:
        """Vectors that Φ or Φᵀ is applied to by :meth:`values`."""
        ...

    @property
    def gradient_products(self) -> int:
        """The same of :meth:`gradient`."""
        ...

    def gradient(
        self, point: Hyperpoint, tangent: Linearisation
    ) -> dict[str, Float[Tensor, "..."]]:
        """``∂/∂ log θ`` for every hyperparameter, entry by entry."""
        ...

    def values(
        self, point: Hyperpoint, tangent: Linearisation, noise: Float[Tensor, " n"]
    ) -> Float[Tensor, " s"]:
        """The part of the objective that scatters, at another θ."""
        ...


# Model, σ² + τ² and the state at a θ nearby (if any) to the state at the model's θ.
Solve = Callable[[ForwardModel, Tensor, State | None], State]


@dataclass(eq=False)
class CountedOperator(LinearOperator):
    """An operator that counts the vectors it is applied to, from either side."""

    inside: LinearOperator
    count: int = field(default=0)

    def __post_init__(self) -> None:
        self.shape = self.inside.shape
        self.dtype = self.inside.dtype
        self.device = self.inside.device

    def matvec(self, x: Tensor) -> Tensor:
        self.count += x.numel() // x.shape[-1]
        return self.inside.matvec(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        self.count += y.numel() // y.shape[-1]
        return self.inside.rmatvec(y)

    def gram(self, x: Tensor, weights: Tensor) -> Tensor:
        self.count += 2 * (x.numel() // x.shape[-1])
        return self.inside.gram(x, weights)


class LinearSolve:
    """:data:`Solve` for models that are linear in ε.

    Parameters
    ----------
    observations
        ``y_n``.
    pairs
        S, the number of deviations.
    subgrid_noise
        Whether ``v_n`` is part of the noise.
    solver, residual
        Conjugate gradients on Λ, until the residual of m has at most this norm.
    preconditioner_rank
        Of the Nyström preconditioner, built anew at every θ; 0 for none.
    seed
        Of the white noise, the same at every θ.
    """

    def __init__(
        self,
        observations: Float[Tensor, " n"],
        *,
        pairs: int,
        subgrid_noise: bool,
        solver: ConjugateGradients,
        residual: float,
        preconditioner_rank: int,
        seed: int,
    ) -> None:
        self.observations = observations
        self.pairs = pairs
        self.subgrid_noise = subgrid_noise
        self.solver = solver
        self.residual = residual
        self.preconditioner_rank = preconditioner_rank
        self.seed = seed

    def __call__(
        self,
        model: ForwardModel,
        noise: Float[Tensor, " n"],
        start: State | None,
    ) -> State:
        model.latent_space.require_whole("learning")
        zero = torch.zeros(model.latent_size, dtype=model.dtype, device=model.device)
        tangent = model.linearise(zero)
        operator = CountedOperator(tangent.operator)
        total = noise.to(tangent.variance)
        if self.subgrid_noise:
            total = total + tangent.variance
        precision = Precision(operator, total)
        generator = torch.Generator().manual_seed(self.seed)
        preconditioner = self._preconditioner(precision, generator)
        pulled, eta = self._right_hand_sides(operator, tangent.prediction, total)
        first = None
        if start is not None:
            near = torch.cat([start.mean[None], start.deltas])
            first = galerkin_start(precision, near, pulled)
        # An error of the draws is shared by all of them; a percent of them is enough.
        limits = (self.residual, 0.01 * len(total) ** 0.5)
        solutions = [
            within(self.solver, limit, pulled[part]).solve(
                precision.matvec,
                pulled[part],
                preconditioner=preconditioner,
                start=None if first is None else first[part],
            )
            for limit, part in zip(limits, (slice(0, 1), slice(1, None)), strict=True)
        ]
        mean, deltas = solutions[0].value[0], solutions[1].value
        seen = operator.matvec(torch.cat([mean[None], deltas]))
        return State(
            mean=mean,
            deltas=deltas,
            total_variance=total,
            tangent=Linearisation(
                prediction=tangent.prediction + seen[0],
                operator=tangent.operator,
                variance=tangent.variance,
            ),
            draws=eta / total.sqrt() - seen[1:] / total,
            preconditioner=preconditioner,
            products=operator.count,
            converged=all(bool(part.converged.all()) for part in solutions),
        )

    def _preconditioner(
        self, precision: Precision, generator: torch.Generator
    ) -> NystromPreconditioner | None:
        rank = min(self.preconditioner_rank, precision.shape[0])
        if rank == 0:
            return None
        return NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            rank,
            generator,
            dtype=precision.dtype,
            device=precision.device,
        )

    def _right_hand_sides(
        self, operator: LinearOperator, offset: Tensor, total: Tensor
    ) -> tuple[Float[Tensor, "s1 p"], Float[Tensor, "s n"]]:
        """``Φᵀ Σ⁻¹ (y − Lμ)`` above ``Φᵀ Σ^{-1/2} η_s + ξ_s``, and the η_s."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        n, p = operator.shape
        eta = torch.randn(self.pairs, n, generator=generator, dtype=torch.float64)
        xi = torch.randn(self.pairs, p, generator=generator, dtype=torch.float64)
        eta = eta.to(total)
        centred = (self.observations.to(offset) - offset) / total
        pulled = operator.rmatvec(torch.cat([centred[None], eta / total.sqrt()]))
        return torch.cat([pulled[:1], pulled[1:] + xi.to(pulled)]), eta


def within(
    solver: ConjugateGradients, residual: float, rhs: Float[Tensor, "b p"]
) -> ConjugateGradients:
    """The solver with a tolerance at which no residual's norm exceeds ``residual``.

    A residual r of ``Λ x = b`` stands for an error of the energy of at most ``|r|²``,
    ``Λ ≥ I``: an absolute number, in nats. Relative to b it says little, since b grows
    with the signal-to-noise ratio and the answer does not.
    """
    largest = float(inner(rhs, rhs).max().sqrt())
    if largest == 0.0:
        return solver
    return replace(solver, rtol=min(solver.rtol, residual / largest))


def galerkin_start(
    precision: LinearOperator,
    basis: Float[Tensor, "k p"],
    rhs: Float[Tensor, "b p"],
) -> Float[Tensor, "b p"]:
    """The best combinations of some vectors: ``Vᵀ (V Λ Vᵀ)⁻¹ V b``.

    Of all vectors in their span these are nearest to ``Λ⁻¹ b`` in the norm that
    conjugate gradients decrease. Cost: one product per vector.
    """
    images = precision.matvec(basis).to(torch.float64)
    wide = basis.to(torch.float64)
    gram = wide @ images.mT
    values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    # Vectors that depend on the others to rounding have nothing to add.
    kept = values > 1e-10 * values.max()
    half = vectors[:, kept] / values[kept].sqrt()
    coefficients = (rhs.to(torch.float64) @ wide.mT) @ half @ half.mT
    return (coefficients @ wide).to(rhs)
