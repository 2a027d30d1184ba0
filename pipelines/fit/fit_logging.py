"""What a fit tells while it runs: what was chosen, what it needs, how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.base.errors import InputError
from pipelines.base.progress import Progress, say
from pipelines.base.timing import TimeLeft
from pipelines.config import FitConfig
from pipelines.model import cost
from pipelines.model.plan import Plan, memory_limit, round_spacing

# What a fit may need beyond its memory before a mistake is more likely than a wish.
_ABSURD = 100


def announce(plan: Plan, work: cost.Work, speed: cost.Speed, config: FitConfig) -> None:
    """Print what was chosen, and refuse what cannot fit into memory."""
    grid = plan.grid
    box = " x ".join(
        f"[{a:.6g}, {b:.6g}]" for a, b in zip(grid.lower, grid.upper, strict=True)
    )
    say(
        f"grid: {' x '.join(map(str, grid.shape))} = {grid.size} points every "
        f"{' x '.join(f'{h:.4g}' for h in grid.spacing)} pc, box {box} pc"
    )
    mean = plan.mean
    shape = f", scale height {mean.scale_height:.4g} pc" if mean.scale_height else ""
    lognormal = plan.density == "lognormal"
    unit, kind = (" of ln density", "median") if lognormal else (" mag/pc", "mean")
    say(
        f"prior: {plan.density}, {plan.kernel}, lengthscale "
        f"{' x '.join(f'{s:.4g}' for s in plan.lengthscale)} pc, std {plan.std:.4g}"
        f"{unit}; {kind}: {mean.kind} {mean.value:.4g} mag/pc{shape}; common noise "
        f"{plan.common_noise:.4g} mag"
    )
    for note in plan.notes:
        say(f"note: {note}")
    if plan.engine != "full-batch":
        return
    parts = cost.memory(work)
    total = sum(parts.values())
    listing = ", ".join(f"{k} {v / 2**30:.2f}" for k, v in parts.items())
    each = ""
    if work.ranks > 1:
        each = f" for each of {work.ranks} processes, {work.here} on this machine"
    say(f"memory: {total / 2**30:.2f} GiB{each} ({listing})")
    say(f"time: about {cost.seconds(work, speed):.0f} s for the solves")
    refuse_too_large(plan, work, config)


def refuse_too_large(plan: Plan, work: cost.Work, config: FitConfig) -> None:
    """Learning, too, would fill the memory with a grid that cannot fit into it."""
    total, limit = cost.foreseen(work), memory_limit(config)
    if total <= limit:
        return
    spacing, points = max(plan.grid.spacing), " x ".join(map(str, plan.grid.shape))
    text = (
        f"this grid of {points} points every {spacing:.4g} pc needs "
        f"{total / 2**30:,.2f} GiB, the budget is {limit / 2**30:.2f} GiB: "
    )
    coarser = _coarser(work, limit)
    if coarser is None:
        raise InputError(
            f"{text}no spacing fits. Raise budget.memory_gib, or fit fewer stars"
        )
    fitting = f"box.spacing={round_spacing(coarser * spacing):g}"
    if total > _ABSURD * limit:
        size = " x ".join(
            f"{b - a:.6g}"
            for a, b in zip(plan.grid.lower, plan.grid.upper, strict=True)
        )
        raise InputError(
            f"{text}are box ({size} pc) and spacing meant to be that, and in pc? The "
            f"finest spacing that fits into this box is about {fitting}"
        )
    raise InputError(
        f"{text}raise budget.memory_gib, lower inference.samples, or choose a coarser "
        f"grid, at the finest about {fitting}; without box.spacing it is chosen"
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
    "scales misfit": "misfit",
    "gain": "promised_gain",
    "scales": "promised_gain",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known of an inference before it begins.

    Parameters
    ----------
    seconds
        The estimate of its time.
    samples
        How many samples it will draw.
    tolerances
        Relative residuals at which solves stop, by the first word of their stages;
        others stop where the steps between them call for.
    """

    seconds: float
    samples: int
    tolerances: Mapping[str, float]


def expected(
    plan: Plan, work: cost.Work, speed: cost.Speed, config: FitConfig, *, blurred: bool
) -> Expected | None:
    """Of the full-batch engine; ``blurred`` says that distance errors count."""
    if plan.engine != "full-batch":
        return None
    inference = config.inference
    tolerances = {"samples": inference.sample_tolerance}
    if plan.density == "gaussian" and not plan.outliers and not blurred:
        # One linear solve, with a noise that is known.
        tolerances["mean"] = inference.tolerance
    return Expected(
        seconds=cost.seconds(work, speed),
        samples=inference.samples,
        tolerances=tolerances,
    )


def recorder(
    records: MutableSequence[dict[str, Any]],
    progress: Progress,
    known: Expected | None = None,
    *,
    tell: Callable[..., None] | None = None,
) -> Callable[[str, int, float], None]:
    """Keeps every iteration, and shows it, with the time left if there is an estimate.

    A residual is kept with its tolerance where this is known. ``tell`` is given what
    is shown, by name.
    """
    started = time.perf_counter()
    before = records[-1]["seconds"] if records else 0.0
    left = None if known is None else TimeLeft(known.seconds, known.samples)
    tolerances = {} if known is None else known.tolerances

    def on_step(stage: str, step: int, value: float) -> None:
        shown: dict[str, Any] = {"stage": stage, "iteration": step}
        if left is not None:
            shown["left"] = left.at(stage)
            progress.show(left=shown["left"])
        if value == value:
            kind = _VALUES.get(stage, "residual")
            record = {"stage": stage, "iteration": step, kind: value}
            if kind == "residual" and (first := stage.split()[0]) in tolerances:
                record["tolerance"] = tolerances[first]
            passed = time.perf_counter() - started
            records.append({**record, "seconds": round(before + passed, 3)})
            progress.show(**{kind: f"{value:.2e}"})
            shown["value"] = {kind: value}
        if tell is not None:
            tell(**shown)
        progress.update(stage=stage, step=step)

    return on_step
