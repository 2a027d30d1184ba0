"""Gauss–Newton steps to the mode of a posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_fit import Fit
from dustmap.inference.gauss_newton import Precision, Target, backtrack, newton_step
from dustmap.inference.journal import (
    as_part,
    part,
    saved_solution,
    solution_of,
    solution_pattern,
)
from dustmap.inference.perturbed import FORCINGS, LEFT, decrement
from dustmap.journal import Pattern, State
from dustmap.linalg.cg import Solution
from dustmap.models.base import ForwardModel, Linearisation

# Far from the optimum a Gauss–Newton step is solved to this fraction of its residual.
_FORCING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Where Gauss–Newton steps led: their number, status and last solve."""

    eps: Float[Tensor, " p"]
    steps: int
    converged: bool
    solution: Solution

    def saved(self) -> State:
        """All of it."""
        own = {"eps": self.eps, "steps": self.steps, "converged": self.converged}
        return {**own, **saved_solution(self.solution)}

    @staticmethod
    def pattern(model: ForwardModel) -> Pattern:
        """What :meth:`saved` saves."""
        size = model.latent_size
        own: Pattern = {"eps": (model.dtype, (size,)), "steps": int, "converged": bool}
        return {**own, **solution_pattern(1, size, model.dtype)}

    @classmethod
    def taken_up(cls, known: dict[str, Any], device: torch.device) -> Mode:
        """The mode that was saved."""
        return cls(
            eps=known["eps"].to(device),
            steps=known["steps"],
            converged=known["converged"],
            solution=solution_of(known, device),
        )


def find_mode(
    fit: Fit,
    eps: Float[Tensor, " p"],
    *,
    fixed: Float[Tensor, " n"] | None = None,
    forcing: float = _FORCING,
    name: str = "mode",
) -> Mode:
    """Gauss–Newton steps from ε to the mode.

    Σ is brought up to date between them unless it is given. In the fit's journal the
    steps make a frame of this name.

    Raises
    ------
    FloatingPointError
        If a prediction, Σ, the objective or a solve is not finite.
    """
    with fit.journal.frame(name) as frame:
        vector = (eps.dtype, (len(eps),))
        count = (fit.model.dtype, (fit.count,))
        known = frame.take({"eps": vector, "total": count, "steps": int})
        if known is None:
            tangent, total = fit.tangent(eps)
            walk = _Walk(
                fit, forcing, tangent, eps, fixed if fixed is not None else total
            )
        else:
            eps = known["eps"].to(fit.model.device)
            tangent, total = fit.model.linearise(eps), known["total"].to(eps)
            walk = _Walk(fit, forcing, tangent, eps, total, known["steps"])
        frame.expose(walk.saved)
        return walk.to_the_end(reweigh=fixed is None)


class _Walk:
    """Steps to the mode: where they have come, and the tangent and Σ there."""

    def __init__(
        self,
        fit: Fit,
        forcing: float,
        tangent: Linearisation,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
        steps: int = 0,
    ) -> None:
        self.fit = fit
        self.forcing = forcing
        self.tangent = tangent
        self.eps = eps
        self.total = total
        self.steps = steps

    def saved(self) -> State:
        """Before a step, or within the solve of one."""
        return {"eps": self.eps, "total": self.total, "steps": self.steps}

    def to_the_end(self, *, reweigh: bool) -> Mode:
        """Steps until they gain nothing, little, or are too many."""
        fit = self.fit
        self._require_finite()
        while True:
            solution, gain = self._step()
            if reweigh:
                self.total = _reweighed(fit, self.tangent, self.eps, self.steps)
            self._require_finite()
            if not fit.inexact and not bool(solution.converged.all()):
                return self._mode(solution, converged=False)
            converged = _stationary(fit, self.tangent, self.total, self.eps, solution)
            if gain is None:
                return self._mode(solution, converged=converged)
            enough = fit.settings.newton_tolerance * fit.count
            little = fit.inexact and gain < enough and self.steps > 2
            if converged or little or self.steps >= fit.settings.newton_steps:
                return self._mode(solution, converged=converged or little)
            fit.journal.safe_point()

    def _step(self) -> tuple[Solution, float | None]:
        fit = self.fit
        if fit.sketching.worth_it(linear=fit.model.linear):
            fit.sketching.sketch_at(self.tangent, self.eps, self.total)
        target = Target(
            y=fit.weighing.observations,
            total=self.total,
            space=fit.model.latent_space,
        )
        solution = newton_step(
            self.tangent,
            Precision(self.tangent.operator, self.total),
            target,
            self.eps,
            solver=fit.settings.solver,
            forcing=self.forcing if fit.inexact else 0.0,
            preconditioner=fit.sketching.preconditioner,
            on_step=fit.on_step,
            journal=fit.journal,
        )
        fit.sketching.iterations += int(solution.iterations.max())
        step = backtrack(
            fit.model,
            self.tangent,
            target,
            self.eps,
            solution.value[0],
            journal=fit.journal,
        )
        self.eps, self.steps = step.eps, self.steps + 1
        self.tangent = fit.model.linearise(self.eps)
        return solution, step.gain

    def _require_finite(self) -> None:
        self.fit.journal.require_finite(
            f"step {self.steps}",
            prediction=self.tangent.prediction,
            unresolved_variance=self.tangent.variance,
            noise_variance=self.total,
        )

    def _mode(self, solution: Solution, *, converged: bool) -> Mode:
        return Mode(
            eps=self.eps, steps=self.steps, converged=converged, solution=solution
        )


def refined(fit: Fit, mode: Mode) -> Mode:
    """The mode where no samples follow: as much is left as is allowed for them.

    Its steps stop where rough solves gain little. What an accurate one says is left
    decides whether finer ones follow.
    """
    allowed = LEFT * fit.settings.newton_tolerance
    allowed *= fit.count
    # With a tolerance of zero the gradient alone has decided.
    if not mode.converged or not allowed:
        return mode
    finer = [forcing for forcing in FORCINGS if forcing < _FORCING]
    with fit.journal.frame("refined") as frame:
        known = frame.take(
            {"round": int, **Mode.pattern(fit.model)}, rest={"left": float}
        )
        number, left = 0, None
        if known is not None:
            mode, number = Mode.taken_up(known, fit.model.device), known["round"]
            left = part("rest", known).get("left")

        def saved() -> State:
            rest = {} if left is None else as_part("rest", {"left": left})
            return {"round": number, **mode.saved(), **rest}

        frame.expose(saved)
        while True:
            if left is None:
                left = _left(fit, mode)
                fit.journal.safe_point()
            if left <= allowed or number == len(finer):
                return replace(mode, converged=mode.converged and left <= allowed)
            again = find_mode(fit, mode.eps, forcing=finer[number])
            mode = replace(again, steps=mode.steps + again.steps)
            number, left = number + 1, None
            fit.journal.safe_point()


def _left(fit: Fit, mode: Mode) -> float:
    """What an accurate solve says could still be gained [nats]."""
    tangent, total = fit.tangent(mode.eps)
    return decrement(
        fit.model,
        Target(y=fit.weighing.observations, total=total),
        mode.eps,
        fit.settings.solver,
        fit.sketching.preconditioner,
        tangent=tangent,
        journal=fit.journal,
    )


def _reweighed(
    fit: Fit, tangent: Linearisation, eps: Tensor, steps: int
) -> Float[Tensor, " n"]:
    """Σ at the new ε; outliers are weighed down once most stars are fitted."""
    weighing = fit.weighing
    normal = weighing.normal(eps[None], tangent.variance)
    residual = weighing.observations - tangent.prediction
    squares = residual**2
    if weighing.settled(squares, normal):
        # What is set aside is not fitted, and no outlier for that.
        weighing.reweigh(residual, squares, weighing.without_aside(normal))
    total = weighing.weighted(normal)
    if fit.on_step is not None:
        fit.on_step("misfit", steps, float((squares / total).mean()))
    return total


def _stationary(
    fit: Fit,
    tangent: Linearisation,
    total: Float[Tensor, " n"],
    eps: Float[Tensor, " p"],
    solution: Solution,
) -> bool:
    """Whether the gradient is at the level the solver was asked for.

    It is measured against the right-hand side ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``, as
    the solver's own residual is; at most twice that, since the tangent moved.
    """
    y = fit.weighing.observations
    slope = Target(y=y, total=total).slope(tangent, eps)
    shifted = y - tangent.prediction + tangent.operator.matvec(eps)
    rhs = tangent.operator.rmatvec(shifted / total)
    space = fit.model.latent_space
    scale = space.inner(rhs, rhs).sqrt()
    residual = space.inner(slope, slope).sqrt()
    reached = fit.settings.solver.rtol
    # With a noise that depends on the field, solves stop early: theirs is no level.
    if not fit.inexact and bool(solution.converged.all()):
        reached = max(reached, float(solution.residual.max()))
    return float(residual) <= 2 * reached * float(scale)
