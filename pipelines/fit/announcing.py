"""The announcement of a fit: its plan, memory and time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dustmap.models.means import ExponentialDisc
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.fit.context import Context
from pipelines.fit.state import FitState
from pipelines.model.cost import Work, machine_memory
from pipelines.model.engine import ENGINES
from pipelines.model.plan import Plan


def announce(state: FitState, at: Context) -> None:
    """Print the plan with its memory and time, and refuse it if memory is too small.

    Raises
    ------
    InputError
        As `require_memory`.
    """
    plan, speed = state.planned
    for line in plan_in_words(plan):
        say(line)
    work = require_memory(plan, at.fitted.distance, at)
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
    there = {"ranks": at.group.size, "here": at.group.here}
    work = ENGINES[plan.engine].work_of(plan, distances, at.config, **there)
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


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
