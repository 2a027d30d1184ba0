r"""Curvature of the evidence in log hyperparameters, without traces.

With ``C = Φ Φᵀ + Σ``, ``α = C⁻¹ (y − Lμ)`` and ``a_i = (∂C/∂θ_i) α`` the average of
observed and expected information is ``½ a_iᵀ C⁻¹ a_j`` for parameters of the covariance
(Gilmour, Thompson & Cullis 1995, Biometrics 51, 1440); for those of the mean it is
Fisher's ``h_iᵀ C⁻¹ h_j``, ``h_i = ∂(Lμ)/∂θ_i``. Every parameter is taken to change
both, and both derivatives are forward differences.

The samples of a model that is not linear do not solve its tangent's problem, and what α
then has outside the range of C⁻¹ its features would blow up. There the information is
that of ε and θ together with ε eliminated: ``h_i = ∂ apply_θ(m)/∂θ_i`` with m held
fixed, and ``a_i = (∂Σ/∂θ_i) Σ⁻¹ (y − apply)`` of the noise alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch import Precision
from dustmap.inference.scales.evidence_gradient import scatter
from dustmap.inference.scales.hyperpoint import Direction, Hyperpoint
from dustmap.inference.scales.learning_solve import (
    CountedOperator,
    Samples,
    State,
    galerkin_start,
    within,
)
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.operator import inner
from dustmap.models.base import Linearisation

# Change of a logarithm for the forward differences: the information and the errors
# that follow from it are good to about this.
_STEP = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """How the model answers to a change of each direction, at a fixed ε.

    ``covariance`` holds ``a_i``, ``mean`` holds ``h_i``; ``scatter`` is the covariance
    of the evidence's gradient over draws of its samples; ``products`` counts
    vectors that Φ or Φᵀ was applied to.
    """

    covariance: Float[Tensor, "k n"]
    mean: Float[Tensor, "k n"]
    scatter: Float[Tensor, "k k"]
    products: int


def responses(
    point: Hyperpoint,
    directions: Sequence[Direction],
    state: State,
    samples: Samples,
    weights: Float[Tensor, " n"],
    sigma2: Float[Tensor, " n"],
) -> Responses:
    """Forward differences of the tangent along every direction; ``weights`` are α."""
    noise = point.noise(sigma2)
    # Σ_θ is this sum with or without its second part.
    subgrid = float(samples.subgrid_noise)
    total = noise + subgrid * state.tangent.variance
    linear = state.draws is not None
    here = state.tangent if linear else point.model.linearise(state.mean)
    start = _parts(here, total, weights, state.mean, linear=linear)
    first = samples.values(point, state.tangent, noise)
    # Rounding of predictions that do not depend on a parameter is no response, and
    # solving for it would cost as much as for one that is.
    rounding = 100 * torch.finfo(state.mean.dtype).eps * state.tangent.prediction.norm()
    covariance, mean, values = [], [], []
    for direction in directions:
        moved = point.moved([direction], [_STEP])
        same = moved.model is point.model
        tangent = here if same else moved.model.linearise(state.mean)
        noise = moved.noise(sigma2)
        total = noise + subgrid * tangent.variance
        there = _parts(tangent, total, weights, state.mean, linear=linear)
        covariance.append((there[0] - start[0]) / _STEP)
        change = there[1] - start[1]
        change = torch.zeros_like(change) if change.norm() <= rounding else change
        mean.append(change / _STEP)
        values.append(samples.values(moved, tangent, noise))
    return Responses(
        covariance=torch.stack(covariance),
        mean=torch.stack(mean),
        scatter=scatter(first, values, _STEP),
        products=(1 + len(directions)) * (3 + samples.products),
    )


def residual_weights(
    state: State, observations: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """``Σ⁻¹ (y − apply)``: α of a linear model if m solves its problem."""
    misfit = observations.to(torch.float64) - state.tangent.prediction.to(torch.float64)
    return misfit / state.total_variance.to(torch.float64)


def _parts(
    tangent: Linearisation,
    total: Tensor,
    weights: Tensor,
    mean: Tensor,
    *,
    linear: bool,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """What is differentiated: ``C_θ α`` and mean, or ``Σ_θ α`` and ``apply_θ(m)``."""
    prediction = tangent.prediction.to(torch.float64)
    if not linear:
        return total * weights, prediction
    back = tangent.operator.rmatvec(weights.to(mean.dtype))
    both = tangent.operator.matvec(torch.stack([back, mean])).to(torch.float64)
    return both[0] + total * weights, prediction - both[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """The average information, the solves behind it, and what became of them."""

    matrix: Float[Tensor, "k k"]
    solutions: Float[Tensor, "b p"]
    products: int
    converged: bool


def average_information(
    state: State,
    change: Responses,
    solver: ConjugateGradients,
    residual: float,
    start: Float[Tensor, "b p"] | None = None,
) -> Information:
    """``h_iᵀ C⁻¹ h_j + ½ a_iᵀ C⁻¹ a_j`` from one block of solves with Λ.

    ``bᵀ C⁻¹ c = (b − Φ x_b)ᵀ Σ⁻¹ (c − Φ x_c) + x_bᵀ x_c`` with
    ``x_b = Λ⁻¹ Φᵀ Σ⁻¹ b``: sums of squares, so that nothing cancels, the matrix is
    positive semi-definite whatever the solver did, and its error is squared.

    Parameters
    ----------
    solver, residual
        Solves stop at a residual of this norm: its square bounds the matrix's error.
    start
        The solutions at another θ.
    """
    operator = CountedOperator(state.tangent.operator)
    precision = Precision(operator, state.total_variance)
    total = state.total_variance.to(torch.float64)
    b = torch.cat([change.covariance, change.mean])
    rhs = operator.rmatvec((b / total).to(operator.dtype))
    sizes = inner(rhs, rhs).sqrt()
    # Zero solves a column this small to the residual allowed, which relative to itself
    # may be out of the precision's reach.
    rhs = torch.where((sizes > residual)[:, None], rhs, torch.zeros_like(rhs))
    first = None if start is None else galerkin_start(precision, start, rhs)
    solution = within(solver, residual, rhs).solve(
        precision.matvec, rhs, preconditioner=state.preconditioner, start=first
    )
    x = solution.value.to(torch.float64)
    left = b - operator.matvec(solution.value).to(torch.float64)
    gram = (left / total) @ left.mT + x @ x.mT
    k = len(change.covariance)
    return Information(
        matrix=0.5 * gram[:k, :k] + gram[k:, k:],
        solutions=solution.value,
        products=operator.count,
        converged=bool((solution.residual * sizes <= 1.01 * residual).all()),
    )
