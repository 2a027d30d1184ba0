"""Regression of one column of a table on others: from a file to a folder.

=========================  ===================================================
``summary.json, .txt``     choices and their reasons, hyperparameters, counts
``metrics.json``           scores of the test rows in the target's own unit
``predictions.parquet``    of the test rows: truth, mean, std, quantiles
``plot.png``               the fit in one or two inputs, else truth and mean
``regressor.safetensors``  the fitted regressor (`Regressor.load`)
``manifest.json``          hashes of all of these; ``COMPLETE`` is last
=========================  ===================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dustmap.residual.neighbours import nearest
from pipelines.base.allocation import peak_memory
from pipelines.base.errors import InputError
from pipelines.base.progress import StageClock, doing
from pipelines.base.quantiles import QUANTILES
from pipelines.catalog.answer_files import answer_file, check_columns
from pipelines.catalog.formats import ColumnInfo
from pipelines.catalog.schema import write_table
from pipelines.catalog.sources import all_columns, open_source, read_columns
from pipelines.figures.style import save_figure
from pipelines.formats.citation import PROGRAM
from pipelines.regress.figure import draw
from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.saved import write_model
from pipelines.regress.table import Rows, read_inputs, read_rows
from pipelines.run.folder import check_run_folder, write_json
from pipelines.run.verdict import Verdict, verdict
from pipelines.storage.atomic import atomic_directory, write_manifest
from pipelines.storage.digests import input_digests


def regress_table(
    source: Path,
    output: Path,
    *,
    target: str,
    inputs: Sequence[str] | None = None,
    test_fraction: float = 0.2,
    split_column: str | None = None,
    noise: str | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Report:
    """Fit a table, test the fit on held-out rows, and write the folder.

    Arguments are those of `pipelines.regress.table.read_rows`; ``settings`` are those
    of `Regressor`, with the seed also for the held-out rows.

    Raises `InputError` if the table or a setting is invalid, or the output exists or
    cannot be written.
    """
    check_run_folder(output, overwrite=overwrite, marker="summary.json")
    clock, model = StageClock(), Regressor(**settings)
    model.check()
    rows = read_rows(
        source,
        target,
        inputs,
        test_fraction=test_fraction,
        split_column=split_column,
        noise=noise,
        seed=model.seed,
    )
    clock.lap("read")
    doing(f"fitting {int((~rows.test).sum()):,} rows")
    try:
        known, stated = rows.part(test=False), rows.noise_of(test=False)
        model.fit(known, known.pop(target), noise=stated)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    clock.lap("fit")
    doing("predicting the rows to test")
    tested, truth = rows.part(test=True), rows.y[rows.test]
    prediction = model.distribution(tested, noise=rows.noise_of(test=True))
    metrics = scores(truth, prediction)
    metrics |= compare_with_neighbours(model, rows, prediction.mean)
    clock.lap("test")
    figure = draw(rows, model, prediction)
    clock.lap("plot")
    report = Report(
        source=source,
        output=output,
        rows=rows,
        model=model,
        metrics=metrics,
        seconds=clock.seconds,
        memory=float(peak_memory()),
    )
    provenance = {**PROGRAM, "inputs": input_digests(source)}
    table = {
        "row": rows.row[rows.test],
        "truth": truth,
        "mean": prediction.mean,
        "std": prediction.std,
        **{n: prediction.quantile(QUANTILES[n]) for n in ("p16", "p50", "p84")},
    }
    with atomic_directory(output, overwrite=overwrite) as folder:
        summary = {**report.as_dict(), "provenance": provenance}
        write_json(folder / "summary.json", summary)
        (folder / "summary.txt").write_text(str(report) + "\n")
        write_json(folder / "metrics.json", metrics)
        write_table(
            folder / "predictions.parquet",
            table,
            units={},
            meta={"target": target, "inputs": list(rows.inputs), **provenance},
            overwrite=False,
        )
        save_figure(figure, folder / "plot.png")
        write_model(folder, vars(model))
        write_manifest(folder)
    return report


def predict_table(
    folder: Path, table: Path, output: Path, *, prefix: str = "", overwrite: bool
) -> tuple[int, int]:
    """Write a table with mean and std of the target, noise included, in every row.

    All its columns are kept. Returns the number of rows, and of those that lack an
    input, which have NaN.

    Raises `InputError` if the folder is no regression, an input is absent or of another
    unit, the table has no row or one of the new columns, or the output exists.
    """
    model, source = Regressor.load(folder), open_source(table)
    columns = all_columns(source)
    parts = [
        {name: batch[request] for name, (request, _) in columns.items()}
        for batch in read_columns(source, [request for request, _ in columns.values()])
    ]
    check_columns(output, parts)
    target = json.loads((folder / "summary.json").read_text())["target"]
    inputs = read_inputs(source, model.feature_names_in_.tolist())
    whole = np.all([np.isfinite(column) for column in inputs.values()], axis=0)
    described = {name: info for name, (_, info) in columns.items()}
    unit = ColumnInfo(unit=str(model._unit or ""))
    new = {f"{prefix}{target}_{kind}": unit for kind in ("mean", "std")}
    about = {**PROGRAM, "run": folder.name}
    found, start = {name: np.full(len(whole), np.nan) for name in new}, 0
    with answer_file(output, described, new, about, overwrite=overwrite) as write:
        if whole.any():
            some = {name: column[whole] for name, column in inputs.items()}
            known = model.distribution(some)
            for column, part in zip(found.values(), (known.mean, known.std)):
                column[whole] = part
        for own in parts:
            end = start + len(next(iter(own.values())))
            write(own | {name: column[start:end] for name, column in found.items()})
            start = end
    return len(whole), int((~whole).sum())


def scores(truth: np.ndarray, found: Prediction) -> dict[str, float]:
    """Return scores of the test rows, in the target's own unit.

    ``rmse`` and ``mae`` of the mean, ``nll`` the mean negative log density, the
    share of rows inside the central intervals, and the median distance of the truth
    from the median in half the 68% interval.
    """
    error = found.mean - truth
    lower, low, median, high, upper = map(found.quantile, QUANTILES.values())
    values = {
        "rows": len(error),
        "rmse": np.sqrt(np.mean(error**2)),
        "mae": np.mean(np.abs(error)),
        "nll": -np.mean(found.log_density(truth)),
        "coverage_68": np.mean((low <= truth) & (truth <= high)),
        "coverage_95": np.mean((lower <= truth) & (truth <= upper)),
        "z_median": np.median(2 * (truth - median) / (high - low)),
        "std_of_truth": np.std(truth),
    }
    return {name: float(value) for name, value in values.items()}


def compare_with_neighbours(
    model: Regressor, rows: Rows, mean: np.ndarray
) -> dict[str, float]:
    """Compare the squared errors of the fit and of the mean of the 10 nearest rows.

    ``mean`` is the fit's of every test row. ``excess`` is the mean difference of the
    squared errors in its own standard errors, of 10,000 rows at most.
    """
    x = torch.as_tensor((rows.x - model.input_shift_) / model.input_scale_)
    tested = np.flatnonzero(rows.test)
    some = np.random.default_rng(0).permutation(len(tested))[:10_000]
    near = nearest(x[~rows.test], x[tested[some]], 10).numpy()
    truth = rows.y[tested[some]]
    squared = (rows.y[~rows.test][near].mean(axis=1) - truth) ** 2
    score = {"rmse_neighbours": float(squared.mean() ** 0.5)}
    difference = (mean[some] - truth) ** 2 - squared
    if len(some) > 1 and (spread := difference.std(ddof=1)) > 0:
        score["excess"] = float(difference.mean() / spread * len(some) ** 0.5)
    return score


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The record of one regression; ``str`` gives a summary.

    ``seconds`` are those of each stage, ``memory`` is the peak [bytes].
    """

    source: Path
    output: Path
    rows: Rows
    model: Regressor
    metrics: dict[str, float]
    seconds: dict[str, float]
    memory: float

    @property
    def verdict(self) -> Verdict:
        """The usability of the fit, from its test rows."""
        names = ("rmse", "coverage_68", "coverage_95", "z_median")
        # Rows at the places of the test rows leave no error to compare with.
        if self.metrics["rmse_neighbours"]:
            names += ("rmse_neighbours", "excess")
        score = {n: self.metrics[n] for n in names if n in self.metrics}
        score["stars"] = self.metrics["rows"]
        return verdict(self.model.field_.converged, score)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        rows, model, field = self.rows, self.model, self.model.field_
        return {
            "source": self.source.name,
            "target": rows.target,
            "inputs": list(rows.inputs),
            "rows": {
                "read": len(rows.y) + rows.left_out + rows.repeated,
                "left_out": rows.left_out,
                "repeated": rows.repeated,
                "missing_by_column": rows.missing,
                "fitted": int((~rows.test).sum()),
                "tested": int(rows.test.sum()),
            },
            "likelihood": model.likelihood,
            "method": model.method_,
            "why": model.why_,
            "kernel_choice": field.why,
            "hyperparameters": model.hyperparameters(),
            "scaling": {
                "input_shift": model.input_shift_.tolist(),
                "input_scale": model.input_scale_.tolist(),
                "target_shift": model.target_shift_,
                "target_scale": model.target_scale_,
            },
            "converged": field.converged,
            "grade": self.verdict.grade,
            "verdict": str(self.verdict),
            "messages": [*rows.notes, *field.messages],
            "seed": model.seed,
            "seconds": self.seconds,
            "peak_memory_bytes": self.memory,
            **field.facts,
        }

    def __str__(self) -> str:
        rows, model, field = self.rows, self.model, self.model.field_
        tested = int(self.metrics["rows"])
        first = (
            f"{self.source}: {len(rows.y) + rows.left_out + rows.repeated:,} rows, "
            f"{len(rows.y) - tested:,} fitted, {tested:,} tested"
        )
        if rows.left_out:
            gaps = ", ".join(f"{n} in {name}" for name, n in rows.missing.items())
            first += f", {rows.left_out:,} left out (missing or not finite: {gaps})"
        found = model.hyperparameters()
        scales = ", ".join(f"{n} {v:.3g}" for n, v in found["lengthscale"].items())
        noise = f"; noise {found['noise']:.4g}"
        if "degrees" in found:
            noise += f" (Student-T, ν = {found['degrees']:.3g})"
        scored = (
            "RMSE {rmse:.4g} (they scatter by {std_of_truth:.4g}; the mean of the 10 "
            "nearest rows {rmse_neighbours:.4g}), MAE {mae:.4g}, nll {nll:.4g}; the "
            "68% intervals contain {coverage_68:.3f}, the 95% ones {coverage_95:.3f}"
        )
        times = ", ".join(f"{what} {s:.1f} s" for what, s in self.seconds.items())
        lines = [
            first,
            f"target: {rows.target}; inputs: {', '.join(rows.inputs)}",
            *rows.notes,
            f"method: {model.method_} ({model.why_}); likelihood {model.likelihood}",
            f"kernel: {field.why}",
            f"lengthscale: {scales}",
            f"field: mean {found['mean']:.4g}, std {found['std']:.4g}{noise}",
            *field.messages,
            f"{tested:,} test rows: {scored.format_map(self.metrics)}",
            f"time: {times}; peak memory {self.memory / 2**30:.2f} GiB",
            f"run: {self.output}",
            str(self.verdict),
        ]
        return "\n".join(lines)
