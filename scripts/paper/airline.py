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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from ananke_data import default_folder
from paper_report import (
    Comparison,
    Report,
    Row,
    Size,
    group,
    parser,
    plot,
    refusals,
    root_mean_square,
    size_of,
)
from regression_data import FLIGHT_INPUTS, FLIGHTS, Split, read_flights
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.evidence import LBFGS, maximise
from dustmap.gp.exact import ExactGP
from dustmap.gp.inducing import kmeans_points
from dustmap.inference.svi import SvgpResult, SvgpSettings, fit_svgp
from dustmap.kernels import SquaredExponential
from dustmap.likelihoods import Gaussian
from dustmap.whitening import CholeskyWhitening
from pipelines.base.progress import say

_CONSTANT, _LINEAR, _EXACT, _SVGP = "constant", "linear", "exact GP", "SVGP"
_SIZE, _RMSE = "M or N", "RMSE [min]"
_LENGTHSCALE, _NOISE = 2.0, 0.8
_NUGGET = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: rows, inducing points, rows of the exact processes."""

    rows: int | None
    tests: int | None
    sizes: tuple[int, ...]
    subsets: tuple[int, ...]
    searches: int
    settings: SvgpSettings


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows=800,
        tests=200,
        sizes=(20, 40),
        subsets=(100,),
        searches=5,
        settings=SvgpSettings(batch_size=100, epochs=2, natural_rate=0.3),
    ),
    "default": Plan(
        rows=None,
        tests=None,
        sizes=(50, 100, 200, 500, 1_000),
        subsets=(800, 1_000, 1_200),
        searches=40,
        settings=SvgpSettings(
            batch_size=512,
            epochs=2,
            natural_rate=0.1,
            rate=0.03,
            record_every=50,
        ),
    ),
}


def main() -> None:
    options = parser(__doc__)
    columns = f"CSV with a header: {', '.join(FLIGHT_INPUTS)}, arr_delay"
    options.add_argument("--file", type=Path, metavar="FILE", help=columns)
    options.add_argument("--data", type=Path, metavar="FOLDER", help=f"of {FLIGHTS}")
    chosen = options.parse_args()
    plan = PLANS[size_of(chosen)]
    report = Report.of("airline", __doc__, chosen)
    with refusals():
        source = chosen.file or (chosen.data or default_folder()) / FLIGHTS
        data = read_flights(source, chosen.seed)
    if data.dropped:
        report.notes = [f"{data.dropped:,} rows left out for a missing number"]
    rows = run(data.shortened(plan.rows, plan.tests), plan, chosen.seed)
    report.comparisons = comparisons(rows)
    report.tables = {"Models": rows}
    sized = [row for row in rows if row[_SIZE] is not None]
    curves = group(sized, lambda row: row["model"], _SIZE, _RMSE)
    report.write(chosen.output, plot(curves, _SIZE, _RMSE, ("log", "linear")))


def run(data: Split, plan: Plan, seed: int) -> list[Row]:
    """Fit every model to the same rows, test on the same others."""
    rows = [
        error_row(data, _CONSTANT, None, torch.zeros_like(data.test_values)),
        error_row(data, _LINEAR, None, linear(data)),
    ]
    for count in plan.subsets:
        rows.append(error_row(data, _EXACT, count, exact(data, count, plan.searches)))
    for count in plan.sizes:
        fit = sparse_fit(data, count, plan.settings, seed)
        mean = fit.model.predict(PointValues(data.test)).mean
        rows.append(error_row(data, _SVGP, count, mean))
    return rows


def error_row(data: Split, name: str, size: int | None, mean: Tensor) -> Row:
    """Score a prediction of the tests [min]."""
    error = data.unit * root_mean_square(mean - data.test_values)
    row: Row = {"model": name, _SIZE: size, _RMSE: error}
    say(str(row))
    return row


def linear(data: Split) -> Tensor:
    """Least squares on the inputs and a constant."""

    def design(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)

    found = torch.linalg.lstsq(design(data.train), data.values[:, None])
    return (design(data.test) @ found.solution)[:, 0]


def exact(data: Split, count: int, searches: int) -> Tensor:
    """Predict by an exact process on the first rows, learnt by its evidence."""
    model = ExactGP(
        _kernel(data),
        PointValues(data.train[:count]),
        data.values[:count],
        noise=_NOISE,
    )
    found = maximise(model, LBFGS(max_steps=searches))
    return found.model.predict(PointValues(data.test)).mean


def sparse_fit(
    data: Split, count: int, settings: SvgpSettings, seed: int
) -> SvgpResult:
    """Fit SVGP at centres of clusters of the training inputs."""
    generator = torch.Generator().manual_seed(seed)
    points = kmeans_points(data.train, count, generator, rows=10_000)
    return fit_svgp(
        PointValues(data.train),
        data.values,
        CholeskyWhitening(_kernel(data), points, nugget=_NUGGET),
        Gaussian(variance=_NOISE),
        generator=torch.Generator().manual_seed(seed),
        settings=settings,
    )


def _kernel(data: Split) -> SquaredExponential:
    return SquaredExponential(lengthscale=[_LENGTHSCALE] * data.train.shape[1])


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Compare ratios of RMSE: the paper's figures are drawings of other flights."""
    others = [row for row in rows if row["model"] != _SVGP]
    sparse = [row for row in rows if row["model"] == _SVGP]
    error, size = sparse[-1][_RMSE], sparse[-1][_SIZE]
    found = [
        Comparison(
            what=f"RMSE of SVGP (M = {size:,}) / {row['model']}"
            + (f" on {row[_SIZE]:,} rows" if row[_SIZE] else ""),
            source="Fig. 7",
            paper=None if row["model"] == _CONSTANT else "below 1 (a drawing)",
            here=error / row[_RMSE],
            remark="paper: 700,000 flights of 2008",
        )
        for row in others
    ]
    found.append(
        Comparison(
            what=f"RMSE of SVGP, M = {size:,} / M = {sparse[0][_SIZE]:,}",
            source="Fig. 8",
            paper="falls with M (a drawing)",
            here=error / sparse[0][_RMSE],
        )
    )
    return found


if __name__ == "__main__":
    main()
