"""Gauss–Newton steps to the mode of a posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.gauss_newton import Step, Target, gauss_newton_step
from dustmap.linalg.cg import Solution
from dustmap.models.base import Linearisation

# Tolerance of a solve relative to the gradient, far from the optimum.
FORCING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """A search for the mode between two steps: ε, its Σ, and the number of steps."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The end of the Gauss–Newton steps: their number, status and last solve.

    ``refinements`` counts searches with finer solves.
    """

    eps: Float[Tensor, " p"]
    steps: int
    converged: bool
    solution: Solution
    refinements: int = 0


def find_mode(
    fit: Fit,
    eps: Float[Tensor, " p"],
    *,
    fixed: Float[Tensor, " n"] | None = None,
    forcing: float = FORCING,
    name: str = "mode",
    save: Callable[[Iterate], None],
    restored: Iterate | None = None,
) -> Mode:
    """Gauss–Newton steps to the mode, from ε or from a restored iterate.

    Σ is updated between steps unless ``fixed``. ``name`` appears in errors.

    Raises
    ------
    FloatingPointError
        If a prediction, Σ, the objective or a solve is not finite.
    """
    if restored is not None:
        tangent = fit.model.linearise(restored.eps)
        at = restored
    else:
        tangent, total = fit.tangent(eps)
        at = Iterate(eps=eps, total=total if fixed is None else fixed)
    loop = GaussNewtonLoop(fit, tangent, at, forcing=forcing, name=name)
    return loop.run(save, reweigh=fixed is None)


class GaussNewtonLoop:
    """Gauss–Newton steps: the current iterate and its tangent."""

    def __init__(
        self,
        fit: Fit,
        tangent: Linearisation,
        at: Iterate,
        *,
        forcing: float,
        name: str,
    ) -> None:
        self.fit = fit
        self.tangent = tangent
        self.at = at
        self._forcing = forcing
        self._name = name

    def run(self, save: Callable[[Iterate], None], *, reweigh: bool) -> Mode:
        """Step until the gradient or the gain is small, or the limit is reached."""
        fit = self.fit
        self._require_finite()
        while True:
            step = self._step()
            if reweigh:
                self._reweigh()
            self._require_finite()
            if not fit.inexact and not bool(step.solution.converged.all()):
                return self._mode(step, converged=False)
            converged = self._stationary(step.solution)
            if step.gain is None:
                return self._mode(step, converged=converged)
            enough = fit.settings.newton_tolerance * fit.count
            little = fit.inexact and step.gain < enough and self.at.steps > 2
            if converged or little or self.at.steps >= fit.settings.newton_steps:
                return self._mode(step, converged=converged or little)
            save(self.at)

    def _step(self) -> Step:
        fit, at = self.fit, self.at
        if fit.cache.worth_it(linear=fit.model.linear):
            fit.cache.make(self.tangent, at.eps, at.total)
        target = Target(
            y=fit.noise.observations, total=at.total, space=fit.model.latent_space
        )
        step = gauss_newton_step(
            fit.model,
            self.tangent,
            target,
            at.eps,
            solver=fit.settings.solver,
            forcing=self._forcing if fit.inexact else 0.0,
            preconditioner=fit.cache.preconditioner,
            on_step=fit.on_step,
            stage="mean",
            where=f"{self._name}, step {at.steps}",
        )
        fit.cache.iterations += int(step.solution.iterations.max())
        self.at = Iterate(eps=step.eps, total=at.total, steps=at.steps + 1)
        self.tangent = fit.model.linearise(step.eps)
        return step

    def _reweigh(self) -> None:
        """Σ at the new ε."""
        fit, at = self.fit, self.at
        total, misfit = fit.noise.update_at(at.eps, self.tangent)
        if fit.on_step is not None:
            fit.on_step("misfit", at.steps, misfit)
        self.at = Iterate(eps=at.eps, total=total, steps=at.steps)

    def _stationary(self, solution: Solution) -> bool:
        """Whether the gradient is within the solver's tolerance.

        Like the solver's residual it is relative to ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``; a
        factor of two allows for the change of the tangent.
        """
        fit, at, tangent = self.fit, self.at, self.tangent
        y = fit.noise.observations
        gradient = Target(y=y, total=at.total).gradient(tangent, at.eps)
        shifted = y - tangent.prediction + tangent.operator.matvec(at.eps)
        rhs = tangent.operator.rmatvec(shifted / at.total)
        space = fit.model.latent_space
        scale = space.inner(rhs, rhs).sqrt()
        residual = space.inner(gradient, gradient).sqrt()
        reached = fit.settings.solver.rtol
        # If Σ depends on the field, solves stop early by design.
        if not fit.inexact and bool(solution.converged.all()):
            reached = max(reached, float(solution.residual.max()))
        return float(residual) <= 2 * reached * float(scale)

    def _require_finite(self) -> None:
        require_finite(
            f"{self._name}, step {self.at.steps}",
            prediction=self.tangent.prediction,
            unresolved_variance=self.tangent.variance,
            noise_variance=self.at.total,
        )

    def _mode(self, step: Step, *, converged: bool) -> Mode:
        at = self.at
        return Mode(
            eps=at.eps, steps=at.steps, converged=converged, solution=step.solution
        )
