"""The inferences of a fit: a first map, and the last one with its samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dustmap.checkpoint import State
from dustmap.residual.vecchia import Vecchia
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.announcing import announce
from pipelines.fit.context import Context
from pipelines.fit.judging import seconds_to_judge
from pipelines.fit.shared_noise import correlation_of
from pipelines.fit.state import FitState
from pipelines.model.engine import run_engine
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference, Problem
from pipelines.run.surveys import calibration_errors

# Part of the time left before a first map that the rest of the fit needs.
_AFTER_FIRST = 0.7
# Samples of the second map. Where stars are sparse its mode lies far below the mean
# density: with the mode's in the covariance errors of 800 stars were 2.5% larger. With
# fewer stars than this, eight samples scatter too much.
_SECOND_SAMPLES, _MERIT_SAMPLES = 8, 1_000


def first_map(state: FitState, at: Context) -> FitState:
    """Infer a map with independent noise, whose residuals neighbours may share."""
    announce(state, at)
    if not at.config.shares_noise:
        return state
    if len(at.learners.train) < len(at.split.train):
        say(
            f"the first maps see {len(at.learners.train):,} of the stars, evenly "
            "spread on the sky: they only serve to learn scales, noise and residual"
        )
    plan, _ = state.planned
    result = _infer(state, at, plan, first_settings(at.config), first=True)
    if result.facts["out_of_time"]:
        say("note: the first map ended early, as budget.minutes calls for")
    # Neighbours may share what this map left to a common noise.
    return replace(state, result=replace(result, plan=plan))


def second_map(state: FitState, at: Context) -> FitState:
    """Infer a map with what neighbours share, whose covariance then follows its mean.

    The first map, with independent noise, is too smooth behind dense clouds: with its
    density in the covariance extinctions of a simulated sky had errors 11% larger.
    """
    if not state.residual:
        return state
    plan, settings = state.planned[0], first_settings(at.config, second_samples(at))
    correlation = correlation_of(state, at)
    result = _infer(state, at, plan, settings, correlation=correlation, first=True)
    return replace(state, result=_with_earlier_facts(result, state))


def second_samples(at: Context) -> int:
    """Return the number of samples of the second map."""
    return _SECOND_SAMPLES if len(at.split.train) >= _MERIT_SAMPLES else 0


def first_settings(config: FitConfig, samples: int = 0) -> FitConfig:
    """Return the configuration of a map of few samples or none."""
    inference = config.inference.model_copy(update={"samples": samples})
    return config.model_copy(update={"inference": inference})


def map_and_samples(state: FitState, at: Context) -> FitState:
    """Infer the map and its samples, with what neighbours share as part of the noise.

    The facts of the first map and of learning stay among those of the result.
    """
    plan, _ = state.planned
    correlation = correlation_of(state, at)
    result = _infer(state, at, plan, at.config, correlation=correlation)
    return replace(state, result=_with_earlier_facts(result, state))


def _with_earlier_facts(result: Inference, state: FitState) -> Inference:
    facts = {} if state.result is None else state.result.facts
    learning = {} if state.learning is None else {"learning": state.learning}
    return replace(result, facts={**facts, **result.facts, **learning})


def _infer(
    state: FitState,
    at: Context,
    plan: Plan,
    config: FitConfig,
    *,
    correlation: Vecchia | None = None,
    first: bool = False,
) -> Inference:
    """Run the engine within its part of the budget, from where it was left.

    The ``first`` maps, on which only neighbours' noise is learnt, are rough and see
    the `Context.learners`.

    Raises
    ------
    InputError
        If a state that was resumed does not fit the problem; the message names it.
    """

    def seconds_left(later: float = 0.0) -> float:
        """Return the least that a rank has left before ``later`` seconds."""
        if at.config.budget.minutes is None:
            return math.inf
        milliseconds = int(1000 * (at.seconds_left - later))
        return min(at.group.numbers(milliseconds)) / 1000

    later = _AFTER_FIRST * seconds_left() if first else seconds_to_judge(at)
    stars = at.stars.select(at.learners.train) if first else at.fitted
    resumed = at.resumed is not None
    tolerances = {}
    if not plan.is_lognormal:
        tolerances["samples"] = config.inference.sample_tolerance
        if not plan.outliers and stars.distance_error is None:
            # One linear solve, with a noise that is known.
            tolerances["mean"] = config.inference.tolerance
    with at.steps(tolerances) as on_step:

        def named(stage: str, step: int, value: float) -> None:
            before = "first " if first and "samples" in stage else ""
            on_step(f"{before}{stage}", step, value)

        problem = Problem(
            plan=plan,
            stars=stars,
            config=config,
            place=at.place,
            on_step=named,
            checkpointer=_Checkpointer(at=at, state=state),
            group=at.team,
            teams=at.teams,
            correlation=correlation,
            shared_errors=calibration_errors(stars, state.surveys),
            start=None if state.result is None else state.result.mean,
            rough=first,
            time_left=lambda: seconds_left(later),
        )
        try:
            return run_engine(problem)
        except ValueError as error:
            if not resumed or isinstance(error, InputError):
                raise
            raise InputError(f"{at.last}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpointer:
    """The `dustmap.checkpoint.Checkpointer` of the inference of a fit."""

    at: Context
    state: FitState

    def save(self, state: State) -> None:
        """Offer the fit with this inference under way."""
        self.at.offer(replace(self.state, inference=state))

    def restore(self) -> State | None:
        """Return what an earlier process saved, once."""
        found, self.at.resumed = self.at.resumed, None
        return found
