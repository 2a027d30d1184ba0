"""One run: catalogue → plan → posterior → run folder."""

from __future__ import annotations

import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dustmap
from dustmap.posterior import Posterior
from pipelines import cost
from pipelines.assessment import held_out_score, sight_line_lengths
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.engines import Data, Inference, run_engine
from pipelines.errors import InputError
from pipelines.figures.history import history
from pipelines.figures.style import save_figure
from pipelines.learning import learn_plan
from pipelines.plan import Plan, memory_limit, work_of
from pipelines.planner import make_plan
from pipelines.predict import predict_columns, write_predictions
from pipelines.progress import Progress, say
from pipelines.run import (
    State,
    check_output,
    posterior_model,
    write_json,
    write_state,
)
from pipelines.selection import (
    FEWEST,
    by_direction,
    distance_errors,
    planning_view,
    split_stars,
    stars_inside,
    usable_stars,
)
from pipelines.store import atomic_directory, input_digests, write_manifest

# Stars kept in the run folder for plots.
_KEPT_STARS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What a fit did, in numbers; ``str`` gives the lines for people."""

    output: Path
    plan: Plan
    counts: dict[str, int]
    held_out: dict[str, float]
    seconds: dict[str, float]
    memory: float
    converged: bool
    messages: tuple[str, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        lines = [f"stars: {counts}", *self.messages]
        if self.held_out:
            h = self.held_out
            line = f"held-out extinction: RMSE {h['rmse']:.4g} mag (noise included)"
            if "coverage_68" in h:
                line += (
                    f"; the 68% intervals hold {h['coverage_68']:.3f} of "
                    f"{int(h['stars'])} stars, the 95% ones {h['coverage_95']:.3f}"
                )
            lines.append(line)
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in self.seconds.items())
        lines.append(f"time: {spent}; peak memory {self.memory / 2**30:.2f} GiB")
        lines.append(f"run: {self.output}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def fit(
    source: Path, output: Path, config: FitConfig, *, overwrite: bool = False
) -> FitReport:
    """Fit a map to a catalogue that ``ingest`` or ``simulate`` wrote.

    Raises
    ------
    InputError
        If the catalogue has no extinctions or too few usable stars, the budget allows
        no grid, or the output exists or cannot be written.
    """
    check_output(output, overwrite=overwrite)
    clock = _Clock()
    stars = read_stars(source)
    stars, counts = usable_stars(stars, config, source)
    generator = torch.Generator().manual_seed(config.inference.seed)
    train, test = split_stars(stars, config.data.holdout, generator)
    counts = {**counts, "fitted": len(train), "held out": len(test)}
    device, dtype = _place(config)
    clock.lap("read")
    plan, work, speed = make_plan(
        planning_view(train, config),
        config,
        dtype=dtype,
        device=device,
        generator=generator,
    )
    train, outside = stars_inside(by_direction(train), plan)
    test, outside_test = stars_inside(test, plan)
    counts.update(
        {"outside the box": outside + outside_test, "fitted": len(train)},
        **{"held out": len(test)},
    )
    if len(train) < FEWEST:
        raise InputError(f"{source}: only {len(train)} stars lie in the box")
    if plan.engine == "full-batch":
        _refuse_too_large(work, config)
    clock.lap("plan")
    records: list[dict[str, Any]] = []
    data = _data(train, config)
    place = {"dtype": dtype, "device": device, "generator": generator}
    with Progress(description="scales") as progress:
        on_step = _recorder(records, progress, config)
        learned = learn_plan(plan, data, config, **place, on_step=on_step)
    if learned is not None:
        plan = learned.plan
        kernel = plan.build_kernel()
        work = work_of(plan.grid, kernel, train.distance, config)
    clock.lap("scales")
    _announce(plan, work, speed, config)
    with Progress(description="inference") as progress:
        expected = cost.seconds(work, speed) if plan.engine == "full-batch" else 0.0
        on_step = _recorder(records, progress, config, expected)
        result = run_engine(plan, data, config, **place, on_step=on_step)
    if learned is not None:
        result = replace(result, facts={**result.facts, "learning": learned.facts})
    clock.lap("inference")
    predictions = predict_columns(result.plan, _posterior(result, config), test)
    held_out = held_out_score(predictions, test, result.plan)
    support = sight_line_lengths(result.plan, train)
    clock.lap("held-out test")
    report = FitReport(
        output=output,
        plan=result.plan,
        counts=counts,
        held_out=held_out,
        seconds=clock.seconds,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        converged=result.converged,
        messages=result.messages,
    )
    with atomic_directory(output, overwrite=overwrite) as folder:
        _write(folder, source, stars, train, config, report, result)
        write_state(
            folder, State(mean=result.mean, samples=result.samples, support=support)
        )
        lines = [json.dumps(record) + "\n" for record in records]
        (folder / "metrics.jsonl").write_text("".join(lines))
        if any("seconds" in record for record in records):
            save_figure(history(records), folder / "convergence.png")
        if len(test):
            write_predictions(folder / "held_out.parquet", test, predictions, {})
        write_manifest(folder)
    return report


def _posterior(result: Inference, config: FitConfig) -> Posterior:
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)


def _place(config: FitConfig) -> tuple[torch.device, torch.dtype]:
    wanted = config.inference.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "inference.device = cuda, but torch sees no CUDA device: install a CUDA "
            "build of torch (see the README) or use device = auto"
        )
    name = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
    if config.inference.engine == "svi":
        return torch.device("cpu"), torch.float64
    if name == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        raise InputError("TF32 is on: it is too coarse for this; switch it off")
    precise = config.inference.dtype == "float64"
    return torch.device(name), torch.float64 if precise else torch.float32


def _announce(
    plan: Plan, work: cost.Work, speed: cost.Speed, config: FitConfig
) -> None:
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
    say(f"memory: {total / 2**30:.2f} GiB ({listing})")
    say(f"time: about {cost.seconds(work, speed):.0f} s for the solves")
    _refuse_too_large(work, config)


def _refuse_too_large(work: cost.Work, config: FitConfig) -> None:
    """Learning, too, would fill the memory with a grid that cannot fit into it."""
    total = sum(cost.memory(work).values())
    if total > memory_limit(config):
        raise InputError(
            f"this grid needs {total / 2**30:.2f} GiB, the budget is "
            f"{memory_limit(config) / 2**30:.2f} GiB: raise budget.memory_gib, lower "
            "inference.samples, or leave box.spacing to be chosen"
        )


def _data(stars: Stars, config: FitConfig) -> Data:
    assert stars.extinction is not None
    assert stars.extinction_error is not None
    with_errors = stars.distance_error is not None and config.model.distance_errors
    return Data(
        ends=torch.as_tensor(stars.positions()),
        extinction=torch.as_tensor(stars.extinction),
        variance=torch.as_tensor(stars.extinction_error**2),
        distance_error=(
            torch.as_tensor(distance_errors(stars)) if with_errors else None
        ),
    )


# What the number that comes with a stage is, where it is no relative residual.
_VALUES = {
    "svi bound": "bound",
    "misfit": "misfit",
    "scales misfit": "misfit",
    "gain": "promised_gain",
    "scales": "promised_gain",
}


def _recorder(
    records: list[dict[str, Any]],
    progress: Progress,
    config: FitConfig,
    expected: float = 0.0,
) -> Callable[[str, int, float], None]:
    """Keeps every iteration, and shows it."""
    started = time.perf_counter()
    before = records[-1]["seconds"] if records else 0.0

    def on_step(stage: str, step: int, value: float) -> None:
        # Of the expected time; nothing is promised beyond it.
        if expected:
            left = expected - (time.perf_counter() - started)
            progress.show(left=f"{left:.0f} s" if left > 0 else "longer than expected")
        finite = value == value
        kind = _VALUES.get(stage, "residual")
        if finite:
            record = {"stage": stage, "iteration": step, kind: value}
            if kind == "residual":
                record["tolerance"] = config.inference.tolerance
            passed = time.perf_counter() - started
            record["seconds"] = round(before + passed, 3)
            records.append(record)
        if finite:
            progress.show(**{kind: f"{value:.2e}"})
        progress.update(stage=stage, step=step)

    return on_step


def _write(
    folder: Path,
    source: Path,
    stars: Stars,
    train: Stars,
    config: FitConfig,
    report: FitReport,
    result: Inference,
) -> None:
    (folder / "config.toml").write_text(to_toml(config))
    provenance = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "seed": config.inference.seed,
        "configuration": json.loads(config.model_dump_json()),
        "inputs": input_digests(source),
        "catalogue": stars.meta,
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads()},
    }
    summary = {
        "counts": report.counts,
        "held_out": report.held_out,
        "seconds": report.seconds,
        "peak_memory_bytes": report.memory,
        "converged": report.converged,
        "messages": list(report.messages),
        **result.facts,
    }
    write_json(
        folder / "run.json",
        {"plan": report.plan.as_dict(), "summary": summary, "provenance": provenance},
    )
    if len(train) > _KEPT_STARS:
        every = np.linspace(0, len(train) - 1, _KEPT_STARS).astype(np.int64)
        train = train.select(every)
    write_stars(folder / "stars.parquet", train, overwrite=False)
