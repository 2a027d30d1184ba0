"""One run: catalogue → plan → posterior → run folder, from where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dustmap.distributed.group import Group
from dustmap.inference.scales.band_power import BandPower
from dustmap.inference.scales.prior_scales import PriorScales
from pipelines.base.allocation import keep_freed_memory
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.progress import Progress, say
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.fit import correlated_noise
from pipelines.fit.fit_logging import (
    Expected,
    announce,
    expected,
    recorder,
    refuse_too_large,
)
from pipelines.fit.rank_broadcast import made_by_first
from pipelines.fit.writing import FitReport, report_of, write_run
from pipelines.model.cost import Work, measure, work_of
from pipelines.model.engines import run_engine
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference, Problem
from pipelines.planning.planner import make_plan
from pipelines.planning.prior import (
    NOT_SETTLED,
    learn_prior,
    revised_prior,
    start_scales,
)
from pipelines.planning.selection import Sample, choose_box, inside_box, usable_stars
from pipelines.run.folder import check_run_folder, fit_of
from pipelines.saving.checkpoint_manager import InferenceCheckpointer
from pipelines.saving.fit_state import FitState
from pipelines.saving.session import Session, opened
from pipelines.saving.workspace import Workspace, finish, unfinished

# Of the time left before a first map, what the rest of the fit needs; of the budget,
# what comes at least after the last inference.
_AFTER_FIRST, _LEAST_AFTER = 0.7, 0.05
_LAST = "refined samples"


def fit(
    source: Path,
    output: Path,
    config: FitConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    anyway: bool = False,
    group: Group | None = None,
) -> FitReport:
    """Fit a map to a catalogue that ``ingest`` or ``simulate`` wrote.

    Parameters
    ----------
    overwrite
        Replace a run, or an unfinished fit, that stands at ``output``.
    resume
        Go on where a fit into ``output`` stopped; begin if there is none, and do
        nothing if it is finished.
    anyway
        Resume even if the configuration, catalogue or code has changed.
    group
        The processes that make it together; the first one writes.

    Raises
    ------
    InputError
        If the catalogue has no extinctions or too few usable stars, the budget allows
        no grid, the output exists or cannot be written, or what is to be resumed is
        damaged or of another fit.
    Stopped
        If a signal ended it; it can be resumed.
    FloatingPointError
        If numbers are no longer finite.
    """
    keep_freed_memory()
    resume, group = resume or anyway, group or Group()
    begun = unfinished(output)
    if resume and _is_finished(output, begun, overwrite=overwrite):
        # All ranks have seen it before the first one clears up.
        group.meet()
        if begun is not None and group.first:
            finish(begun)
        say(f"{output} is finished: nothing is left to do")
        return report_of(output)
    may_replace = overwrite or (resume and begun is not None and begun.overwrite)
    check_run_folder(output, overwrite=may_replace)
    # Before the first rank begins there.
    group.meet()
    with opened(
        source,
        output,
        config,
        overwrite=may_replace,
        resume=resume,
        anyway=anyway,
        group=group,
    ) as session:
        generator = session.place["generator"]
        if session.state is not None:
            # The same draws as at the beginning.
            generator = torch.Generator().manual_seed(config.inference.seed)
        stars, counts = usable_stars(source, config, group)
        sample = Sample(stars, stars.split(config, generator), counts)
        session.manager.clock.lap("read")
        state, sample = _planned(session, sample)
        if state.stage == "planned":
            state = _learnt(session, state, sample)
        if state.stage != "inferred":
            state = _inferred(session, state, sample)
        return write_run(session, state, sample)


def _is_finished(output: Path, begun: Workspace | None, *, overwrite: bool) -> bool:
    """Whether the run is whole; its workspace remains if it was killed at its end."""
    if not (output / "run.json").is_file():
        return False
    if begun is not None and begun.identifier:
        return begun.identifier == fit_of(output)
    return not overwrite


def _planned(session: Session, sample: Sample) -> tuple[FitState, Sample]:
    """A plan, and the stars in its box."""
    source, config, group = session.source, session.config, session.group
    if session.state is not None:
        return session.state, _inside(sample, session.state.plan)
    generator = session.place["generator"]

    def make() -> FitState:
        train = _observed(sample, config)
        box, notes = choose_box(train.positions(), config, source)
        train = train.select(box.contains(train.positions()))
        speed = measure(session.place["dtype"], session.place["device"])
        scales, more = start_scales(train, config)
        plan = make_plan(
            scales,
            box,
            train.distance,
            config,
            speed,
            ranks=group.size,
            here=group.here,
            notes=[*notes, *more],
        )
        if plan.is_full_batch:
            work = _work(session, plan, train.distance)
            refuse_too_large(plan, work, config)
        drawn = generator.get_state()
        return FitState(stage="planned", plan=plan, speed=speed, generator=drawn)

    state = made_by_first(group, generator, make)
    sample = _inside(sample, state.plan)
    session.reached(state, "plan")
    return state, sample


def _inside(sample: Sample, plan: Plan) -> Sample:
    """The stars in the plan's box."""
    box = Box(lower=plan.grid.lower, upper=plan.grid.upper)
    split, counts = inside_box(sample.stars, sample.split, box)
    return Sample(sample.stars, split, {**sample.counts, **counts})


def _observed(sample: Sample, config: FitConfig) -> Stars:
    """The stars to fit, as the engine sees them."""
    train = sample.train
    return train if config.model.distance_errors else train.exactly_placed()


def _learnt(session: Session, state: FitState, sample: Sample) -> FitState:
    """The plan with the scales that the stars tell."""
    manager, config = session.manager, session.config
    stars, generator = _observed(sample, config), session.place["generator"]
    known = _expected(session, state, sample, learns=True)
    parts = None if known is None else known.parts

    def make() -> FitState:
        with Progress(description="scales") as progress:
            session.begin_part("scales", parts)
            record = recorder(
                *(manager.metrics, progress, known, session.countdown),
                tell=manager.facts.update,
            )

            def on_step(stage: str, step: int, value: float) -> None:
                manager.stop_if_asked(alone=True)
                record(stage, step, value)

            learned = learn_prior(
                state.plan.scales, stars, config, generator=generator, on_step=on_step
            )
        made = replace(state, stage="learnt", generator=generator.get_state())
        if learned is None:
            session.countdown = None
            return made
        scales, facts = learned
        return replace(
            made, plan=_replanned(session, made, sample, scales, facts), learning=facts
        )

    state = made_by_first(session.group, generator, make)
    session.reached(state, "scales")
    return state


def _replanned(
    session: Session,
    state: FitState,
    sample: Sample,
    scales: PriorScales,
    facts: dict[str, Any],
) -> Plan:
    """Plan anew over the same box for other scales."""
    grid, notes = state.plan.grid, state.plan.notes
    if not facts["converged"]:
        notes = (*notes, NOT_SETTLED)
    return make_plan(
        scales,
        Box(lower=grid.lower, upper=grid.upper),
        sample.train.distance,
        session.config,
        state.speed,
        ranks=session.group.size,
        here=session.group.here,
        notes=notes,
    )


def _inferred(session: Session, state: FitState, sample: Sample) -> FitState:
    """The posterior; the diagnostics of learning are among its facts."""
    config = session.config
    known = _announced(session, state, sample)
    parts = None if known is None else known.parts
    session.begin_part("first map", parts)
    with Progress(description="inference") as progress:
        record = recorder(
            *(session.manager.metrics, progress, known, session.countdown),
            tell=session.manager.facts.update,
        )
        if correlated_noise.is_wanted(sample, config) and state.residual is None:
            state = _mapped(session, state, sample, record)
        session.begin_part("map")
        result = _run(session, state, sample, record, state.plan, config)
    if state.result is not None:
        result = replace(result, facts={**state.result.facts, **result.facts})
    if state.learning is not None:
        result = replace(result, facts={**result.facts, "learning": state.learning})
    state = replace(state, stage="inferred", result=result)
    session.reached(state, "inference")
    return state


def _announced(session: Session, state: FitState, sample: Sample) -> Expected | None:
    """Say what was planned, and what it will cost."""
    work = _work(session, state.plan, sample.train.distance)
    announce(state.plan, work, state.speed, session.config)
    return _expected(session, state, sample)


def _expected(
    session: Session, state: FitState, sample: Sample, *, learns: bool = False
) -> Expected | None:
    """What this plan will take."""
    stars = _observed(sample, session.config)
    work = _work(session, state.plan, stars.distance)
    about = (state.plan, work, state.speed, session.config)
    blurred = stars.distance_error is not None
    return expected(*about, blurred=blurred, learns=learns)


def _work(session: Session, plan: Plan, distances: np.ndarray) -> Work:
    """The size of the fit."""
    kernel, group = plan.build_kernel(), session.group
    work = work_of(plan.grids, kernel, distances, session.config, std=plan.std)
    return work.shared_out(group.size, group.here)


def _mapped(
    session: Session, state: FitState, sample: Sample, record: Callable[..., None]
) -> FitState:
    """With a first map, and what the stars share beyond it."""
    config, group = session.config, session.group
    samples = correlated_noise.first_samples(config, len(sample.split.train))
    while True:
        plan, settings = correlated_noise.first_map(state.plan, config, samples)
        result = _run(session, state, sample, record, plan, settings, rough=True)
        if result.facts["out_of_time"]:
            say("note: the first map ended early, as budget.minutes calls for")
        revised = _revised(session, state, sample, result)
        if revised is None:
            break
        state = revised
        session.reached(state, "inference")
        _announced(session, state, sample)
    session.manager.clock.lap("inference")
    # What this map left to a common noise, neighbours may share.
    result = replace(result, plan=state.plan)
    doing = "learning what neighbouring stars share beyond the map"
    session.begin_silent_part("residual", doing)
    state = replace(
        state,
        stage="mapped",
        generator=session.place["generator"].get_state(),
        result=result,
        residual=correlated_noise.learn_first(result, sample, config, group),
    )
    session.reached(state, "residual")
    return state


def _revised(
    session: Session, state: FitState, sample: Sample, result: Inference
) -> FitState | None:
    """With scales that suit a first map, where it calls for others."""
    bands = [BandPower(**band) for band in result.facts.get("spectrum", ())]
    found = revised_prior(state.plan, bands, state.learning, session.config)
    if found is None:
        return None
    scales, learning = found
    plan = _replanned(session, state, sample, scales, learning)
    gain = learning["revisions"][-1]["gain"]
    say(
        f"the first map calls for other scales (its log evidence gains {gain:.0f} "
        "nats); another follows:"
    )
    return replace(
        state,
        plan=plan,
        learning=learning,
        generator=session.place["generator"].get_state(),
    )


def _run(
    session: Session,
    state: FitState,
    sample: Sample,
    record: Callable[..., None],
    plan: Plan,
    config: FitConfig,
    *,
    rough: bool = False,
) -> Inference:
    """Run the engine on this plan; name the checkpoint whose state does not fit."""
    manager, inference = session.manager, session.inference
    resumed, session.inference = inference is not None, None

    def on_step(stage: str, step: int, value: float) -> None:
        # Each team makes its steps to samples on its own: all stop between them.
        if session.teams.size == 1 or "samples" not in stage:
            manager.stop_if_asked()
        record(f"first {stage}" if rough and "samples" in stage else stage, step, value)

    left, later = _seconds_left(session), _LEAST_AFTER * 60 * config.budget.minutes
    if rough:
        later = _AFTER_FIRST * left()
    elif session.countdown is not None:
        later = max(session.countdown.after(_LAST), later)
    problem = Problem(
        plan=plan,
        stars=_observed(sample, config),
        config=config,
        place=session.place,
        on_step=on_step,
        checkpointer=InferenceCheckpointer(
            manager=manager, state=state, inference=inference
        ),
        group=session.team,
        teams=session.teams,
        correlation=correlated_noise.correlation_of(state, sample, config),
        start=None if state.result is None else state.result.mean,
        rough=rough,
        time_left=lambda: left(later),
    )
    # Free the checkpoint's tensors.
    del inference
    try:
        return run_engine(problem)
    except ValueError as error:
        if not resumed or isinstance(error, InputError):
            raise
        raise InputError(f"{manager.last}: {error}") from error


def _seconds_left(session: Session) -> Callable[..., float]:
    """What the ranks have left of ``budget.minutes``, the least of them."""

    def left(later: float = 0.0) -> float:
        """Before ``later`` seconds for the rest."""
        milliseconds = int(1000 * (session.seconds_left - later))
        return min(session.group.numbers(milliseconds)) / 1000

    return left
