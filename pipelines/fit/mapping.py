"""The inferences of a fit: a first map, and the last one with its samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dustmap.inference.full_batch.gauss_newton import Task
from dustmap.inference.full_batch.state import Progress
from dustmap.inference.svi.training import Training
from dustmap.keyed_noise import Purpose, torch_stream
from dustmap.residual.vecchia import Vecchia
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.budget import announce
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.model.cost import SECOND_SAMPLES
from pipelines.model.engine import run_engine
from pipelines.model.full_batch import SAMPLE_TOLERANCE
from pipelines.model.problem import Inference, Problem
from pipelines.run.residual import residual_from
from pipelines.run.surveys import calibration_errors

# With fewer stars than this, the samples of the second map scatter too much.
_MERIT_SAMPLES = 1_000


def first_map(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Infer a map with independent noise, whose residuals neighbours may share."""
    announce(state, stars, at)
    if not at.config.shares_noise:
        return state
    if len(stars.learners.train) < len(stars.split.train):
        say(
            f"the first maps see {len(stars.learners.train):,} of the stars, evenly "
            "spread on the sky: they only serve to learn scales, noise and residual"
        )
    result = _infer(state, stars, at, _with_samples(at.config, 0), first=True)
    # Neighbours may share what this map left to a common noise.
    return replace(state, result=replace(result, plan=state.planned))


def second_map(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Infer the map again, with the dust below the grid that neighbouring stars share.

    The mean of this map sets the covariance of that dust for the last map.

    The first map, with independent noise, is too smooth behind dense clouds: with its
    density in the covariance extinctions of a simulated sky had errors 11% larger.
    """
    if not state.residual:
        return state
    enough = len(stars.split.train) >= _MERIT_SAMPLES
    settings = _with_samples(at.config, SECOND_SAMPLES if enough else 0)
    result = _infer(state, stars, at, settings, first=True)
    return replace(state, result=_with_earlier_facts(result, state))


def map_and_samples(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Infer the map and its samples, with what neighbours share as part of the noise.

    The facts of the first map and of learning stay among those of the result.
    """
    result = _infer(state, stars, at, at.config)
    return replace(state, result=_with_earlier_facts(result, state))


def _with_samples(config: FitConfig, samples: int) -> FitConfig:
    inference = config.inference.model_copy(update={"samples": samples})
    return config.model_copy(update={"inference": inference})


def _with_earlier_facts(result: Inference, state: FitState) -> Inference:
    facts = {} if state.result is None else state.result.facts
    learning = {} if state.learning is None else {"learning": state.learning}
    return replace(result, facts={**facts, **result.facts, **learning})


def _infer(
    state: FitState,
    stars: FittedStars,
    at: Context,
    config: FitConfig,
    *,
    first: bool = False,
) -> Inference:
    """Run the engine, from where it was left.

    The ``first`` maps, on which only neighbours' noise is learnt, are rough and see
    the `FittedStars.learners`.

    Raises `InputError` if a state that was resumed does not fit the problem; the
    message names it.
    """
    plan, correlation = state.planned, None
    if state.residual:
        # The precision of noise that neighbours share.
        field = residual_from(state.residual, device=at.device["device"])
        rows = torch.arange(len(field.rays) - len(stars.split.validation))
        generator = torch_stream(at.config.inference.seed, Purpose.CONDITIONING)
        correlation = Vecchia.of(field, rows, generator, dtype=at.device["dtype"])
    seen = stars.stars.select(stars.learners.train) if first else stars.fitted
    tolerances = {}
    if not plan.is_lognormal:
        tolerances["samples"] = SAMPLE_TOLERANCE
        if not plan.outliers and seen.distance_error is None:
            # One linear solve, with a noise that is known.
            tolerances["mean"] = config.inference.tolerance
    on_step = at.recorder(tolerances)

    def named(task: Task, step: int, value: float) -> None:
        if first and task.total:
            task = replace(task, name=f"first {task.name}")
        on_step(task, step, value)

    problem = Problem(
        plan=plan,
        stars=seen,
        config=config,
        device=at.device,
        on_step=named,
        checkpointer=_Checkpointer(at=at, state=state),
        group=at.team,
        teams=at.teams,
        correlation=correlation,
        shared_errors=calibration_errors(seen, state.surveys),
        start=None if state.result is None else state.result.mean,
        rough=first,
    )
    try:
        return run_engine(problem)
    except ValueError as error:
        if state.progress is None or isinstance(error, InputError):
            raise
        raise InputError(f"{at.last}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpointer:
    """The `dustmap.checkpoint.Checkpointer` of the inference of a fit."""

    at: Context
    state: FitState

    def save(self, progress: Progress | Training) -> None:
        """Offer the fit with this inference under way."""
        self.at.offer(replace(self.state, progress=progress))

    def restore(self) -> Any:
        """Return what an earlier process saved."""
        return self.state.progress
