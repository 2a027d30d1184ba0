r"""One Gauss–Newton step on ``½|ε|² + ½ Σ_n (y_n − apply(ε)_n)² / Σ_n``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation

OnStep = Callable[[str, int, float], None]

# Of one Gauss–Newton step: 2⁻³⁰ of it is no step.
_HALVINGS = 30


class Precision(LinearOperator):
    """``Λ = I + Φᵀ Σ⁻¹ Φ``, applied to rows."""

    def __init__(self, features: LinearOperator, noise_variance: Tensor) -> None:
        self.shape = (features.shape[1], features.shape[1])
        self.dtype = features.dtype
        self.device = features.device
        self._features = features
        self._weights = (1.0 / noise_variance).to(features.dtype)

    def data_term(self, x: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """``Φᵀ Σ⁻¹ Φ x``."""
        return self._features.gram(x, self._weights)

    def matvec(self, x: Tensor) -> Tensor:
        return x + self.data_term(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)


def newton_step(
    tangent: Linearisation,
    precision: Precision,
    y: Float[Tensor, " n"],
    total: Float[Tensor, " n"],
    eps: Float[Tensor, " p"],
    *,
    solver: ConjugateGradients,
    forcing: float,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
) -> Solution:
    """Solve ``Λ m = Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``, warm-started at ε.

    The residual is brought to the solver's tolerance, or to ``forcing`` times that of ε
    if this is larger: far from the optimum a better solution of a wrong linear problem
    is wasted (Eisenstat & Walker 1996).
    """
    shifted = y - tangent.prediction + tangent.operator.matvec(eps)
    rhs = tangent.operator.rmatvec(shifted / total)
    if forcing:
        slope, _ = gradient(tangent, y, total, eps)
        size = float((inner(slope, slope) / inner(rhs, rhs)).sqrt())
        # A residual of 1 says that nothing is known yet.
        solver = replace(solver, rtol=max(solver.rtol, min(forcing * size, 0.5)))
    return solver.solve(
        precision.matvec,
        rhs[None],
        preconditioner=preconditioner,
        start=eps[None] if bool(eps.any()) else None,
        on_step=named(on_step, "mean"),
    )


def gradient(
    tangent: Linearisation, y: Tensor, total: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of the log posterior at ε, and the size of its data term."""
    pull = tangent.operator.rmatvec((y - tangent.prediction) / total)
    return pull - eps, inner(pull, pull).sqrt()


def objective(y: Tensor, total: Tensor, eps: Tensor, prediction: Tensor) -> float:
    """``½|ε|² + ½ Σ_n (y_n − apply(ε)_n)² / Σ_n`` in float64."""
    misfit = (y - prediction) / total.sqrt()
    return float(inner(eps, eps) + inner(misfit, misfit)) / 2


def backtrack(
    model: ForwardModel,
    tangent: Linearisation,
    y: Float[Tensor, " n"],
    total: Float[Tensor, " n"],
    eps: Float[Tensor, " p"],
    proposal: Float[Tensor, " p"],
) -> tuple[Float[Tensor, " p"], float | None]:
    """The longest of the step's halvings that lowers the objective enough.

    Enough is a quarter of what its slope promises (Armijo 1966), rounding allowed for:
    a linear model, which keeps half, takes the whole step. Returns ε and by how much
    the objective fell; ε as it was and ``None`` if no halving is good enough.
    """
    step = proposal - eps
    along = tangent.operator.matvec(step)
    slope = float(inner(eps, step) - inner((y - tangent.prediction) / total, along))
    before = objective(y, total, eps, tangent.prediction)
    allowed = before + 100 * torch.finfo(eps.dtype).eps * before
    for halvings in range(_HALVINGS):
        length = 0.5**halvings
        moved = model.moved(eps, step, length) if halvings else proposal
        after = objective(y, total, moved, model.apply(moved))
        if after <= allowed + 0.25 * length * slope:
            return moved, before - after
    return eps, None


def named(on_step: OnStep | None, stage: str) -> Callable[[int, float], None] | None:
    """The progress callback of a solver, with the stage's name."""
    if on_step is None:
        return None
    return lambda step, residual: on_step(stage, step, residual)
