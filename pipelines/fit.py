"""One run: catalogue → plan → posterior → run folder."""

from __future__ import annotations

import json
import platform
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dustmap
from dustmap.posterior import Posterior
from pipelines import cost
from pipelines.announce import announce, expected, recorder, refuse_too_large
from pipelines.assessment import held_out_score, sight_line_lengths
from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.engines import Inference, run_engine
from pipelines.errors import InputError
from pipelines.figures.history import history
from pipelines.figures.style import save_figure
from pipelines.learning import learn_plan
from pipelines.observations import Data
from pipelines.plan import Plan, work_of
from pipelines.planner import make_plan
from pipelines.predict import predict_columns, write_predictions
from pipelines.progress import Progress
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
from pipelines.timing import StageClock

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """A catalogue's stars: all, those to fit, those kept back; counts by reason."""

    stars: Stars
    train: Stars
    test: Stars
    counts: dict[str, int]


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
    clock = StageClock()
    generator = torch.Generator().manual_seed(config.inference.seed)
    sample = _read(source, config, generator)
    place = {**_place(config), "generator": generator}
    clock.lap("read")
    plan, work, speed = make_plan(planning_view(sample.train, config), config, **place)
    sample = _inside(sample, plan, source)
    if plan.engine == "full-batch":
        refuse_too_large(work, config)
    clock.lap("plan")
    records: list[dict[str, Any]] = []
    result = _infer(plan, work, speed, sample.train, config, place, clock, records)
    predictions = predict_columns(result.plan, _posterior(result, config), sample.test)
    report = FitReport(
        output=output,
        plan=result.plan,
        counts=sample.counts,
        held_out=held_out_score(predictions, sample.test, result.plan),
        seconds=clock.seconds,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        converged=result.converged,
        messages=result.messages,
    )
    support = sight_line_lengths(result.plan, sample.train)
    clock.lap("held-out test")
    state = State(mean=result.mean, samples=result.samples, support=support)
    with atomic_directory(output, overwrite=overwrite) as folder:
        _write(folder, source, sample, config, report, result.facts)
        write_state(folder, state)
        _write_records(folder, records)
        if len(sample.test):
            write_predictions(folder / "held_out.parquet", sample.test, predictions, {})
        write_manifest(folder)
    return report


def _read(source: Path, config: FitConfig, generator: torch.Generator) -> _Sample:
    stars, counts = usable_stars(read_stars(source), config, source)
    train, test = split_stars(stars, config.data.holdout, generator)
    return _Sample(stars=stars, train=train, test=test, counts=counts)


def _inside(sample: _Sample, plan: Plan, source: Path) -> _Sample:
    """The stars in the plan's box, those to fit in the order of their directions."""
    train, outside = stars_inside(by_direction(sample.train), plan)
    test, outside_test = stars_inside(sample.test, plan)
    if len(train) < FEWEST:
        raise InputError(f"{source}: only {len(train)} stars lie in the box")
    counts = {
        **sample.counts,
        "fitted": len(train),
        "held out": len(test),
        "outside the box": outside + outside_test,
    }
    return replace(sample, train=train, test=test, counts=counts)


def _infer(
    plan: Plan,
    work: cost.Work,
    speed: cost.Speed,
    train: Stars,
    config: FitConfig,
    place: dict[str, Any],
    clock: StageClock,
    records: list[dict[str, Any]],
) -> Inference:
    """Learn the scales, then run the engine; what was learnt is among the facts."""
    data = _data(train, config)
    with Progress(description="scales") as progress:
        on_step = recorder(records, progress)
        learned = learn_plan(plan, data, config, **place, on_step=on_step)
    if learned is not None:
        plan = learned.plan
        work = work_of(plan.grid, plan.build_kernel(), train.distance, config)
    clock.lap("scales")
    announce(plan, work, speed, config)
    blurred = data.distance_error is not None
    known = expected(plan, work, speed, config, blurred=blurred)
    with Progress(description="inference") as progress:
        on_step = recorder(records, progress, known)
        result = run_engine(plan, data, config, **place, on_step=on_step)
    clock.lap("inference")
    if learned is None:
        return result
    return replace(result, facts={**result.facts, "learning": learned.facts})


def _posterior(result: Inference, config: FitConfig) -> Posterior:
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)


def _place(config: FitConfig) -> dict[str, Any]:
    """Device and precision of the products, by name."""
    wanted = config.inference.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "inference.device = cuda, but torch sees no CUDA device: install a CUDA "
            "build of torch (see the README) or use device = auto"
        )
    name = "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
    if config.inference.engine == "svi":
        return {"device": torch.device("cpu"), "dtype": torch.float64}
    if name == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        raise InputError("TF32 is on: it is too coarse for this; switch it off")
    precise = config.inference.dtype == "float64"
    dtype = torch.float64 if precise else torch.float32
    return {"device": torch.device(name), "dtype": dtype}


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


def _write(
    folder: Path,
    source: Path,
    sample: _Sample,
    config: FitConfig,
    report: FitReport,
    facts: dict[str, Any],
) -> None:
    (folder / "config.toml").write_text(to_toml(config))
    provenance = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "seed": config.inference.seed,
        "configuration": json.loads(config.model_dump_json()),
        "inputs": input_digests(source),
        "catalogue": sample.stars.meta,
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads()},
    }
    summary = {
        "counts": report.counts,
        "held_out": report.held_out,
        "seconds": report.seconds,
        "peak_memory_bytes": report.memory,
        "converged": report.converged,
        "messages": list(report.messages),
        **facts,
    }
    write_json(
        folder / "run.json",
        {"plan": report.plan.as_dict(), "summary": summary, "provenance": provenance},
    )
    train = sample.train
    if len(train) > _KEPT_STARS:
        every = np.linspace(0, len(train) - 1, _KEPT_STARS).astype(np.int64)
        train = train.select(every)
    write_stars(folder / "stars.parquet", train, overwrite=False)


def _write_records(folder: Path, records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if any("seconds" in record for record in records):
        save_figure(history(records), folder / "convergence.png")
