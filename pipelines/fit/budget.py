"""What a fit may take: its plan within the budget, memory and time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from dustmap.inference.scales.prior_scales import PriorScales
from dustmap.models.means import ExponentialDisc
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.model.cost import SECONDS_BESIDE, Work, machine_memory, seconds_beside
from pipelines.model.engine import ENGINES
from pipelines.model.plan import Plan
from pipelines.planning.planner import RAISED, make_plan
from pipelines.planning.prior import NOT_SETTLED

# Seconds for the held-out stars, and their baseline, on two idle cores, measured for
# 6,000 and 57,000 stars.
_TESTS = 5.0
BASELINE_SECONDS = 8.0
# Smallest share of the budget reserved for them.
_LEAST = 0.05
# Time of the plan itself, of 3,000 and of 20,000 stars [s].
_PLAN = 0.2
# Time of writing the run [s].
_WRITING = 0.1
# Samples of the second map. Where stars are sparse its mode lies far below the mean
# density: with the mode's in the covariance errors of 800 stars were 2.5% larger.
_SECOND_SAMPLES = 8
# With fewer stars than this, eight samples scatter too much.
_MERIT_SAMPLES = 1_000


def announce(state: FitState, stars: FittedStars, at: Context) -> None:
    """Print the plan with its memory and time, and refuse it if memory is too small.

    Raises
    ------
    InputError
        As `require_memory`.
    """
    plan, speed = state.planned
    for line in plan_in_words(plan):
        say(line)
    work = require_memory(plan, stars.fitted.distance, at)
    if work is None:
        return
    parts = work.memory()
    listing = ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.items())
    each = ""
    if work.ranks > 1:
        each = f" for each of {work.ranks} processes, {work.here} on this machine"
    say(f"memory: {sum(parts.values()) / 2**30:.2f} GiB{each} ({listing})")
    seconds, minutes = work.seconds(speed), at.config.budget.minutes
    where = " on two idle cores" if minutes is None else ""
    say(f"time: about {seconds:.0f} s for the solves{where}")
    if seconds > at.seconds_left:
        say(
            f"note: less time is left of budget.minutes = {minutes:g}: the solves will "
            "end early, with fewer samples; raise it, or choose a coarser grid"
        )


def plan_in_words(plan: Plan) -> list[str]:
    """Return lines about the grids, the prior and the origin of its scales."""
    grid, mean = plan.grid, plan.mean
    sides = zip(grid.lower, grid.upper, strict=True)
    box = " x ".join(f"[{a:.6g}, {b:.6g}]" for a, b in sides)
    lines = [
        f"grid: {_by(grid.shape)} = {grid.size} points every {_by(grid.spacing)} pc "
        f"({plan.limit}), box {box} pc"
    ]
    for inner in plan.grids[1:]:
        lines.append(
            f"finer grid: {_by(inner.shape)} = {inner.size} points every "
            f"{_by(inner.spacing)} pc, to {inner.reach:.4g} pc"
        )
    height = ""
    if isinstance(mean, ExponentialDisc):
        height = f", disc of scale height {mean.scale_height:.4g} pc"
    unit, kind = " mag/pc", "mean"
    if plan.is_lognormal:
        unit, kind = " of ln density", "median"
    factors = ", ".join(f"{math.exp(each):.2g}" for each in plan.bend)
    bent = f", octaves below times {factors}" if plan.bend else ""
    lines.append(
        f"prior: {plan.density}, {plan.kernel}, lengthscale {_by(plan.lengthscale)} "
        f"pc, std {plan.std:.4g}{unit}{bent}; {kind} {mean.value:.4g} "
        f"mag/pc{height}; common noise {plan.common_noise:.4g} mag"
    )
    return lines + [f"note: {note}" for note in plan.notes]


def require_memory(plan: Plan, distances: np.ndarray, at: Context) -> Work | None:
    """Return the memory and time of a fit to stars at these distances [pc], if known.

    Raises
    ------
    InputError
        If the fit needs more memory than the budget, or than this machine has.
    """
    work = _work_of(plan, distances, at)
    if work is None:
        return None
    budget, here, grid = at.config.budget.bytes, machine_memory(at.config), plan.grid
    if work.together > min(budget, here):
        size = _by(b - a for a, b in zip(grid.lower, grid.upper, strict=True))
        known = f"the budget is {budget / 2**30:.2f} GiB"
        remedy = "raise budget.memory_gib"
        if work.together > here:
            known = f"this machine has {here / 2**30:.2f} GiB for it"
            remedy = f"set budget.memory_gib={math.floor(10 * here / 2**30) / 10:g}"
        raise InputError(
            f"this grid of {_by(grid.shape)} points every {max(grid.spacing):.4g} pc "
            f"in a box of ({size} pc) needs {work.together / 2**30:,.2f} GiB, "
            f"{known}: leave out box.spacing and box.shape (to use the finest grid "
            f"that fits), choose a smaller box, {remedy}, or lower inference.samples"
        )
    return work


def replanned(
    state: FitState,
    stars: FittedStars,
    at: Context,
    scales: PriorScales,
    learning: dict[str, Any],
) -> FitState:
    """Return a new plan for learnt scales in the same box."""
    made, speed = state.planned
    notes = tuple(note for note in made.notes if not note.startswith(RAISED))
    if not learning["converged"]:
        notes = (*notes, NOT_SETTLED)
    revised = make_plan(
        scales,
        Box.of(made.grid),
        stars.fitted.distance,
        at.config,
        speed,
        ranks=at.group.size,
        here=at.group.here,
        notes=notes,
        resolved=not learning["at_edge"],
    )
    return replace(state, plan=revised, learning=learning)


def seconds_to_judge(config: FitConfig) -> float:
    """Return the part of ``budget.minutes`` reserved for the held-out stars [s]."""
    tested = _TESTS + BASELINE_SECONDS if config.data.holdout > 0 else 0.0
    return max(tested, _LEAST * config.budget.seconds)


def second_samples(stars: FittedStars) -> int:
    """Return the number of samples of the second map."""
    return _SECOND_SAMPLES if len(stars.split.train) >= _MERIT_SAMPLES else 0


def first_settings(config: FitConfig, samples: int = 0) -> FitConfig:
    """Return the configuration of a map of few samples or none."""
    inference = config.inference.model_copy(update={"samples": samples})
    return config.model_copy(update={"inference": inference})


def foreseen(state: FitState, stars: FittedStars, at: Context) -> list[float]:
    """Return the seconds of all stages by the plan; nothing if not foreseeable."""
    if state.plan is None:
        return []
    plan, speed = state.planned
    work = _work_of(plan, stars.fitted.distance, at)
    if work is None:
        return []
    whole = work.seconds(speed)
    first = second = 0.0
    if at.config.shares_noise:
        none, few = (
            replace(work, config=first_settings(at.config, n)).seconds(speed)
            for n in (0, second_samples(stars))
        )
        # A map without samples and one before it take about the same time.
        first, second, whole = none / 2, few - none / 2, whole - none / 2
    slower = seconds_beside(speed) / sum(SECONDS_BESIDE.values())
    scales, residual, *judged = (slower * s for s in SECONDS_BESIDE.values())
    each = residual / 2 if at.config.shares_noise else 0.0
    learnt = scales, first, each, second, each
    return [_PLAN, *learnt, whole, sum(judged), _WRITING]


def _work_of(plan: Plan, distances: np.ndarray, at: Context) -> Work | None:
    """Return the work of a plan for stars at these distances [pc], if foreseeable."""
    there = {"ranks": at.group.size, "here": at.group.here}
    return ENGINES[plan.engine].work_of(plan, distances, at.config, **there)


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
