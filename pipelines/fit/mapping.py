"""The inferences of a fit: a first map, and the last one with its samples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dustmap.checkpoint import State
from dustmap.inference.scales.band_power import BandPower
from dustmap.residual.vecchia import Vecchia
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.announcing import announce
from pipelines.fit.context import Context
from pipelines.fit.judging import seconds_to_judge
from pipelines.fit.prior import replanned
from pipelines.fit.shared_noise import correlation_of, is_wanted
from pipelines.fit.state import FitState
from pipelines.model.engines import run_engine
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference, Problem
from pipelines.planning.prior import revised_prior

# Part of the time left before a first map that the rest of the fit needs.
_AFTER_FIRST = 0.7
# Part of the unresolved variance in the first map's noise. With 1 that map follows its
# stars less than the last one does, and residuals seem larger than they are: errors of
# extinctions were 5% larger in a simulated sky.
_FIRST_SHARE = 0.1
# Where stars are sparse, the mode lies far below the mean density, and stars seem to
# share several times of it. With samples of the first map errors of 4,135 clusters were
# 0.562 and 0.578 mag with two seeds; without 0.573 and 0.636.
_FEW_STARS, _FIRST_SAMPLES = 20_000, 8


def first_map(state: FitState, at: Context) -> FitState:
    """Infer a map with independent noise, whose residuals neighbouring stars may share.

    Where its power by wavelength calls for other scales there is another one. If stars
    are few it has samples.
    """
    announce(state, at)
    if not is_wanted(at):
        return state
    few = len(at.fitted) <= _FEW_STARS
    samples = min(_FIRST_SAMPLES, at.config.inference.samples) if few else 0
    while True:
        plan, _ = state.planned
        first = first_settings(plan, at.config, samples)
        result = _infer(state, at, *first, rough=True)
        if result.facts["out_of_time"]:
            say("note: the first map ended early, as budget.minutes calls for")
        bands = [BandPower(**band) for band in result.facts.get("spectrum", ())]
        found = revised_prior(plan, bands, state.learning, at.config)
        if found is None:
            # Neighbours may share what this map left to a common noise.
            return replace(state, result=replace(result, plan=plan))
        scales, learning = found
        say(
            "the first map calls for other scales (its log evidence gains "
            f"{learning['revisions'][-1]['gain']:.0f} nats); another follows:"
        )
        state = at.save(replanned(state, at, scales, learning), ended=False)
        announce(state, at)


def first_settings(
    plan: Plan, config: FitConfig, samples: int
) -> tuple[Plan, FitConfig]:
    """Return plan and configuration of a map with independent noise."""
    share = config.model.subgrid_share or _FIRST_SHARE
    inference = config.inference.model_copy(update={"samples": samples})
    model = config.model.model_copy(update={"subgrid_share": share})
    config = config.model_copy(update={"inference": inference, "model": model})
    return replace(plan, subgrid_share=share), config


def map_and_samples(state: FitState, at: Context) -> FitState:
    """Infer the map and its samples, with what neighbours share as part of the noise.

    The facts of the first map and of learning stay among those of the result.
    """
    plan, _ = state.planned
    correlation = correlation_of(state, at)
    result = _infer(state, at, plan, at.config, correlation=correlation)
    facts = {} if state.result is None else state.result.facts
    learning = {} if state.learning is None else {"learning": state.learning}
    facts = {**facts, **result.facts, **learning}
    return replace(state, result=replace(result, facts=facts))


def _infer(
    state: FitState,
    at: Context,
    plan: Plan,
    config: FitConfig,
    *,
    correlation: Vecchia | None = None,
    rough: bool = False,
) -> Inference:
    """Run the engine within its part of the budget, from where it was left.

    A map on which only neighbours' noise is learnt may be ``rough``.

    Raises
    ------
    InputError
        If a state that was resumed does not fit the problem; the message names it.
    """

    def seconds_left(later: float = 0.0) -> float:
        """Return the least that a rank has left before ``later`` seconds."""
        milliseconds = int(1000 * (at.seconds_left - later))
        return min(at.group.numbers(milliseconds)) / 1000

    later = _AFTER_FIRST * seconds_left() if rough else seconds_to_judge(config)
    resumed = at.resumed is not None
    tolerances = {}
    if plan.is_full_batch and not plan.is_lognormal:
        tolerances["samples"] = config.inference.sample_tolerance
        if not plan.outliers and at.fitted.distance_error is None:
            # One linear solve, with a noise that is known.
            tolerances["mean"] = config.inference.tolerance
    with at.steps(tolerances) as on_step:

        def named(stage: str, step: int, value: float) -> None:
            first = "first " if rough and "samples" in stage else ""
            on_step(f"{first}{stage}", step, value)

        problem = Problem(
            plan=plan,
            stars=at.fitted,
            config=config,
            place=at.place,
            on_step=named,
            checkpointer=_Checkpointer(at=at, state=state),
            group=at.team,
            teams=at.teams,
            correlation=correlation,
            start=None if state.result is None else state.result.mean,
            rough=rough,
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
