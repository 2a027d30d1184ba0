"""What a fit found, written into its run folder and told to people."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dustmap
from dustmap.posterior import Posterior
from pipelines.catalog.schema import Stars, write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.engines import Inference
from pipelines.figures.history import history
from pipelines.figures.style import save_figure
from pipelines.model.plan import Plan
from pipelines.run.folder import posterior_model, write_json
from pipelines.storage.atomic import check_manifest
from pipelines.storage.metrics import Record, write_metrics

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
            line = f"held-out extinction: RMSE {h['rmse']:.4g} mag (noise included"
            # Runs of earlier versions do not have it.
            if "scatter" in h:
                line += f"; they scatter by {h['scatter']:.4g}"
            line += ")"
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


def posterior_of(result: Inference, config: FitConfig) -> Posterior:
    """The posterior, ready to be asked for moments of any functional."""
    model = posterior_model(
        result.plan,
        dtype=result.mean.dtype,
        device=result.mean.device,
        seed=config.inference.seed,
    )
    return Posterior(model=model, mean=result.mean, samples=result.samples)


def write_record(
    folder: Path,
    config: FitConfig,
    report: FitReport,
    *,
    facts: dict[str, Any],
    provenance: dict[str, Any],
) -> None:
    """``config.toml`` and ``run.json``: plan, summary with ``facts``, provenance."""
    (folder / "config.toml").write_text(to_toml(config))
    origin = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "seed": config.inference.seed,
        "configuration": json.loads(config.model_dump_json()),
        **provenance,
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
    content = {
        "plan": report.plan.as_dict(),
        "summary": summary,
        "provenance": origin,
    }
    write_json(folder / "run.json", content)


def write_fitted(folder: Path, train: Stars) -> None:
    """The stars that were fitted, evenly thinned where there are many."""
    if len(train) > _KEPT_STARS:
        every = np.linspace(0, len(train) - 1, _KEPT_STARS).astype(np.int64)
        train = train.select(every)
    write_stars(folder / "stars.parquet", train, overwrite=False)


def write_records(folder: Path, records: list[Record]) -> None:
    """Every iteration that was reported, and a picture of them."""
    write_metrics(folder / "metrics.jsonl", records)
    if any("seconds" in record for record in records):
        save_figure(history(records), folder / "convergence.png")


def report_of(output: Path) -> FitReport:
    """What the fit of a finished run did.

    Raises
    ------
    InputError
        If the run is incomplete or was altered.
    """
    check_manifest(output, allow_extra=True)
    description = json.loads((output / "run.json").read_text())
    summary = description["summary"]
    return FitReport(
        output=output,
        plan=Plan.from_dict(description["plan"]),
        counts=summary["counts"],
        held_out=summary["held_out"],
        seconds=summary["seconds"],
        memory=summary["peak_memory_bytes"],
        converged=summary["converged"],
        messages=tuple(summary["messages"]),
    )
