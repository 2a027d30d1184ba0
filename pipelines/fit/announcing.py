"""What a fit says before its inferences: what was chosen, and what it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.state import FitState
from pipelines.model import cost
from pipelines.model.cost import memory_limit, work_of
from pipelines.model.plan import Plan
from pipelines.planning.grids import round_spacing

# Distances [pc] at which the resolution of nested grids is printed.
_SHOWN_AT = (50.0, 200.0, 1000.0)


def announce(state: FitState, at: Context) -> None:
    """Print the plan with its memory and time, and refuse what cannot fit into memory.

    Raises
    ------
    InputError
        As `refuse_too_large`.
    """
    plan, speed = state.planned
    for line in plan_in_words(plan, at.config):
        say(line)
    if not plan.is_full_batch:
        return
    config, distances = at.config, at.fitted.distance
    work = work_of(plan.grids, plan.build_kernel(), distances, config, std=plan.std)
    work = work.shared_out(at.group.size, at.group.here)
    parts = cost.memory(work)
    listing = ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.items())
    each = ""
    if work.ranks > 1:
        each = f" for each of {work.ranks} processes, {work.here} on this machine"
    say(f"memory: {sum(parts.values()) / 2**30:.2f} GiB{each} ({listing})")
    seconds, minutes = cost.seconds(work, speed), config.budget.minutes
    say(f"time: about {seconds:.0f} s for the solves")
    if seconds > at.seconds_left:
        say(
            f"note: less is left of budget.minutes = {minutes:g}: the solves will end "
            "early, with fewer samples; raise it, or take a coarser grid"
        )
    refuse_too_large(plan, work, config)


def plan_in_words(plan: Plan, config: FitConfig) -> list[str]:
    """Return lines about the grids, the prior and what was chosen of them."""
    grid, mean = plan.grid, plan.mean
    sides = zip(grid.lower, grid.upper, strict=True)
    box = " x ".join(f"[{a:.6g}, {b:.6g}]" for a, b in sides)
    lines = [
        f"grid: {_by(grid.shape)} = {grid.size} points every {_by(grid.spacing)} pc, "
        f"box {box} pc"
    ]
    radius, inside = config.data.max_distance, Box(lower=grid.lower, upper=grid.upper)
    missing = 0.0 if radius is None else inside.outside(radius)
    if missing:
        line = (
            f"note: {100 * missing:.2g}% of the sky at data.max_distance = {radius:g} "
            f"pc lies outside the box, none of it to {grid.reach:.4g} pc"
        )
        is_free = (config.box.x, config.box.y, config.box.z) == (None, None, None)
        lines.append(line + is_free * "; box.cover = sphere holds all of it")
    for inner in plan.finer_grids:
        lines.append(
            f"finer grid: {_by(inner.shape)} = {inner.size} points every "
            f"{_by(inner.spacing)} pc, to {inner.reach:.4g} pc"
        )
    if plan.finer:
        corner = math.hypot(*np.maximum(np.abs(grid.lower), np.abs(grid.upper)))
        shown = [far for far in _SHOWN_AT if far < corner]
        cells = [f"{plan.step_at(far):.4g} pc at {far:g} pc" for far in shown]
        lines.append(f"resolution: cells of {', '.join(cells)}")
    height = f", scale height {mean.scale_height:.4g} pc" if mean.scale_height else ""
    unit, kind = " mag/pc", "mean"
    if plan.is_lognormal:
        unit, kind = " of ln density", "median"
    lines.append(
        f"prior: {plan.density}, {plan.kernel}, lengthscale {_by(plan.lengthscale)} "
        f"pc, std {plan.std:.4g}{unit}; {kind}: {mean.kind} {mean.value:.4g} "
        f"mag/pc{height}; common noise {plan.common_noise:.4g} mag"
    )
    return lines + [f"note: {note}" for note in plan.notes]


def refuse_too_large(plan: Plan, work: cost.Work, config: FitConfig) -> None:
    """Refuse a fit that does not fit into memory, before anything is learnt.

    Raises
    ------
    InputError
        It names the finest spacing that fits.
    """
    total, limit = cost.foreseen(work), memory_limit(config)
    if total <= limit:
        return
    grid, spacing = plan.grid, max(plan.grid.spacing)
    size = _by(b - a for a, b in zip(grid.lower, grid.upper, strict=True))
    remedy = "no spacing fits; raise budget.memory_gib, or fit fewer stars"
    for eighths in range(1, 8 * 20):
        factor = 2 ** (eighths / 8)
        points = max(int(work.torus_points / factor**3), 1)
        cells = work.ray_cells / factor
        coarser = replace(work, torus_points=points, ray_cells=cells)
        if cost.foreseen(coarser) <= limit:
            remedy = (
                "choose a coarser grid, at the finest about box.spacing="
                f"{round_spacing(factor * spacing):g}, or a smaller box; raise "
                "budget.memory_gib, or lower inference.samples"
            )
            break
    raise InputError(
        f"this grid of {_by(grid.shape)} points every {spacing:.4g} pc in a box of "
        f"({size} pc) needs {total / 2**30:,.2f} GiB, the budget is "
        f"{limit / 2**30:.2f} GiB: {remedy}"
    )


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)
