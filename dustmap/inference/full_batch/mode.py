"""Gauss–Newton steps to the mode of a posterior."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.gauss_newton import Step, Task
from dustmap.inference.full_batch.state import FIRST, InferenceState, Iterate
from dustmap.linalg.operator import inner
from dustmap.models.base import Linearisation
from dustmap.shapes import Eps, Vector

DECREMENT_LIMIT = 5.0
"""Newton decrement of an accurate solution, in units of the tolerance.

Rough solves underestimate the decrement by a factor of 2 to 3.
"""


def find_mode(
    fit: InferenceState,
    start: Eps,
    *,
    fixed: Vector | None = None,
    forcing: float = 0.1,
    name: str = FIRST,
) -> Iterate:
    """Make Gauss–Newton steps to the mode, from ``start`` or an iterate of this search.

    They end when the gradient or the gain is small, or at their limit. Σ is updated
    between steps unless ``fixed``. ``forcing`` is the tolerance of a solve relative to
    the gradient, ``name`` the search's name. The fit is saved after every step.

    Raises `FloatingPointError` if a prediction, Σ, the objective or a solve is not
    finite.
    """
    settings, at = fit.settings, fit.progress.mode
    if at is None or at.search != name:
        earlier = 0 if at is None else at.count
        total = fit.tangent(start)[1].variance if fixed is None else fixed
        at = Iterate(search=name, eps=start, total=total, earlier=earlier)
    if at.solution is not None:
        return at
    tangent = fit.model.linearise(at.eps)
    _require_finite(f"{name}, step {at.steps}", tangent, at.total)
    while True:
        rough = forcing if fit.inexact else 0.0
        solver, rank = settings.solver, settings.preconditioner_rank
        # Tangents of a non-linear model change with every step. A new preconditioner
        # pays off after a third of an iteration per vector, as its products are made in
        # blocks: first maps of 116,000 stars took 27 s with a third and 29 s with one.
        merits = fit.progress.iterations > rank / 3
        if rank and (fit.preconditioner is None if fit.model.linear else merits):
            fit.precondition(tangent, at.eps, at.total)
        if fit.inexact and rank and fit.preconditioner is None:
            # Without this limit the first step of ten million stars took 243
            # iterations, 240 of 450 s to the mode.
            solver = replace(solver, max_steps=min(solver.max_steps, 2 * rank))
        newton = fit.newton(at.total, solver=solver, forcing=rough)
        step = newton.step(tangent, at.eps, f"{name}, step {at.steps}")
        made = int(step.solution.iterations.max())
        fit.note(iterations=fit.progress.iterations + made)
        tangent, steps = step.tangent, at.steps + 1
        at = replace(at, eps=step.eps, steps=steps)
        if fixed is None:
            total, misfit = fit.learn_at(at.eps, tangent)
            fit.on_step(Task(name="misfit"), steps, misfit)
            at = replace(at, total=total)
        _require_finite(f"{name}, step {steps}", tangent, at.total)
        solved = fit.inexact or bool(step.solution.converged.all())
        reached = solved and _stationary(fit, tangent, at, step)
        moved = bool(step.moved)
        little = fit.inexact and moved and float(step.gain) < fit.enough
        converged = reached or (little and steps > 2)
        ended = converged or not moved or not solved or steps >= settings.newton_steps
        if ended:
            at = replace(at, converged=converged, solution=step.solution)
        fit.save(mode=at)
        if ended:
            return at


def refined_mode(fit: InferenceState, mode: Iterate) -> Iterate:
    """Refine the mode to the tolerance of samples, if none are drawn.

    Its steps stop when rough solves gain little; the Newton decrement of an accurate
    solve decides whether finer solves follow.
    """
    allowed = DECREMENT_LIMIT * fit.enough
    # At zero tolerance only the gradient decides.
    if not allowed or (mode.search == FIRST and not mode.converged):
        return mode

    def small(mode: Iterate) -> bool:
        total = fit.tangent(mode.eps)[1].variance
        newton = fit.newton(total, solver=fit.settings.solver)
        return float(newton.decrement(mode.eps)) <= allowed

    if mode.search == FIRST and small(mode):
        return mode
    mode = find_mode(fit, mode.eps, name="refined mode", forcing=0.03)
    return replace(mode, converged=mode.converged and small(mode))


def _stationary(
    fit: InferenceState, tangent: Linearisation, at: Iterate, step: Step
) -> bool:
    """Return whether the gradient is within the solver's tolerance.

    Like the solver's residual it is relative to ``Φᵀ Σ⁻¹ (y − apply(ε) + Φ ε)``; a
    factor of two allows for the change of the tangent.
    """
    newton = fit.newton(at.total, solver=fit.settings.solver)
    gradient = newton.gradient(tangent, at.eps)
    rhs = newton.right_side(tangent, at.eps)
    residual, scale = (inner(x, x).sqrt() for x in (gradient, rhs))
    reached = fit.settings.solver.rtol
    # If Σ depends on the field, solves stop early by design.
    if not fit.inexact:
        reached = max(reached, float(step.solution.residual.max()))
    return float(residual) <= 2 * reached * float(scale)


def _require_finite(where: str, tangent: Linearisation, total: Tensor) -> None:
    require_finite(
        where,
        prediction=tangent.prediction,
        unresolved_variance=tangent.variance,
        noise_variance=total,
    )
