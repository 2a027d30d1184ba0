#!/usr/bin/env python3
"""Delays of flights by eight inputs: SVGP on more and more inducing points.

The paper is Hensman, Fusi & Lawrence (2013), "Gaussian Processes for Big Data", UAI,
Figs. 7 and 8: a squared exponential kernel with a lengthscale per input, M = 1,000,
against a linear model and exact processes on subsets. Its 2008 flights are not shipped
(--file reads a CSV of yours with the same columns); those that left Seattle and
Portland in 2014 stand in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from ananke_data import default_folder
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Comparison, Report, Row, Size, parser, size_of, stopwatch
from regression_data import FLIGHT_INPUTS, FLIGHTS, Split, read_flights
from svgp_runs import CHOLESKY, TOLERANCE, Fitted, Model, inducing_points, train
from torch import Tensor

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import LBFGS, maximise
from dustmap.inference.svi import SvgpSettings
from dustmap.kernels import SquaredExponential
from dustmap.likelihoods import Gaussian
from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.figures.style import BLACK, BLUE, GREEN, ORANGE

_CONSTANT, _LINEAR, _EXACT, _SVGP = "constant", "linear", "exact GP", "SVGP"
_LENGTHSCALE, _NOISE = 2.0, 0.8


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
        settings=SvgpSettings(
            batch_size=100, epochs=2, natural_rate=0.3, tolerance=TOLERANCE
        ),
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
            tolerance=TOLERANCE,
        ),
    ),
    "full": Plan(
        rows=None,
        tests=None,
        sizes=(50, 100, 200, 500, 800, 1_000, 2_000),
        subsets=(800, 1_000, 1_200),
        searches=100,
        settings=SvgpSettings(
            batch_size=512,
            epochs=20,
            natural_rate=0.1,
            rate=0.01,
            record_every=50,
            tolerance=TOLERANCE,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """Rows of all models, and the lengthscales at the most inducing points."""

    simple: list[Row]
    exact: list[Row]
    sparse: list[Row]
    lengthscales: dict[str, float]

    def best(self) -> Row:
        """The row of the most inducing points."""
        return self.sparse[-1]


def main() -> None:
    options = arguments()
    plan = PLANS[size_of(options)]
    try:
        report = Report.of("airline", __doc__, options)
        source = options.file or (options.data or default_folder()) / FLIGHTS
        data = read_flights(source, options.seed)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    data = data.shortened(plan.rows, plan.tests)
    results = run(data, plan, options.seed)
    report.comparisons = comparisons(results)
    report.tables = {
        "Models": [*results.simple, *results.exact, *results.sparse],
        "Lengthscales at the most points": [results.lengthscales],
    }
    report.notes = notes(data, plan, source, shipped=options.file is None)
    report.write(options.output, lambda figure: draw(figure, results), shape=(9.2, 3.8))


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help=f"CSV with a header: {', '.join(FLIGHT_INPUTS)}, arr_delay",
    )
    options.add_argument("--data", type=Path, metavar="FOLDER", help=f"of {FLIGHTS}")
    return options.parse_args()


def run(data: Split, plan: Plan, seed: int) -> Results:
    """Every model on the same rows, tested on the same others."""
    simple = [
        error_row(data, _CONSTANT, None, torch.zeros_like(data.test_values)),
        error_row(data, _LINEAR, None, linear(data)),
    ]
    exact = [exact_row(data, count, plan.searches) for count in plan.subsets]
    sparse, scales = [], torch.zeros(0)
    for count in plan.sizes:
        fit = sparse_fit(data, count, plan.settings, seed)
        sparse.append(sparse_row(data, count, fit))
        scales = fit.model.kernel.parameters()["lengthscale"]
        say(f"{sparse[-1]}")
    return Results(
        simple=simple,
        exact=exact,
        sparse=sparse,
        lengthscales=dict(zip(FLIGHT_INPUTS, scales.tolist(), strict=True)),
    )


def error_row(data: Split, name: str, size: int | None, mean: Tensor) -> Row:
    """Errors of the tests, of minutes."""
    off = data.unit * (mean - data.test_values)
    return {
        "model": name,
        "M or N": size,
        "RMSE [min]": float((off**2).mean().sqrt()),
        "mean absolute error [min]": float(off.abs().mean()),
    }


def linear(data: Split) -> Tensor:
    """Least squares on the inputs and a constant."""

    def design(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)

    found = torch.linalg.lstsq(design(data.train), data.values[:, None])
    return (design(data.test) @ found.solution)[:, 0]


def exact_row(data: Split, count: int, searches: int) -> Row:
    """An exact process on the first rows, its hyperparameters by their evidence."""
    with stopwatch() as taken:
        model = ExactGP(
            _kernel(data),
            PointValues(data.train[:count]),
            data.values[:count],
            noise=_NOISE,
        )
        found = maximise(model, LBFGS(max_steps=searches))
        moments = found.model.predict(PointValues(data.test))
    row = error_row(data, _EXACT, count, moments.mean)
    predicted = Gaussian(variance=found.model.noise).predictive_log_density(
        data.test_values, moments.mean, moments.variance
    )
    row |= {"NLL": -float(predicted.mean()), "seconds": taken[0]}
    say(f"{row}")
    return row


def sparse_fit(data: Split, count: int, settings: SvgpSettings, seed: int) -> Fitted:
    start = Model(kernel=_kernel(data), likelihood=Gaussian(variance=_NOISE))
    points = inducing_points(data, count, seed)
    return train(CHOLESKY, data, points, start, settings, seed)


def sparse_row(data: Split, count: int, fit: Fitted) -> Row:
    mean = fit.result.model.predict(PointValues(data.test)).mean
    noise = fit.model.likelihood.parameters()["variance"]
    return error_row(data, _SVGP, count, mean) | {
        "NLL": fit.nll,
        "seconds": sum(fit.steps),
        "steps": 1 + len(fit.steps),
        "noise std [min]": data.unit * float(noise) ** 0.5,
    }


def _kernel(data: Split) -> SquaredExponential:
    return SquaredExponential(lengthscale=[_LENGTHSCALE] * data.train.shape[1])


def comparisons(results: Results) -> list[Comparison]:
    """Ratios of RMSE: the paper's figures are drawings of other flights."""
    best = results.best()
    error = best["RMSE [min]"]
    size = best["M or N"]
    found = [
        Comparison(
            what=f"RMSE of SVGP (M = {size:,}) / {row['model']}"
            + (f" on {row['M or N']:,} rows" if row["M or N"] else ""),
            source="Fig. 7",
            paper=None if row["model"] == _CONSTANT else "below 1 (a drawing)",
            here=error / row["RMSE [min]"],
            remark="paper: 700,000 flights of 2008",
        )
        for row in (*results.simple, *results.exact)
    ]
    first = results.sparse[0]
    found.append(
        Comparison(
            what=f"RMSE of SVGP, M = {size:,} / M = {first['M or N']:,}",
            source="Fig. 8",
            paper="falls with M (a drawing)",
            here=error / first["RMSE [min]"],
        )
    )
    return found


def notes(data: Split, plan: Plan, source: Path, *, shipped: bool) -> list[str]:
    """What was done, and what differs from the paper."""
    settings = plan.settings
    return [
        f"{source.name}: {len(data.values):,} flights to train on, "
        f"{len(data.test_values):,} to test on, {data.dropped:,} rows of the file left "
        "out for a missing number; the paper: 700,000 and 100,000 of January to April "
        "2008",
        *(
            ["one year of departures from two airports: less varied than the paper's"]
            if shipped
            else []
        ),
        f"one unit of standardised delay is {data.unit:.1f} min; NLL in nats per "
        "standardised test row",
        f"SVGP: centres of clusters for points (fixed), Cholesky whitening, "
        f"{settings.epochs} epochs of minibatches of {settings.batch_size}, natural "
        f"gradients of {settings.natural_rate} for q, Adam of {settings.rate:g} for "
        "the rest",
        f"exact processes: the first rows, at most {plan.searches} steps of L-BFGS",
        "delays have a long tail: a few very late flights make most of the RMSE",
    ]


def draw(figure: Figure, results: Results) -> None:
    """Errors against M, and what each input counts for."""
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _draw_errors(left, results)
    names = list(results.lengthscales)
    weights = [1 / results.lengthscales[name] for name in names]
    right.barh([name.removesuffix("_min").replace("_", " ") for name in names], weights,
               color=BLUE)  # fmt: skip
    right.invert_yaxis()
    right.set_xlabel("1 / lengthscale [1 / std of the input]")
    right.set_title(f"M = {results.best()['M or N']:,}", fontsize="medium")


def _draw_errors(axes: Axes, results: Results) -> None:
    sizes = [row["M or N"] for row in results.sparse]
    errors = [row["RMSE [min]"] for row in results.sparse]
    axes.plot(sizes, errors, "-o", color=BLUE, label="SVGP, M inducing points")
    subsets: Sequence[Row] = results.exact
    axes.plot(
        [row["M or N"] for row in subsets],
        [row["RMSE [min]"] for row in subsets],
        "s",
        color=ORANGE,
        label="exact GP on so many rows",
    )
    for row, colour, style in zip(
        results.simple, (BLACK, GREEN), (":", "--"), strict=True
    ):
        label = f"{row['model']} model"
        axes.axhline(row["RMSE [min]"], color=colour, linestyle=style, label=label)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("inducing points, or rows of an exact process")
    axes.set_ylabel("RMSE of the delay [min]")
    # Above the panel: lines may be anywhere in it.
    axes.legend(frameon=False, fontsize="small", loc="lower left", ncols=2,
                bbox_to_anchor=(0, 1))  # fmt: skip


if __name__ == "__main__":
    main()
