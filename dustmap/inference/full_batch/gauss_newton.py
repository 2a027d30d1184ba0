r"""Gauss–Newton steps on ``½|ε − ξ|² + ½ rᵀ Σ⁻¹ r``, ``r = y − apply(ε)``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.noise_covariance import NoiseCovariance
from dustmap.linalg.cg import ConjugateGradients, Solution
from dustmap.linalg.operator import LinearOperator, inner, ratio
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.linalg.space import WHOLE, VectorSpace
from dustmap.models.base import ForwardModel, Linearisation

OnStep = Callable[[str, int, float], None]

# Limit on halvings of a step.
_HALVINGS = 30
# Relative tolerance of the solve for the Newton decrement.
_ACCURATE = 0.01


def quiet(stage: str, step: int, value: float) -> None:
    """Progress callback that reports nothing."""


class Precision(LinearOperator):
    """``Λ = I + Φᵀ Σ⁻¹ Φ``, applied to rows."""

    def __init__(self, features: LinearOperator, noise: NoiseCovariance) -> None:
        self.shape = (features.shape[1], features.shape[1])
        self.dtype = features.dtype
        self.device = features.device
        self.domain = features.domain
        self._features = features
        self._noise = noise

    def data_term(self, x: Float[Tensor, "*batch p"]) -> Float[Tensor, "*batch p"]:
        """``Φᵀ Σ⁻¹ Φ x``."""
        return self._noise.gram(self._features, x)

    def matvec(self, x: Tensor) -> Tensor:
        return x + self.data_term(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.matvec(y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``J(ε) = ½|ε − ξ|² + ½ rᵀ Σ⁻¹ r`` with ``r = y − apply(ε)``.

    Parameters
    ----------
    y
        Observations.
    noise
        Σ, the covariance of their noise.
    centre
        ξ, the mean of the prior of ε; zero if ``None``.
    space
        The space of ε.
    """

    y: Float[Tensor, " n"]
    noise: NoiseCovariance
    centre: Float[Tensor, " p"] | None = None
    space: VectorSpace = WHOLE

    def beside(self, eps: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """``ε − ξ``."""
        return eps if self.centre is None else eps - self.centre

    def value(self, eps: Tensor, prediction: Float[Tensor, " n"]) -> float:
        """J, in float64."""
        misfit = self.noise.whitened(self.y - prediction)
        beside = self.beside(eps)
        return float(self.space.inner(beside, beside) + inner(misfit, misfit)) / 2

    def gradient(self, tangent: Linearisation, eps: Tensor) -> Float[Tensor, " p"]:
        """``−∂J/∂ε``, the gradient of the log posterior."""
        pull = self.noise.weighed(self.y - tangent.prediction)
        return tangent.operator.rmatvec(pull) - self.beside(eps)

    def right_side(self, tangent: Linearisation, eps: Tensor) -> Float[Tensor, " p"]:
        """``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε) + ξ``."""
        shifted = self.y - tangent.prediction + tangent.operator.matvec(eps)
        rhs = tangent.operator.rmatvec(self.noise.weighed(shifted))
        return rhs if self.centre is None else rhs + self.centre


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The end of a step, its tangent, and the decrease of J.

    The ``gain`` is ``None`` if no length decreased J. ``expected_decrease`` is that of
    J along the tangent, ``½ δᵀ(−∂J/∂ε)``; ``solution`` is the end of the full step.
    """

    eps: Float[Tensor, " p"]
    tangent: Linearisation
    gain: float | None
    expected_decrease: float
    solution: Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussNewton:
    """Gauss–Newton steps towards the minimum of one target.

    Parameters
    ----------
    forcing
        The tolerance of a solve relative to the gradient: far from the optimum the
        tangent does not merit an accurate solve (Eisenstat & Walker 1996). If zero,
        the solver's, relative to ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε) + ξ``.
    on_step, stage
        Called with the stage, iteration and worst relative residual of a solve.
    """

    model: ForwardModel
    target: Target
    solver: ConjugateGradients
    preconditioner: NystromPreconditioner | None = None
    forcing: float = 0.0
    on_step: OnStep = quiet
    stage: str = "mean"

    def step(
        self, tangent: Linearisation, eps: Float[Tensor, " p"], where: str
    ) -> Step:
        """Solve ``Λ δ = −∂J/∂ε`` at ε; move towards ``m = ε + δ``.

        Errors name ``where``.

        Raises
        ------
        FloatingPointError
            If the solve or the objective is not finite.
        """
        space, solver = tangent.operator.domain, self.solver
        gradient, unit = self.target.gradient(tangent, eps), 1.0
        if self.forcing:
            # An approximate answer does not merit the product of its true residual.
            solver = replace(solver, rtol=self.forcing, restarts=None)
        else:
            rhs = self.target.right_side(tangent, eps)
            sizes = [space.inner(x, x).sqrt() for x in (rhs, gradient)]
            unit = float(ratio(*sizes)) or 1.0
            solver = replace(solver, rtol=solver.rtol * unit)
        solution = solver.solve(
            Precision(tangent.operator, self.target.noise).matvec,
            gradient[None],
            preconditioner=self.preconditioner,
            on_step=functools.partial(self.on_step, self.stage),
            space=space,
        )
        require_finite(where, residual=solution.residual)
        step, residual = solution.value[0], solution.residual / unit
        solution = replace(solution, value=(eps + step)[None], residual=residual)
        change = -float(space.inner(gradient, step))
        return self._backtrack(tangent, eps, step, change, solution, where)

    def _backtrack(
        self,
        tangent: Linearisation,
        eps: Tensor,
        step: Tensor,
        change: float,
        solution: Solution,
        where: str,
    ) -> Step:
        """The longest of the step's halvings that decreases the objective sufficiently.

        Sufficient is a quarter of the ``change`` predicted by the gradient (Armijo
        1966), up to rounding: a linear model, with half of it, takes the full step.
        Only at the shortest step must the objective be finite, since a density may
        overflow.
        """
        before = after = self.target.value(eps, tangent.prediction)
        require_finite(
            f"{where}, before it", objective=before, directional_change=change
        )
        end = Step(
            eps=eps,
            tangent=tangent,
            gain=None,
            expected_decrease=-change / 2,
            solution=solution,
        )
        allowed = before + 100 * torch.finfo(eps.dtype).eps * before
        for halvings in range(_HALVINGS):
            length = 0.5**halvings
            point = self.model.retract(eps, step, length) if halvings else eps + step
            found = self.model.linearise(point)
            after = self.target.value(point, found.prediction)
            if after <= allowed + 0.25 * length * change:
                return replace(end, eps=point, tangent=found, gain=before - after)
        require_finite(f"{where}, at its shortest", objective=after)
        return end

    def decrement(self, eps: Float[Tensor, " p"]) -> float:
        """``½ gᵀ Λ⁻¹ g`` [nats], the expected gain of an accurate step from ε."""
        tangent = self.model.linearise(eps)
        gradient, space = self.target.gradient(tangent, eps), tangent.operator.domain
        solution = replace(self.solver, rtol=_ACCURATE).solve(
            Precision(tangent.operator, self.target.noise).matvec,
            gradient[None],
            preconditioner=self.preconditioner,
            # Without the residual, which is not part of the fit's record.
            on_step=lambda step, _: self.on_step("decrement", step, math.nan),
            space=space,
        )
        require_finite("Newton decrement", residual=solution.residual)
        return float(space.inner(gradient, solution.value[0])) / 2
