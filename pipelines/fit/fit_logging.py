"""What a fit tells while it runs: what was chosen, what it needs, how far it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.progress import Progress, say
from pipelines.base.timing import Countdown, in_words
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.cost import memory_limit
from pipelines.model.plan import Plan
from pipelines.planning.grids import round_spacing

# Distances [pc] at which the resolution of nested grids is told.
_TOLD_AT = (50.0, 200.0, 1000.0)


def announce(
    plan: Plan,
    work: cost.Work,
    speed: cost.Speed,
    config: FitConfig,
) -> None:
    """Print what was chosen, and refuse what cannot fit into memory."""
    grid, mean = plan.grid, plan.mean
    sides = zip(grid.lower, grid.upper, strict=True)
    box = " x ".join(f"[{a:.6g}, {b:.6g}]" for a, b in sides)
    say(
        f"grid: {_by(grid.shape)} = {grid.size} points every {_by(grid.spacing)} pc, "
        f"box {box} pc"
    )
    radius, whole = config.data.max_distance, Box(lower=grid.lower, upper=grid.upper)
    if radius is not None and (missing := whole.outside(radius)):
        remedy = ""
        if (config.box.x, config.box.y, config.box.z) == (None, None, None):
            remedy = "; box.cover = sphere holds all of it"
        say(
            f"note: {100 * missing:.2g}% of the sky at data.max_distance = {radius:g} "
            f"pc lies outside the box, none of it to {grid.reach:.4g} pc{remedy}"
        )
    for inner in plan.finer_grids:
        say(
            f"finer grid: {_by(inner.shape)} = {inner.size} points every "
            f"{_by(inner.spacing)} pc, to {inner.reach:.4g} pc"
        )
    if plan.finer:
        corner = math.hypot(*np.maximum(np.abs(grid.lower), np.abs(grid.upper)))
        told = [far for far in _TOLD_AT if far < corner]
        cells = [f"{plan.step_at(far):.4g} pc at {far:g} pc" for far in told]
        say(f"resolution: cells of {', '.join(cells)}")
    height = f", scale height {mean.scale_height:.4g} pc" if mean.scale_height else ""
    unit, kind = " mag/pc", "mean"
    if plan.is_lognormal:
        unit, kind = " of ln density", "median"
    say(
        f"prior: {plan.density}, {plan.kernel}, lengthscale {_by(plan.lengthscale)} "
        f"pc, std {plan.std:.4g}{unit}; {kind}: {mean.kind} {mean.value:.4g} "
        f"mag/pc{height}; common noise {plan.common_noise:.4g} mag"
    )
    for note in plan.notes:
        say(f"note: {note}")
    if not plan.is_full_batch:
        return
    parts = cost.memory(work)
    listing = ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.items())
    each = ""
    if work.ranks > 1:
        each = f" for each of {work.ranks} processes, {work.here} on this machine"
    say(f"memory: {sum(parts.values()) / 2**30:.2f} GiB{each} ({listing})")
    seconds, minutes = cost.seconds(work, speed), config.budget.minutes
    others = sum(cost.beside(speed).values())
    say(f"time: about {seconds:.0f} s for the solves, {others:.0f} s for all else")
    if seconds + others > 60 * minutes:
        say(
            f"note: budget.minutes = {minutes:g} is less than that: the solves will "
            "end early, with fewer samples; raise it, or take a coarser grid"
        )
    refuse_too_large(plan, work, config)


def _by(numbers: Iterable[float]) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)


def refuse_too_large(plan: Plan, work: cost.Work, config: FitConfig) -> None:
    """Raise `InputError` if the fit cannot fit into memory: learning could not either.

    The message names the finest spacing that fits.
    """
    total, limit = cost.foreseen(work), memory_limit(config)
    if total <= limit:
        return
    grid, spacing = plan.grid, max(plan.grid.spacing)
    size = _by(b - a for a, b in zip(grid.lower, grid.upper, strict=True))
    coarser = _coarser(work, limit)
    remedy = "no spacing fits; raise budget.memory_gib, or fit fewer stars"
    if coarser is not None:
        finest = round_spacing(coarser * spacing)
        remedy = (
            f"choose a coarser grid, at the finest about box.spacing={finest:g}, or a "
            "smaller box; raise budget.memory_gib, or lower inference.samples"
        )
    raise InputError(
        f"this grid of {_by(grid.shape)} points every {spacing:.4g} pc in a box of "
        f"({size} pc) needs {total / 2**30:,.2f} GiB, the budget is "
        f"{limit / 2**30:.2f} GiB: {remedy}"
    )


def _coarser(work: cost.Work, limit: float) -> float | None:
    """By how much the spacing has to grow for a fit into ``limit`` bytes."""
    for step in range(1, 8 * 20):
        factor = 2 ** (step / 8)
        less = replace(
            work,
            torus_points=max(int(work.torus_points / factor**3), 1),
            ray_cells=work.ray_cells / factor,
        )
        if cost.foreseen(less) <= limit:
            return factor
    return None


# What the number that comes with a stage is, where it is no relative residual.
_VALUES = {
    "svi bound": "bound",
    "misfit": "misfit",
    "gain": "expected_gain",
    "scales likelihood": "expected_gain",
    "scales simulations": "expected_gain",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known of a fit before it begins.

    ``parts`` are the seconds that its parts will take, in their order; ``samples`` how
    many it will draw, and ``tolerances`` the relative residuals at which solves stop,
    by the first word of their stages; others stop where the steps between them call
    for.
    """

    parts: Mapping[str, float]
    samples: int
    tolerances: Mapping[str, float]


def expected(
    plan: Plan,
    work: cost.Work,
    speed: cost.Speed,
    config: FitConfig,
    *,
    blurred: bool,
    learns: bool = False,
) -> Expected | None:
    """Of the full-batch engine; ``blurred`` says that distance errors count.

    ``learns`` says that the scales are still to be learnt.
    """
    if not plan.is_full_batch:
        return None
    inference = config.inference
    tolerances = {}
    if not plan.is_lognormal:
        tolerances["samples"] = inference.sample_tolerance
    if not (plan.is_lognormal or plan.outliers or blurred):
        # One linear solve, with a noise that is known.
        tolerances["mean"] = inference.tolerance
    solves, beside = cost.parts(work, speed), cost.beside(speed)
    parts = {"scales": beside["scales"]} if learns else {}
    if "first map" in solves:
        parts["first map"] = solves.pop("first map")
        parts["residual"] = beside["residual"]
    parts |= solves
    if config.data.holdout > 0:
        parts |= {name: beside[name] for name in ("tests", "baselines")}
    return Expected(parts=parts, samples=inference.samples, tolerances=tolerances)


def recorder(
    records: MutableSequence[dict[str, Any]],
    progress: Progress,
    known: Expected | None = None,
    countdown: Countdown | None = None,
    *,
    tell: Callable[..., None] | None = None,
) -> Callable[[str, int, float], None]:
    """Record every iteration, and show it with the time left until the fit's end.

    A residual is recorded with its tolerance where there is one. ``tell`` is given
    when the fit is expected to end (``ends``, Unix time [s]).
    """
    started = time.perf_counter()
    before = records[-1]["seconds"] if records else 0.0
    tolerances = {} if known is None else known.tolerances
    samples = 0 if known is None else known.samples

    def on_step(stage: str, step: int, value: float) -> None:
        if countdown is not None:
            left = countdown.at(stage, samples)
            progress.show(left=in_words(left))
            if tell is not None:
                tell(ends=time.time() + left)
        if value == value:
            kind = _VALUES.get(stage, "residual")
            record = {"stage": stage, "iteration": step, kind: value}
            if kind == "residual" and (first := stage.split()[0]) in tolerances:
                record["tolerance"] = tolerances[first]
            passed = time.perf_counter() - started
            records.append({**record, "seconds": round(before + passed, 3)})
            progress.show(**{kind: f"{value:.2e}"})
        progress.update(stage=stage, step=step)

    return on_step
