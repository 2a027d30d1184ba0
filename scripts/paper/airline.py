#!/usr/bin/env python3
"""Delays of flights by eight inputs: SVGP on more and more inducing points.

The paper is Hensman, Fusi & Lawrence (2013), "Gaussian Processes for Big Data", UAI,
Figs. 7 and 8: a squared exponential kernel with a lengthscale per input, M = 1,000,
against a linear model and exact processes on subsets. Its 2008 flights are not shipped
(--file reads a CSV of yours with the same columns); those that left Seattle and
Portland in 2014 stand in: less varied than the paper's, with a long tail of a few very
late flights that make most of the RMSE. SVGP has centres of clusters for points
(fixed), Cholesky whitening, 2 epochs of minibatches of 512, natural gradients of 0.1
for q and Adam of 0.03 for the rest; exact processes have the first rows and at most 40
steps of L-BFGS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from data import Split, read_table, standardised
from engines import EXACT, SVGP, centres
from paper_report import Report, Row, default_folder, plot, root_mean_square, run_script
from torch import Tensor

from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.exact import ExactGP
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import SquaredExponential
from dustmap.likelihoods import Gaussian
from dustmap.whitening import CholeskyWhitening

_FLIGHTS = "pnw_flights_2014.csv.gz"
# Those of the paper for the flights of 2008.
_INPUTS = (
    "plane_age",
    "distance",
    "air_time",
    "dep_time_min",
    "arr_time_min",
    "day_of_week",
    "day_of_month",
    "month",
)
_CONSTANT, _LINEAR = "constant", "linear"
_SIZE, _RMSE = "M or N", "RMSE [min]"
_LENGTHSCALE, _NOISE = 2.0, 0.8
_NUGGET = 1e-4
SIZES = {
    "rows": (None, 800),
    "tests": (None, 200),
    "points": ((50, 100, 200, 500, 1_000), (20, 40)),
    # Rows of the exact processes, and steps of their search.
    "subsets": ((800, 1_000, 1_200), (100,)),
    "searches": (40, 5),
    "batch": (512, 100),
    "natural_rate": (0.1, 0.3),
}


def experiment(report: Report, given: SimpleNamespace) -> None:
    """Fit every model to the same flights, test on the same others."""
    source = given.file or (given.data or default_folder()) / _FLIGHTS
    data = read_flights(source, given.seed)
    if data.dropped:
        report.notes = [f"{data.dropped:,} rows left out for a missing number"]
    data = data.shortened(given.rows, given.tests)
    rows = report.collect("Models", run(data, given))
    compare(report, rows)
    sized = [row for row in rows if row[_SIZE] is not None]
    report.figure = plot(
        sized, lambda row: row["model"], _RMSE, _SIZE, scales=("log", "linear")
    )


def read_flights(file: Path, seed: int) -> Split:
    """Read arrival delays [min] and eight inputs, without rows that miss a number."""
    table = read_table(file, (*_INPUTS, "arr_delay"))
    complete = np.isfinite(table).all(axis=1)
    data = standardised("flights", table[complete, :-1], table[complete, -1], seed)
    return replace(data, dropped=int((~complete).sum()))


def run(data: Split, given: SimpleNamespace) -> Iterator[Row]:
    """Score the predictions of every model [min]."""

    def row(name: str, size: int | None, mean: Tensor) -> Row:
        error = data.unit * root_mean_square(mean - data.test.values)
        return {"model": name, _SIZE: size, _RMSE: error}

    yield row(_CONSTANT, None, torch.zeros_like(data.test.values))
    yield row(_LINEAR, None, linear(data))
    for count in given.subsets:
        yield row(EXACT, count, exact(data, count, given.searches))
    for count in given.points:
        yield row(SVGP, count, sparse(data, count, given))


def linear(data: Split) -> Tensor:
    """Least squares on the inputs and a constant."""
    train, test = (
        torch.nn.functional.pad(inputs, (0, 1), value=1.0)
        for inputs in (data.train.inputs, data.test.inputs)
    )
    return test @ torch.linalg.lstsq(train, data.train.values[:, None]).solution[:, 0]


def exact(data: Split, count: int, searches: int) -> Tensor:
    """Predict by an exact process on the first rows, learnt by its evidence."""
    few = data.train[:count]
    model = ExactGP(_kernel(data), few.functionals(), few.values, noise=_NOISE)
    learnt = maximise(model, LBFGS(max_steps=searches)).model
    return learnt.predict(data.test.functionals()).mean


def sparse(data: Split, count: int, given: SimpleNamespace) -> Tensor:
    """Predict by SVGP at centres of clusters of the training inputs."""
    points = centres(data, count, given.seed)
    fitted = fit_svgp(
        data.train.functionals(),
        data.train.values,
        CholeskyWhitening(_kernel(data), points, nugget=_NUGGET),
        Gaussian(variance=_NOISE),
        generator=torch.Generator().manual_seed(given.seed),
        settings=SvgpSettings(
            batch_size=given.batch,
            epochs=2,
            natural_rate=given.natural_rate,
            record_every=50,
        ),
    )
    return fitted.model.predict(data.test.functionals()).mean


def _kernel(data: Split) -> SquaredExponential:
    return SquaredExponential(lengthscale=[_LENGTHSCALE] * data.train.inputs.shape[1])


def compare(report: Report, rows: Sequence[Row]) -> None:
    """Compare ratios of RMSE: the paper's figures are drawings of other flights."""
    first, *_, last = (row for row in rows if row["model"] == SVGP)
    ours, remark = f"M = {last[_SIZE]:,}", "paper: 700,000 flights of 2008"
    for row in rows:
        if row["model"] != SVGP:
            on = f" on {row[_SIZE]:,} rows" if row[_SIZE] else ""
            what = f"RMSE of SVGP ({ours}) / {row['model']}{on}"
            paper = None if row["model"] == _CONSTANT else "below 1 (a drawing)"
            report.compare(what, "Fig. 7", paper, last[_RMSE] / row[_RMSE], remark)
    what = f"RMSE of SVGP, {ours} / M = {first[_SIZE]:,}"
    falls = "falls with M (a drawing)"
    report.compare(what, "Fig. 8", falls, last[_RMSE] / first[_RMSE])


if __name__ == "__main__":
    columns = f"CSV with a header: {', '.join(_INPUTS)}, arr_delay"
    run_script(
        __file__, __doc__, experiment, SIZES, file=columns, data=f"folder of {_FLIGHTS}"
    )
