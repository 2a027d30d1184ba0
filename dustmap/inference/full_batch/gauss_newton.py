r"""One Gauss–Newton step on ``½|ε|² + ½ Σ_n (y_n − apply(ε)_n)² / Σ_n``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, inner
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.space import WHOLE, VectorSpace
from dustmap.models.base import ForwardModel, Linearisation

OnStep = Callable[[str, int, float], None]

# Limit on halvings of a step.
_HALVINGS = 30


class Precision(LinearOperator):
    """``Λ = I + Φᵀ Σ⁻¹ Φ``, applied to rows."""

    def __init__(self, features: LinearOperator, noise_variance: Tensor) -> None:
        self.shape = (features.shape[1], features.shape[1])
        self.dtype = features.dtype
        self.device = features.device
        self.domain = features.domain
        self._features = features
        self._weights = (1.0 / noise_variance).to(features.dtype)

    def data_term(self, x: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """``Φᵀ Σ⁻¹ Φ x``."""
        return self._features.gram(x, self._weights)

    def matvec(self, x: Tensor) -> Tensor:
        return x + self.data_term(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``J(ε) = ½|ε − ξ|² + ½ Σ_n (y_n − apply(ε)_n)² / Σ_n``.

    Parameters
    ----------
    y
        Observations.
    total
        Σ, their noise variance.
    centre
        ξ, the mean of the prior of ε; zero if ``None``.
    space
        The space of ε.
    """

    y: Float[Tensor, " n"]
    total: Float[Tensor, " n"]
    centre: Float[Tensor, " p"] | None = None
    space: VectorSpace = WHOLE

    def beside(self, eps: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """``ε − ξ``."""
        return eps if self.centre is None else eps - self.centre

    def value(self, eps: Tensor, prediction: Float[Tensor, " n"]) -> float:
        """J, in float64."""
        misfit = (self.y - prediction) / self.total.sqrt()
        beside = self.beside(eps)
        return float(self.space.inner(beside, beside) + inner(misfit, misfit)) / 2

    def gradient(self, tangent: Linearisation, eps: Tensor) -> Float[Tensor, " p"]:
        """``−∂J/∂ε``, the gradient of the log posterior."""
        pull = tangent.operator.rmatvec((self.y - tangent.prediction) / self.total)
        return pull - self.beside(eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The end of a step, and the decrease of J; ``None`` if no length decreased it.

    ``expected_decrease`` is that of J along the tangent, ``½ δᵀ(−∂J/∂ε)``; ``solution``
    is the end of the full step.
    """

    eps: Float[Tensor, " p"]
    gain: float | None
    expected_decrease: float
    solution: Solution


def gauss_newton_step(
    model: ForwardModel,
    tangent: Linearisation,
    target: Target,
    eps: Float[Tensor, " p"],
    *,
    solver: ConjugateGradients,
    forcing: float,
    preconditioner: NystromPreconditioner | None,
    on_step: OnStep | None,
    stage: str,
    where: str,
) -> Step:
    """Solve ``Λ m = Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε) + ξ``, and move towards m.

    The solve starts at ε. Its relative tolerance is the solver's, or ``forcing`` times
    the relative gradient at ε if this is larger: far from the optimum the tangent does
    not merit an accurate solve (Eisenstat & Walker 1996).

    Parameters
    ----------
    stage
        Reported to ``on_step``.
    where
        Named in errors.

    Raises
    ------
    FloatingPointError
        If the solve or the objective is not finite.
    """
    shifted = target.y - tangent.prediction + tangent.operator.matvec(eps)
    rhs = tangent.operator.rmatvec(shifted / target.total)
    if target.centre is not None:
        rhs = rhs + target.centre
    space = tangent.operator.domain
    if forcing:
        gradient = target.gradient(tangent, eps)
        size = float((space.inner(gradient, gradient) / space.inner(rhs, rhs)).sqrt())
        # At a residual of 1 a solve would not start.
        solver = replace(solver, rtol=max(solver.rtol, min(forcing * size, 0.5)))
    solution = solver.solve(
        Precision(tangent.operator, target.total).matvec,
        rhs[None],
        preconditioner=preconditioner,
        start=eps[None] if space.any(eps) else None,
        on_step=named(on_step, stage),
        space=space,
    )
    require_finite(where, residual=solution.residual)
    return _backtrack(model, tangent, target, eps, solution, where)


def _backtrack(
    model: ForwardModel,
    tangent: Linearisation,
    target: Target,
    eps: Float[Tensor, " p"],
    solution: Solution,
    where: str,
) -> Step:
    """The longest of the step's halvings that decreases the objective sufficiently.

    Sufficient is a quarter of the decrease predicted by the gradient (Armijo 1966), up
    to rounding: a linear model, with half of it, takes the full step. Only at the
    shortest step must the objective be finite, since a density may overflow.
    """
    proposal = solution.value[0]
    step = proposal - eps
    along = tangent.operator.matvec(step)
    misfit = (target.y - tangent.prediction) / target.total
    beside = tangent.operator.domain.inner(target.beside(eps), step)
    change = float(beside - inner(misfit, along))
    before = target.value(eps, tangent.prediction)
    require_finite(f"{where}, before it", objective=before, directional_change=change)
    allowed = before + 100 * torch.finfo(eps.dtype).eps * before
    after = before
    for halvings in range(_HALVINGS):
        length = 0.5**halvings
        point = model.retract(eps, step, length) if halvings else proposal
        after = target.value(point, model.apply(point))
        if after <= allowed + 0.25 * length * change:
            return Step(
                eps=point,
                gain=before - after,
                expected_decrease=-change / 2,
                solution=solution,
            )
    require_finite(f"{where}, at its shortest", objective=after)
    return Step(eps=eps, gain=None, expected_decrease=-change / 2, solution=solution)


def named(on_step: OnStep | None, stage: str) -> Callable[[int, float], None] | None:
    """A solver's progress callback that reports the stage."""
    if on_step is None:
        return None
    return lambda step, residual: on_step(stage, step, residual)


def silent(on_step: OnStep | None, stage: str) -> Callable[[int, float], None] | None:
    """The same without the residual, which is then not recorded."""
    if on_step is None:
        return None
    return lambda step, _: on_step(stage, step, float("nan"))
