"""The last stage of a fit: the posterior, tested on held-out stars, as a run folder."""

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
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.fit.correlated_noise import last_residual, posterior_of
from pipelines.model.plan import Plan
from pipelines.planning.selection import Sample
from pipelines.run.assessment import crossed, sight_line_lengths
from pipelines.run.baseline import NO_BASELINE, in_words, predict_baseline
from pipelines.run.folder import write_json, write_state
from pipelines.run.held_out import FILE as HELD_OUT
from pipelines.run.held_out import held_out_score, write_held_out
from pipelines.run.predict import predict_columns
from pipelines.run.residual import write_residual
from pipelines.run.verdict import Verdict, verdict
from pipelines.saving.fit_state import FitState
from pipelines.saving.session import Session
from pipelines.storage.atomic import atomic_directory, check_manifest, write_manifest
from pipelines.storage.metrics import write_metrics

# Stars kept in the run folder for plots.
_KEPT_STARS = 200_000
_NO_TIME = (
    "no predictions without a map to compare with: they would not end within "
    "budget.minutes = {:g} (`dustmap fit --quick` makes them)"
)
# What of a report stands in ``run.json``, beside the plan.
_SUMMARY = (
    *("counts", "held_out", "seconds", "peak_memory_bytes"),
    *("converged", "messages"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What a fit did, in numbers; ``str`` gives the lines for people."""

    output: Path
    plan: Plan
    counts: dict[str, int]
    held_out: dict[str, float]
    seconds: dict[str, float]
    peak_memory_bytes: float
    converged: bool
    messages: list[str]

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        lines = [f"stars: {counts}", *self.messages]
        if self.held_out:
            lines.append(_told(self.held_out))
        if "rmse_kriging" in self.held_out:
            lines.append(in_words(self.held_out))
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in self.seconds.items())
        gib = self.peak_memory_bytes / 2**30
        lines.append(f"time: {spent}; peak memory {gib:.2f} GiB")
        lines.append(f"run: {self.output}")
        return "\n".join([*lines, str(self.verdict)])

    @property
    def verdict(self) -> Verdict:
        """Whether the map can be used, why, and what to do next."""
        return verdict(self.converged, self.held_out)


def _told(score: dict[str, float]) -> str:
    line = (
        f"held-out extinction: RMSE {score['rmse']:.4g} mag (noise included; they "
        f"scatter by {score['scatter']:.4g})"
    )
    if "coverage_68" not in score:
        return line
    return (
        f"{line}; the 68% intervals hold {score['coverage_68']:.3f} of "
        f"{int(score['stars'])} stars, the 95% ones {score['coverage_95']:.3f}"
    )


def report_of(output: Path) -> FitReport:
    """What the fit of a finished run did.

    Raises
    ------
    InputError
        If the run is incomplete or was altered.
    """
    check_manifest(output, allow_extra=True)
    description = json.loads((output / "run.json").read_text())
    summary = {name: description["summary"][name] for name in _SUMMARY}
    return FitReport(output=output, plan=Plan.from_dict(description["plan"]), **summary)


def write_run(session: Session, state: FitState, sample: Sample) -> FitReport:
    """Write the run folder, by the first rank; what the fit did, on all.

    Raises
    ------
    OSError
        If it cannot be written; what the fit saved before stays.
    """
    config, clock, result = session.config, session.manager.clock, state.result
    assert result is not None
    session.begin_silent_part("tests", "predicting the held-out stars")
    train = sample.train
    support, *finer = sight_line_lengths(result.plan, train, session.group)
    # The first rank alone predicts, tests and writes.
    test, residual, predictions = sample.stars.select(slice(0)), None, {}
    told: tuple[str, ...] = ()
    if session.group.first:
        test = sample.stars.select(sample.split.test)
        posterior = posterior_of(result, config)
        residual, told = last_residual(posterior, state, sample, config)
        posterior = replace(posterior, residual=residual)
        clock.lap("residual")
        predictions = predict_columns(result.plan, posterior, test) if len(test) else {}
    clock.lap("held-out test")
    if len(test):
        session.begin_silent_part("baselines", "predicting them from their neighbours")
        beside, said = _baseline(sample, config, in_time=session.is_in_time)
        predictions, told = predictions | beside, (*told, *said)
        clock.lap("baselines")
    report = FitReport(
        output=session.output,
        plan=result.plan,
        counts=sample.counts,
        held_out=held_out_score(predictions, test, result.plan),
        seconds=clock.seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        converged=result.converged,
        messages=[*result.messages, *told, crossed(support)],
    )
    if not session.group.first:
        return report
    work = session.manager.work
    with atomic_directory(
        session.output, overwrite=work.overwrite, within=work.folder
    ) as folder:
        (folder / "config.toml").write_text(to_toml(config))
        _write_record(folder, session, report, result.facts, sample)
        _write_fitted(folder, train)
        inner = {f"support_{level}": part for level, part in enumerate(finer, start=1)}
        write_state(
            folder,
            mean=result.mean,
            samples=result.samples,
            support=support,
            **inner,
        )
        if residual is not None:
            write_residual(folder, residual)
        write_metrics(folder / "metrics.jsonl", session.manager.metrics.data)
        if len(test):
            write_held_out(folder / HELD_OUT, test, result.plan, predictions)
        write_manifest(folder)
    return report


def _baseline(
    sample: Sample, config: FitConfig, *, in_time: bool
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Columns of the held-out stars, or why there are none."""
    if not in_time:
        return {}, (_NO_TIME.format(config.budget.minutes),)
    generator = torch.Generator().manual_seed(config.inference.seed)
    try:
        stars, split = sample.stars, sample.split
        known, test = stars.select(split.known), stars.select(split.test)
        found = predict_baseline(known, test, generator)
    except FloatingPointError as error:
        return {}, (f"no baseline: {error}",)
    return ({}, (NO_BASELINE,)) if found is None else (found.columns(), ())


def _write_record(
    folder: Path,
    session: Session,
    report: FitReport,
    facts: dict[str, Any],
    sample: Sample,
) -> None:
    """``run.json``: plan, summary with ``facts``, provenance."""
    config, manager = session.config, session.manager
    provenance = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "seed": config.inference.seed,
        "configuration": json.loads(config.model_dump_json()),
        "fit": manager.work.identifier,
        "resumed": manager.history,
        "inputs": manager.identity.inputs,
        "catalogue": sample.stars.meta,
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads()},
    }
    summary = {**{name: getattr(report, name) for name in _SUMMARY}, **facts}
    summary |= {"grade": report.verdict.grade, "verdict": str(report.verdict)}
    content = {
        "plan": report.plan.as_dict(),
        "summary": summary,
        "provenance": provenance,
    }
    write_json(folder / "run.json", content)


def _write_fitted(folder: Path, train: Stars) -> None:
    """The stars that were fitted, evenly thinned where there are many."""
    if len(train) > _KEPT_STARS:
        every = np.linspace(0, len(train) - 1, _KEPT_STARS).astype(np.int64)
        train = train.select(every)
    write_stars(folder / "stars.parquet", train, overwrite=False)
