"""The last stage of a fit: the run folder, and the report read from it."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dustmap.posterior import Posterior
from pipelines.base.allocation import peak_memory
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig, to_toml
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.formats.citation import PROGRAM
from pipelines.model.engine import posterior_model
from pipelines.model.plan import Plan
from pipelines.run.baseline import in_words
from pipelines.run.folder import Run, write_json, write_posterior
from pipelines.run.held_out import HELD_OUT_FILE as HELD_OUT
from pipelines.run.held_out import read_held_out, write_held_out
from pipelines.run.record import STORE
from pipelines.run.residual import RESIDUAL_FILE as RESIDUAL
from pipelines.run.residual import residual_from
from pipelines.run.verdict import Verdict, verdict
from pipelines.storage.atomic import atomic_directory, check_manifest, write_manifest
from pipelines.store.writing import write_store

# Stars kept in the run folder for plots.
_KEPT_STARS = 200_000


# Libraries that compute; another version may round otherwise.
_LIBRARIES = ("numba", "numpy", "scipy", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """The figures of a fit; ``str`` gives a summary."""

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
        lines, score = [f"stars: {counts}", *self.messages], self.held_out
        if score:
            line = (
                f"held-out extinction: RMSE {score['rmse']:.4g} mag (noise included; "
                f"they scatter by {score['scatter']:.4g})"
            )
            if score.get("measured_rmse", score["rmse"]) != score["rmse"]:
                line += (
                    f", {score['measured_rmse']:.4g} about the means of measurements"
                )
            if "coverage_68" in score:
                line += (
                    f"; the 68% intervals hold {score['coverage_68']:.3f} of "
                    f"{int(score['stars'])} stars, the 95% ones "
                    f"{score['coverage_95']:.3f}"
                )
            if "above_p97_5" in score:
                above, below = score["above_p97_5"], score["below_p2_5"]
                line += f", {above:.3f} lie above and {below:.3f} below these"
            lines.append(line)
        if "rmse_kriging" in score:
            lines.append(in_words(score))
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in self.seconds.items())
        gib = self.peak_memory_bytes / 2**30
        lines.append(f"time: {spent}; peak memory {gib:.2f} GiB")
        return "\n".join([*lines, f"run: {self.output}", str(self.verdict)])

    @property
    def verdict(self) -> Verdict:
        """The grade of the map, its reason, and advice."""
        return verdict(self.converged, self.held_out)


def report_of(output: Path) -> FitReport:
    """Return the report of a finished run.

    Raises `InputError` if the run is incomplete or was altered.
    """
    check_manifest(output, allow_extra=True)
    description = json.loads((output / "run.json").read_text())
    names = FitReport.__dataclass_fields__.keys() - {"output", "plan"}
    summary = {name: description["summary"][name] for name in names}
    return FitReport(output=output, plan=Plan.from_dict(description["plan"]), **summary)


def choices(
    plan: Plan, learning: dict[str, Any] | None, config: FitConfig
) -> dict[str, str]:
    """Return the reason for the value of every setting that was auto.

    The values are those of the plan; they follow from the stars and the settings alone.
    """
    scales, noise = "moments of the extinctions", "the residuals of the map"
    if learning is not None:
        scales = f"likelihood of {learning['stars']:,} stars given their neighbours"
        if "revision" in learning:
            scales += ", then the power of the first map and its residual"
    box = next((n for n in plan.notes if n.startswith("box")), "extent of the stars")
    prior = ("lengthscale", "std", "mean_density", "scale_height")
    reasons = {
        **{f"box.{axis}": box for axis in "xyz"},
        "box.spacing": plan.limit,
        "box.levels": "separation of stars near the observer",
        "prior.kernel": f"nearest to turbulence for a {plan.density} density",
        **{f"prior.{name}": scales for name in prior},
        "model.density": f"positive where the engine can: {plan.engine}",
        **{f"model.{n}": noise for n in ("common_noise", "degrees", "subgrid_share")},
        "inference.preconditioner_rank": "stars per point of the grid",
        "budget.memory_gib": "8 GiB on every machine",
    }
    sections = config.model_dump().items()
    auto = {f"{s}.{n}" for s, each in sections for n, v in each.items() if v is None}
    return {key: reason for key, reason in reasons.items() if key in auto}


def write(state: FitState, stars: FittedStars, at: Context) -> FitState:
    """Write the run folder, on rank 0.

    Raises `OSError` if the folder cannot be written; the saved state remains.
    """
    result, judged = state.result, state.judged
    if result is None or judged is None:
        return state
    found = verdict(result.converged, judged.score)
    train = stars.fitted
    summary = {
        "counts": stars.counts,
        "held_out": judged.score,
        "seconds": at.clock.seconds,
        "peak_memory_bytes": float(peak_memory()),
        "converged": result.converged,
        "messages": judged.messages,
        "warnings": judged.warnings,
        **result.facts,
        "surveys": [asdict(law) for law in state.surveys],
        "grade": found.grade,
        "verdict": str(found),
    }
    provenance = {
        **PROGRAM,
        "seed": at.config.inference.seed,
        "configuration": json.loads(at.config.model_dump_json()),
        "fit": at.work.facts["fit"],
        "resumed": at.history,
        "inputs": at.inputs,
        "catalogue": train.meta,
        "machine": {
            "system": platform.platform(),
            "threads": torch.get_num_threads(),
            "device": str(at.device["device"]),
            "versions": {name: version(name) for name in _LIBRARIES},
        },
    }
    record = {
        "plan": result.plan.as_dict(),
        "choices": choices(result.plan, state.learning, at.config),
        "summary": summary,
        "provenance": provenance,
    }
    if len(train) > _KEPT_STARS:
        # Evenly spaced rows.
        every = np.linspace(0, len(train) - 1, _KEPT_STARS).astype(np.int64)
        train = train.select(every)
    with atomic_directory(
        at.work.output, overwrite=at.work.facts["overwrite"], within=at.work.folder
    ) as folder:
        (folder / "config.toml").write_text(to_toml(at.config))
        write_json(folder / "run.json", record)
        write_stars(folder / "stars.parquet", train, overwrite=False)
        write_posterior(folder, result.mean, result.samples, judged.supports)
        if judged.residual:
            (folder / RESIDUAL).write_bytes(judged.residual)
        lines = "".join(json.dumps(record) + "\n" for record in at.metrics)
        (folder / "metrics.jsonl").write_text(lines)
        if judged.columns:
            test = stars.stars.select(stars.split.test)
            columns = {name: each.numpy() for name, each in judged.columns.items()}
            write_held_out(folder / HELD_OUT, test, result.plan, columns)
        residual, device = None, result.mean.device
        if judged.residual:
            # Neighbourhoods are solved on the device.
            residual = residual_from(judged.residual, device=device)
        held = {n: getattr(result, n).cpu() for n in ("mean", "samples")}
        run = Run(
            path=at.work.output,
            plan=result.plan,
            posterior=Posterior(
                model=posterior_model(
                    result.plan,
                    dtype=result.mean.dtype,
                    device=torch.device("cpu"),
                    seed=at.config.inference.seed,
                ),
                residual=residual,
                **held,
            ),
            supports=judged.supports,
            summary=summary,
            provenance=provenance,
        )
        write_store(run, read_held_out(folder), folder / STORE)
        write_manifest(folder)
    return state
