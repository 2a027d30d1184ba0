"""One run: catalogue → plan → posterior → run folder."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipelines import cost
from pipelines.announce import announce, expected, recorder, refuse_too_large
from pipelines.assessment import held_out_score, sight_line_lengths
from pipelines.catalog.schema import Stars
from pipelines.config import FitConfig
from pipelines.engines import Inference, run_engine
from pipelines.learning import learn_plan
from pipelines.place import Place, place_of
from pipelines.plan import Plan, work_of
from pipelines.planner import make_plan
from pipelines.predict import predict_columns, write_predictions
from pipelines.progress import Progress
from pipelines.result import (
    FitReport,
    posterior_of,
    write_fitted,
    write_metrics,
    write_record,
)
from pipelines.run import State, check_output, write_state
from pipelines.sample import data_of, inside_box, read_sample
from pipelines.selection import planning_view
from pipelines.store import atomic_directory, input_digests, write_manifest
from pipelines.timing import StageClock

__all__ = ["FitReport", "fit"]


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
    sample = read_sample(source, config, generator)
    place = place_of(config, generator)
    clock.lap("read")
    plan, work, speed = make_plan(planning_view(sample.train, config), config, **place)
    sample = inside_box(sample, plan, source)
    if plan.engine == "full-batch":
        refuse_too_large(work, config)
    clock.lap("plan")
    records: list[dict[str, Any]] = []
    result = _infer(plan, work, speed, sample.train, config, place, clock, records)
    predictions = predict_columns(
        result.plan, posterior_of(result, config), sample.test
    )
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
    provenance = {"inputs": input_digests(source), "catalogue": sample.meta}
    with atomic_directory(output, overwrite=overwrite) as folder:
        write_record(folder, config, report, facts=result.facts, provenance=provenance)
        write_fitted(folder, sample.train)
        write_state(folder, state)
        write_metrics(folder, records)
        if len(sample.test):
            write_predictions(folder / "held_out.parquet", sample.test, predictions, {})
        write_manifest(folder)
    return report


def _infer(
    plan: Plan,
    work: cost.Work,
    speed: cost.Speed,
    train: Stars,
    config: FitConfig,
    place: Place,
    clock: StageClock,
    records: list[dict[str, Any]],
) -> Inference:
    """Learn the scales, then run the engine; what was learnt is among the facts."""
    data = data_of(train, config)
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
