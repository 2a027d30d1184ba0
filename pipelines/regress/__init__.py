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

import resource
from pathlib import Path

import torch

import dustmap
from pipelines.base.timing import StageClock
from pipelines.catalog.schema import write_table
from pipelines.figures.style import save_figure
from pipelines.regress.choosing import choose
from pipelines.regress.columns import select
from pipelines.regress.figure import draw
from pipelines.regress.fitted import Problem
from pipelines.regress.options import Options
from pipelines.regress.prediction import (
    Prediction,
    Scaling,
    beside_neighbours,
    metrics,
    predict,
)
from pipelines.regress.report import Report
from pipelines.regress.table import read_any
from pipelines.run.folder import check_run_folder, write_json
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
    check_run_folder(output, overwrite=overwrite, marker=_SUMMARY)
    clock = StageClock()
    table = read_any(source)
    data = select(table, options)
    scaling = Scaling.of(data)
    clock.lap("read")
    train = ~data.test
    x, y = scaling.inputs(data.x), scaling.target(data.y)
    problem = Problem(
        x=x[train],
        y=y[train],
        everywhere=x,
        likelihood=options.noise,
        generator=torch.Generator().manual_seed(options.seed),
        whitening=options.whitening,
    )
    choice = choose(problem, options)
    model = choice.model
    clock.lap("fit")
    truth, latent = data.y[data.test], model.latent(x[data.test])
    prediction = predict(latent, model.likelihood, scaling)
    scores = metrics(truth, latent, model.likelihood, scaling)
    scores |= beside_neighbours(data, scaling, prediction.mean)
    clock.lap("test")
    figure = draw(data, scaling, model, prediction)
    clock.lap("plot")
    report = Report(
        source=source,
        output=output,
        rows=table.rows,
        data=data,
        options=options,
        choice=choice,
        scaling=scaling,
        metrics=scores,
        seconds=clock.seconds,
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    )
    with atomic_directory(output, overwrite=overwrite) as folder:
        _write(folder, report, prediction)
        save_figure(figure, folder / "plot.png")
        write_manifest(folder)
    return report


def _write(folder: Path, report: Report, prediction: Prediction) -> None:
    data = report.data
    provenance = {
        "program": "dustmap",
        "version": dustmap.__version__,
        "inputs": input_digests(report.source),
    }
    write_json(folder / _SUMMARY, {**report.as_dict(), "provenance": provenance})
    (folder / "summary.txt").write_text(str(report) + "\n")
    write_json(folder / "metrics.json", report.metrics)
    names = ("mean", "std", "p16", "p50", "p84")
    write_table(
        folder / "predictions.parquet",
        {
            "row": data.row[data.test],
            "truth": data.y[data.test],
            **{name: getattr(prediction, name) for name in names},
        },
        units={},
        meta={"target": data.target, "inputs": list(data.inputs), **provenance},
        kind="predictions",
        overwrite=False,
    )
