#!/usr/bin/env python3
"""A plane field on more and more inducing points (section 5.4, Figs. 3 and 4).

Matérn-5/2 kernel of one lengthscale, chosen with the noise by the evidence of a subset,
zero mean after centring. The full-batch engine at every M; HIP-GP's engine (blocks of
10 × 10, at most 20 PCG iterations a row in training, 50 in evaluation) and SVGP on as
many observations as end in time. The paper's prices are not shipped (--uk FILE reads a
copy); US precipitation and a simulated field of as many observations stand in.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ananke_data import default_folder
from dense_covariance import symmetric_covariance
from dense_evidence import best_scales
from paper_report import NOT_RUN, Report, Row, Size, parser, size_of
from spatial_data import PRECIPITATION, Spatial, read_precipitation, read_uk, simulate
from spatial_engines import (
    FULL_BATCH,
    SOLVED,
    SVGP,
    Fit,
    Model,
    full_batch,
    row_seconds,
    stopped_early,
    svgp,
    svi,
)
from spatial_figure import draw
from spatial_report import OBSERVATIONS, UK, Results, comparisons, tables

from dustmap.functionals import PointValues
from dustmap.gp.inducing import clustered_subset
from dustmap.kernels import Matern52
from pipelines.base.errors import InputError
from pipelines.base.progress import say

_SIDES = (100, 120, 140, 160, 180, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: points per axis of every engine, observations, iterations.

    ``train`` and ``test`` are of the simulated field; ``some`` are the observations
    that svi and SVGP get, ``early`` those of the early stopping.
    """

    sides: tuple[int, ...]
    train: int
    test: int
    searched: int
    svi_sides: tuple[int, ...]
    svgp_sides: tuple[int, ...]
    some: tuple[int, int]
    epochs: int
    early_side: int
    early: tuple[int, int]
    iterations: tuple[int, ...]
    timed_rows: int


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        sides=(20, 30),
        train=1_500,
        test=400,
        searched=150,
        svi_sides=(20,),
        svgp_sides=(20,),
        some=(400, 150),
        epochs=1,
        early_side=20,
        early=(300, 100),
        iterations=(1, 3, 10),
        timed_rows=8,
    ),
    "default": Plan(
        sides=_SIDES,
        train=OBSERVATIONS,
        test=20_000,
        searched=1_000,
        svi_sides=(100, 120),
        svgp_sides=(100,),
        some=(2_000, 500),
        epochs=2,
        early_side=120,
        early=(1_000, 300),
        iterations=(1, 2, 5, 10, 20, 50),
        timed_rows=64,
    ),
    "full": Plan(
        sides=_SIDES,
        train=OBSERVATIONS,
        test=20_000,
        searched=1_000,
        svi_sides=_SIDES,
        svgp_sides=(100, 120, 140, 160),
        some=(OBSERVATIONS, 20_000),
        epochs=10,
        early_side=120,
        early=(OBSERVATIONS, 20_000),
        iterations=(1, 2, 3, 5, 10, 20, 50, 100, 200),
        timed_rows=64,
    ),
}


def main() -> None:
    options = arguments()
    try:
        report = Report.of("spatial", __doc__, options)
        plan = PLANS[size_of(options)]
        found, missing = data_sets(options, plan)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    results = [run(data, plan, options.seed) for data in found]
    report.comparisons = comparisons(results)
    report.tables = tables(results)
    report.notes = [*missing, *notes(plan)]
    report.write(options.output, lambda figure: draw(figure, results), shape=(9.6, 4.6))


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument(
        "--uk", type=Path, metavar="FILE", help="CSV of longitude, latitude, price"
    )
    options.add_argument(
        "--data", type=Path, metavar="FOLDER", help=f"of {PRECIPITATION}"
    )
    return options.parse_args()


def data_sets(
    options: argparse.Namespace, plan: Plan
) -> tuple[list[Spatial], list[str]]:
    """What can be read, and a note on what cannot."""
    found = [simulate(plan.train, plan.test, options.seed)]
    missing = []
    folder = options.data or default_folder()
    if options.data is not None or (folder / PRECIPITATION).is_file():
        found.append(read_precipitation(folder, options.seed))
    else:
        missing.append(f"US precipitation: {NOT_RUN}, {PRECIPITATION} was not found")
    if options.uk is not None:
        found.append(read_uk(options.uk))
    else:
        missing.append(f"{UK}: {NOT_RUN}, no file was given (--uk)")
    return found, missing


def run(data: Spatial, plan: Plan, seed: int) -> Results:
    """Every engine on one data set."""
    model, kernel = choose_model(data, plan.searched, seed)
    some = data.shortened(*plan.some)
    few = data.shortened(*plan.early)
    by_size = [
        row_of(data, FULL_BATCH, side, full_batch(data, model, side, seed))
        for side in plan.sides
    ]
    together = []
    for side in dict.fromkeys((*plan.svi_sides, *plan.svgp_sides)):
        fits = {FULL_BATCH: full_batch(some, model, side, seed)}
        if side in plan.svi_sides:
            fits |= svi(some, model, side, seed, epochs=plan.epochs)
        if side in plan.svgp_sides:
            fits[SVGP] = svgp(some, model, side)
        together += [row_of(some, name, side, fit) for name, fit in fits.items()]
    early = []
    for iterations in plan.iterations:
        fit = stopped_early(few, model, plan.early_side, iterations)
        row = row_of(few, SOLVED, plan.early_side, fit)
        early.append({"PCG iterations": iterations, **row})
    costs = [cost_row(data, model, side, plan.timed_rows) for side in plan.sides]
    return Results(
        name=data.name,
        kernel={"data": data.name, **kernel},
        by_size=by_size,
        together=together,
        early=early,
        costs=costs,
    )


def choose_model(data: Spatial, count: int, seed: int) -> tuple[Model, Row]:
    """Lengthscale, variance and noise of the largest evidence of a subset."""
    generator = torch.Generator().manual_seed(seed)
    rows = clustered_subset(data.train, count, 8, generator)
    points = PointValues(data.train[rows])
    scales = [float(data.extent * s) for s in np.geomspace(0.0067, 0.2, 12)]
    best = best_scales(
        lambda s: symmetric_covariance(Matern52(lengthscale=s), points).numpy(),
        scales,
        data.values[rows].numpy(),
        np.zeros(len(rows)),
    )
    kernel = Matern52(lengthscale=best.lengthscale, variance=best.variance)
    row: Row = {
        "observations": len(data.values),
        "to test on": len(data.test),
        "lengthscale / box": best.lengthscale / data.extent,
        "variance": best.variance,
        "noise std": best.common_noise,
        "chosen on": len(rows),
    }
    say(f"{data.name}: {row}")
    return Model(kernel=kernel, noise=best.common_noise**2), row


def rmse(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(((found - wanted) ** 2).mean().sqrt())


def row_of(data: Spatial, engine: str, side: int, fit: Fit) -> Row:
    """One fit in the tables."""
    row: Row = {
        "data": data.name,
        "N": len(data.values),
        "M": side**2,
        "engine": engine,
        "RMSE": rmse(fit.mean, data.test_values),
    }
    if data.truth is not None:
        row["RMSE of the noise-free"] = rmse(fit.mean, data.truth)
    row["fit [s]"] = fit.seconds
    if fit.epoch is not None:
        row["epoch [s]"] = fit.epoch
    say(" ".join(f"{key} {value}" for key, value in row.items()))
    return row | fit.facts


def cost_row(data: Spatial, model: Model, side: int, count: int) -> Row:
    """What svi's rows take, measured on a few of them."""
    seconds = row_seconds(data, model, side, count)
    return {
        "data": data.name,
        "M": side**2,
        "rows measured": count,
        "s per row": seconds,
        f"EXTRAPOLATED: s per epoch of {OBSERVATIONS:,} rows": seconds * OBSERVATIONS,
    }


def notes(plan: Plan) -> list[str]:
    return [
        "RMSE: of the noisy observations that were held out",
        "simulated: a Matérn-5/2 field of variance 1, lengthscale 1/75 of the box, "
        f"observed {plan.train:,} times with noise 0.3",
        f"svi and SVGP get at most {plan.some[0]:,} observations and {plan.some[1]:,} "
        f"to test on, early stopping {plan.early[0]:,} and {plan.early[1]:,}",
        "full batch weighs observations with what the grid cannot resolve as further "
        "noise; svi and SVGP climb the bound without it, as in the paper",
        "an epoch of svi: its steps and the solves of all its rows; SVGP: the optimum "
        "of its bound in closed form",
        "the paper's times are of its GPU and all its observations",
    ]


if __name__ == "__main__":
    main()
