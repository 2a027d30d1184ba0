"""What a fit may take: its plan, and its memory."""

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
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.model.cost import Machine, Work, machine_memory
from pipelines.model.plan import Plan
from pipelines.planning.planner import RAISED, make_plan
from pipelines.planning.prior import NOT_SETTLED


def announce(state: FitState, stars: FittedStars, at: Context) -> None:
    """Print the plan with its memory, and refuse it if memory is too small.

    Raises `InputError` as `require_memory`.
    """
    for line in plan_in_words(state.planned):
        say(line)
    work = require_memory(state, stars.distances, at)
    if work is None:
        return
    parts = work.memory()
    listing = ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.items())
    each, (ranks, here) = "", work.machine
    if ranks > 1:
        each = f" for each of {ranks} processes, {here} on this machine"
    say(f"memory: {sum(parts.values()) / 2**30:.2f} GiB{each} ({listing})")


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


def require_memory(state: FitState, distances: np.ndarray, at: Context) -> Work | None:
    """Return the work of a fit to stars at these distances [pc], if known.

    Raises `InputError` if the fit needs more memory than the budget, or than this
    machine has.
    """
    work = _foreseen_work(state, distances, at)
    if work is None:
        return None
    budget, here = at.config.budget.bytes, machine_memory(at.config)
    if work.together > min(budget, here):
        grid = state.planned.grid
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
    made = state.planned
    notes = tuple(note for note in made.notes if not note.startswith(RAISED))
    if not learning["converged"]:
        notes = (*notes, NOT_SETTLED)
    revised = make_plan(
        scales,
        Box.of(made.grid),
        stars.distances,
        at.config,
        machine_of(at),
        notes=notes,
        resolved=not learning["at_edge"],
    )
    return replace(state, plan=revised, learning=learning)


def machine_of(at: Context) -> Machine:
    """Return the processes of the fit."""
    return Machine(at.group.size, at.group.here)


def _foreseen_work(state: FitState, distances: np.ndarray, at: Context) -> Work | None:
    """Return the work for stars at these distances [pc], if foreseeable."""
    plan, config, machine = state.planned, at.config, machine_of(at)
    if not plan.abilities.foreseen:
        return None
    work = Work.of(plan.grids, plan.build_kernel(), distances, config, machine)
    return replace(work, block=plan.block)


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
