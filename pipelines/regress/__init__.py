"""Regression of one column of a table on others: from a file to a folder.

=======================  ===================================================
``summary.json, .txt``   what was chosen and why, hyperparameters, counts
``metrics.json``         scores of the test rows in the target's own unit
``predictions.parquet``  of the test rows: truth, mean, std, quantiles
``plot.png``             the fit in one or two inputs, else truth and mean
``manifest.json``        hashes of all of these; ``COMPLETE`` is last
=======================  ===================================================
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

import dustmap
from pipelines.base.errors import InputError
from pipelines.base.timing import StageClock
from pipelines.catalog.schema import write_table
from pipelines.figures.style import save_figure
from pipelines.regress.columns import SplitData, select
from pipelines.regress.figure import draw
from pipelines.regress.methods import choose_method, fit
from pipelines.regress.options import Options
from pipelines.regress.prediction import Prediction, metrics, predict
from pipelines.regress.report import Report
from pipelines.regress.scaling import Scaling
from pipelines.regress.table import read_any
from pipelines.run.folder import write_json
from pipelines.storage.atomic import atomic_directory, write_manifest
from pipelines.storage.digests import input_digests

__all__ = ["Options", "Report", "regress"]

_SUMMARY = "summary.json"


def regress(
    source: Path, output: Path, options: Options, *, overwrite: bool = False
) -> Report:
    """Fit a table and write the folder of the run.

    Raises
    ------
    InputError
        If the table or the options are of no use, or the output exists or cannot be
        written.
    """
    _check_output(output, overwrite=overwrite)
    clock = StageClock()
    table = read_any(source)
    data = select(table, options)
    scaling = Scaling.of(data)
    clock.lap("read")
    train = ~data.test
    method, why = choose_method(options, int(train.sum()), len(data.inputs))
    generator = torch.Generator().manual_seed(options.seed)
    x, y = scaling.inputs(data.x), scaling.target(data.y)
    kept = torch.as_tensor(train)
    model = fit(method, x[kept], y[kept], x, options, generator)
    clock.lap("fit")
    latent = model.latent(x[~kept])
    prediction = predict(data.y[data.test], latent, model.likelihood, scaling)
    clock.lap("test")
    figure = draw(data, scaling, model, prediction)
    clock.lap("plot")
    report = Report(
        source=source,
        output=output,
        rows=table.rows,
        data=data,
        options=options,
        method=method,
        why=why,
        model=model,
        scaling=scaling,
        metrics=metrics(prediction, classes=data.classes is not None),
        seconds=clock.seconds,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    )
    with atomic_directory(output, overwrite=overwrite) as folder:
        _write(folder, source, report, data, prediction)
        save_figure(figure, folder / "plot.png")
        write_manifest(folder)
    return report


def _write(
    folder: Path,
    source: Path,
    report: Report,
    data: SplitData,
    prediction: Prediction,
) -> None:
    provenance = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "inputs": input_digests(source),
    }
    write_json(folder / _SUMMARY, {**report.as_dict(), "provenance": provenance})
    (folder / "summary.txt").write_text(str(report) + "\n")
    write_json(folder / "metrics.json", report.metrics)
    write_table(
        folder / "predictions.parquet",
        {
            "row": data.row[data.test],
            "truth": prediction.truth,
            "mean": prediction.mean,
            "std": prediction.std,
            "p16": prediction.p16,
            "p50": prediction.p50,
            "p84": prediction.p84,
        },
        units={},
        meta={"target": data.target, "inputs": list(data.inputs), **provenance},
        kind="predictions",
        overwrite=False,
    )


def _check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse an output before the work; overwriting replaces such a folder only."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists: choose another output or pass --overwrite")
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not (path / _SUMMARY).is_file():
        raise InputError(
            f"{path} is no folder of a regression: --overwrite replaces only such a "
            "one, choose another output"
        )
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder: make it first ({path})")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} is read-only: cannot write {path.name} there")
