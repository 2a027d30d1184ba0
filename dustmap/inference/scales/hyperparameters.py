r"""Learning hyperparameters from all observations: damped Newton on the evidence.

In log parameters, with the gradient g by the envelope theorem from posterior samples
and the average information A (Gilmour, Thompson & Cullis 1995) for a curvature (for a
model that is not linear, corrected by the last step's change of g),
``θ ← θ + (A + λI)⁻¹ g``, λ ≥ 0 so large that no parameter moves by more than the trust
radius. Some ten solves for all parameters together: the evidence itself, whose
determinant is dear and noisy, is never computed. Whether a step gained is told by the
gradients at both ends, ``½ (g₀ + g₁)ᵀ Δ`` (trapezoidal rule).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.scales.hyperpoint import Hyperpoint
from dustmap.inference.scales.learning_problem import LearningProblem, LocalShape
from dustmap.inference.scales.learning_settings import (
    Learning,
    LearningStep,
    Learnt,
    Status,
)
from dustmap.inference.scales.learning_solve import LinearSolve, Solve
from dustmap.inference.scales.trust_region import (
    expected_gain,
    secant_information,
    standard_errors,
    trusted_step,
)
from dustmap.models.base import ForwardModel

OnStep = Callable[[LearningStep], None]


class _Climb:
    """The path uphill: the best point so far, and how far to trust its shape."""

    def __init__(self, problem: LearningProblem) -> None:
        self.problem = problem
        self.at = torch.zeros(len(problem.directions), dtype=torch.float64)
        self.best: LocalShape | None = None
        self.radius = problem.settings.trust_radius
        self.expected = math.inf
        self.curvature: Tensor | None = None
        self.bounded = 0
        self.history: list[LearningStep] = []

    @property
    def converged(self) -> bool:
        solved = self.best is not None and self.best.solved
        return solved and self.expected < self.problem.settings.tolerance

    @property
    def moved(self) -> bool:
        """Whether a step away from the start was kept."""
        return any(step.accepted for step in self.history[1:])

    @property
    def status(self) -> Status | None:
        """How the path ended by itself; ``None`` if it goes on."""
        if self.converged:
            return "converged"
        if self.history and not self.history[-1].solved:
            return "solve failed"
        if len(self.history) == self.problem.settings.max_steps:
            return "out of steps"
        return None

    def advance(self) -> None:
        """One more point; it becomes the best unless the step there lost."""
        before = self.best
        tried = self.at if before is None else self._next(before)
        here = self.problem.local(tried, before)
        gain, accepted = math.nan, True
        if before is not None:
            moved = tried - self.at
            gain = 0.5 * float((before.slope + here.slope) @ moved)
            accepted = here.solved and gain > -self.problem.settings.tolerance
            self._trust(accepted, float(moved.abs().max()))
        if accepted:
            self.curvature = here.information
            if before is not None and here.state.draws is None:
                # Of a model that is not linear the information is its tangent's.
                self.curvature = secant_information(
                    here.information, tried - self.at, before.slope - here.slope
                )
            self.at, self.best = tried, here
        self.expected = self._expected_gain()
        named = self.problem.named
        step = LearningStep(
            parameters=self.problem.at(tried).values(),
            gradient=named(here.slope),
            scatter=named(here.scatter.diagonal().sqrt()),
            predicted_gain=self.expected,
            gain=gain,
            accepted=accepted,
            solved=here.solved,
            products=here.products,
        )
        self.history.append(step)

    def result(self, status: Status) -> Learnt:
        """The best point, or where it points to if that is near."""
        best, problem = self.best, self.problem
        assert best is not None
        point = problem.at(self._next(best) if self.converged else self.at)
        inverse = torch.linalg.pinv(best.information, hermitian=True)
        sampling = (inverse @ best.scatter @ inverse).diagonal().sqrt()
        return Learnt(
            model=point.model,
            common_noise=point.common_noise,
            parameters=point.values(),
            errors=problem.named(standard_errors(best.information)),
            sampling_errors=problem.named(sampling),
            status=status,
            bounded_steps=self.bounded,
            products=sum(step.products for step in self.history),
            history=tuple(self.history),
            state=best.state,
        )

    def _next(self, best: LocalShape) -> Float[Tensor, " k"]:
        assert self.curvature is not None
        free = self.problem.free(self.at, best.slope)
        step = trusted_step(best.slope, self.curvature, free, self.radius)
        target = self.at + step
        bounded = torch.clamp(target, self.problem.lower, self.problem.upper)
        self.bounded += int(bool((bounded != target).any()))
        return bounded

    def _expected_gain(self) -> float:
        assert self.best is not None
        assert self.curvature is not None
        free = self.problem.free(self.at, self.best.slope)
        return expected_gain(self.best.slope, self.curvature, free)

    def _trust(self, accepted: bool, length: float) -> None:
        limit = self.problem.settings.trust_radius
        self.radius = min(limit, 2 * self.radius) if accepted else 0.5 * length


def learn(
    model: ForwardModel,
    observations: Float[Tensor, " n"],
    sigma2: Float[Tensor, " n"],
    *,
    settings: Learning,
    generator: torch.Generator,
    common_noise: float = 0.0,
    solve: Solve | None = None,
    on_step: OnStep | None = None,
    stop: Callable[[], bool] | None = None,
) -> Learnt:
    """Hyperparameters of largest (collapsed) evidence, and their standard errors.

    Parameters
    ----------
    model
        Where to start; it keeps its grid, functionals and white draws.
    observations, sigma2
        ``y_n`` and the catalogue's ``σ_n²``.
    generator
        For the white noise behind the samples, one for all points of the path.
    common_noise
        ``τ²`` to start from, above zero if it is learnt.
    solve
        The posterior at a θ, :class:`LinearSolve` by default. For a model that is not
        linear: its own solver, whose samples should rest on the same white noise at
        every θ.
    on_step
        Called at every point.
    stop
        Asked before every step, once one has been accepted: whether to leave it at the
        best point so far.

    Raises
    ------
    ValueError
        If a name is unknown, a value is not positive or a lengthscale starts outside
        its range.
    """
    start = Hyperpoint(model=model, common_noise=common_noise)
    if solve is None:
        seed = int(torch.randint(2**62, (1,), generator=generator))
        solve = _linear_solve(observations, settings, seed)
    climb = _Climb(LearningProblem(start, observations, sigma2, settings, solve))
    while (status := climb.status) is None:
        if stop is not None and climb.moved and stop():
            status = "stopped"
            break
        climb.advance()
        if on_step is not None:
            on_step(climb.history[-1])
    return climb.result(status)


def _linear_solve(
    observations: Float[Tensor, " n"], settings: Learning, seed: int
) -> LinearSolve:
    return LinearSolve(
        observations,
        pairs=settings.pairs,
        subgrid_noise=settings.subgrid_noise,
        solver=settings.solver,
        residual=settings.residual,
        preconditioner_rank=settings.preconditioner_rank,
        seed=seed,
    )
