#!/usr/bin/env python3
"""Dust by integrals along sight lines, on more and more points (section 5.5, Fig. 5).

HIP-GP and SVGP with blocks of 2 × 2 × 2 points, zero mean and a Matérn-3/2 kernel whose
variance is learnt with a common noise by their bound on every grid; this project's full
batch with the kernel of the largest evidence of a subset. The paper has 480,000
stars of a simulated galaxy, M = 62,500 for HIP-GP and M = 16,384 for SVGP. Here are
4,000 of its stars in a smaller box, and a galaxy simulated by this project in the
paper's. A row of HIP-GP takes PCG on its embedding for each star: it runs on few stars,
and what its M = 62,500 takes is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from ananke_data import default_folder
from dust_data import ANANKE, GALAXY, Sky, ananke, choose_kernel, galaxy
from dust_engines import (
    DENSE,
    FULL_BATCH,
    HIPGP,
    SUBGRID,
    SVGP,
    Prediction,
    Scales,
    Shape,
    dense,
    full_batch,
    learn_scales,
    row_seconds,
    rowwise,
)
from dust_report import comparisons, draw
from paper_report import NOT_RUN, Report, Row, Size, parser, size_of

from dustmap.kernels import Matern32
from pipelines.base.errors import InputError
from pipelines.base.progress import say

# The paper's grids, of HIP-GP and of SVGP.
_LARGE, _SMALL = (50, 50, 25), (32, 32, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run on one data set.

    ``svgp`` and ``full`` are grids on all stars, ``few`` the numbers of stars to train
    and to test on that HIP-GP gets, and ``hipgp`` its grids, on which SVGP has them as
    well. Scales are learnt on ``searched`` stars, in at most ``steps`` steps of the
    bound. ``timed`` is the number of rows that HIP-GP's cost at the paper's M is
    measured on (0: not), ``spacing`` that of the simulated galaxy's dust [pc].
    """

    train: int
    test: int
    searched: int
    steps: int
    nodes: int
    dense: bool
    svgp: tuple[Shape, ...]
    full: tuple[Shape, ...]
    few: tuple[int, int]
    hipgp: tuple[Shape, ...]
    samples: int
    timed: int
    spacing: float = 25.0


PLANS: dict[Size, dict[str, Plan]] = {
    "quick": {
        ANANKE: Plan(
            train=300,
            test=100,
            searched=100,
            steps=4,
            nodes=6,
            dense=True,
            svgp=((4, 4, 2), (6, 6, 2)),
            full=((4, 4, 2), (6, 6, 2)),
            few=(60, 40),
            hipgp=((4, 4, 2), (6, 6, 2)),
            samples=8,
            timed=0,
        ),
        GALAXY: Plan(
            train=400,
            test=150,
            searched=100,
            steps=4,
            nodes=6,
            dense=True,
            svgp=((6, 6, 4), (10, 10, 5)),
            full=((6, 6, 4), (10, 10, 5)),
            few=(100, 50),
            hipgp=((6, 6, 4), (8, 8, 4)),
            samples=8,
            timed=0,
            spacing=50.0,
        ),
    },
    "default": {
        ANANKE: Plan(
            train=3_200,
            test=800,
            searched=600,
            steps=8,
            nodes=12,
            dense=True,
            svgp=((4, 4, 2), (6, 6, 2), (8, 8, 3), (15, 15, 4), (20, 20, 5)),
            full=((4, 4, 2), (6, 6, 2), (8, 8, 3), (15, 15, 4), (25, 25, 6)),
            few=(120, 60),
            hipgp=((4, 4, 2), (8, 8, 3), (12, 12, 4)),
            samples=16,
            timed=0,
        ),
        GALAXY: Plan(
            train=10_000,
            test=1_000,
            searched=600,
            steps=8,
            nodes=12,
            dense=False,
            svgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            full=((10, 10, 5), (16, 16, 8), (20, 20, 10), (32, 32, 16), _LARGE),
            few=(300, 150),
            hipgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            samples=8,
            timed=4,
        ),
    },
    "full": {
        ANANKE: Plan(
            train=3_200,
            test=800,
            searched=1_600,
            steps=40,
            nodes=12,
            dense=True,
            svgp=((8, 8, 3), (12, 12, 4), (15, 15, 4), (20, 20, 5), (30, 30, 7)),
            full=((8, 8, 3), (15, 15, 4), (25, 25, 6), (40, 40, 9)),
            few=(3_200, 800),
            hipgp=((8, 8, 3), (12, 12, 4), (15, 15, 4)),
            samples=32,
            timed=0,
        ),
        GALAXY: Plan(
            train=480_000,
            test=20_000,
            searched=1_600,
            steps=40,
            nodes=12,
            dense=False,
            svgp=((10, 10, 5), (16, 16, 8), (20, 20, 10), _SMALL),
            full=((10, 10, 5), (16, 16, 8), _SMALL, _LARGE, (100, 100, 50)),
            few=(480_000, 20_000),
            hipgp=((10, 10, 5), (16, 16, 8), (20, 20, 10), _LARGE),
            samples=32,
            timed=20,
        ),
    },
}


def main() -> None:
    options = arguments()
    plans = PLANS[size_of(options)]
    try:
        report = Report.of("dust", __doc__, options)
        skies, missing = data_sets(options, plans)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    rows, kernels, costs = [], [], []
    refused: list[str] = []
    for sky in skies:
        plan = plans[sky.name]
        kernel, chosen = choose_kernel(sky, plan.searched, plan.nodes)
        say(str(chosen))
        kernels.append(chosen)
        rows += list(run(sky, kernel, plan, refused))
        if plan.timed:
            costs.append(cost_row(sky, kernel, plan))
    report.comparisons = comparisons(rows, costs)
    report.tables = {"Kernel": kernels, "Fits": rows}
    if costs:
        report.tables["Rows of HIP-GP at the paper's M"] = costs
    report.notes = [*missing, *refused, *notes(plans)]
    report.write(options.output, lambda figure: draw(figure, rows), shape=(9.6, 6.6))


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument(
        "--data", type=Path, metavar="FOLDER", help="of the Ananke sample"
    )
    return options.parse_args()


def data_sets(
    options: argparse.Namespace, plans: dict[str, Plan]
) -> tuple[list[Sky], list[str]]:
    """What can be had, and a note on what cannot."""
    found, missing = [], []
    plan = plans[ANANKE]
    try:
        folder = options.data or default_folder()
        found.append(ananke(folder, plan.train, plan.test, options.seed))
    except InputError as error:
        if options.data is not None:
            raise
        missing.append(f"{ANANKE}: {NOT_RUN}, {error}")
    plan = plans[GALAXY]
    found.append(galaxy(plan.train, plan.test, options.seed, spacing=plan.spacing))
    return found, missing


def run(sky: Sky, kernel: Matern32, plan: Plan, refused: list[str]) -> Iterator[Row]:
    """Every engine, first on all stars and then on the few that HIP-GP gets.

    ``refused`` gathers the grids that HIP-GP has no embedding for.
    """
    nodes, known = plan.nodes, Scales(kernel=kernel)
    learnt = {
        shape: learn_scales(sky, kernel, shape, nodes, plan.searched, plan.steps)
        for shape in dict.fromkeys((*plan.svgp, *plan.hipgp))
    }
    if plan.dense:
        yield row_of(sky, DENSE, None, dense(sky, kernel, nodes))
    for shape in plan.full:
        found = full_batch(sky, kernel, shape, nodes, plan.samples)
        yield row_of(sky, FULL_BATCH, shape, found)
    for shape in plan.svgp:
        found = rowwise(sky, learnt[shape], shape, nodes, SVGP)
        yield row_of(sky, SVGP, shape, found)
        found = rowwise(sky, known, shape, nodes, SVGP, subgrid=True)
        yield row_of(sky, SVGP + SUBGRID, shape, found)
    few = sky.shortened(*plan.few)
    for shape in plan.hipgp:
        for engine in (HIPGP, SVGP):
            try:
                found = rowwise(few, learnt[shape], shape, nodes, engine)
            except ValueError as error:
                if engine != HIPGP:
                    raise
                grid = "×".join(map(str, shape))
                refused.append(f"{HIPGP}, {sky.name}, {grid}: {NOT_RUN}, {error}")
                continue
            yield row_of(few, engine, shape, found)


def row_of(sky: Sky, engine: str, shape: Shape | None, found: Prediction) -> Row:
    """One fit in the tables."""
    common = found.facts.get("common noise [mag]", 0.0)
    error = found.extinction_mean - sky.test.extinction
    noisy = found.extinction_mean - sky.held.values
    variance = found.extinction_std**2 + sky.held.sigma**2 + common**2
    density = np.log(2 * np.pi * variance) + noisy**2 / variance
    row: Row = {
        "data": sky.name,
        "N": len(sky.train),
        "engine": engine,
        "M": None if shape is None else prod(shape),
        "grid": None if shape is None else "×".join(map(str, shape)),
        "MAE [mag]": float(np.mean(np.abs(error))),
        "MSE [mag²]": float(np.mean(error**2)),
        "log likelihood": float(-0.5 * density.mean()),
        "within 1 std": float(np.mean(np.abs(error) <= found.extinction_std)),
        "density r": float(np.corrcoef(found.density_mean, sky.test.density)[0, 1]),
        "fit [s]": found.seconds,
    }
    say(" ".join(f"{key} {value}" for key, value in row.items()))
    return row | found.facts


def cost_row(sky: Sky, kernel: Matern32, plan: Plan) -> Row:
    """What HIP-GP's rows take at the paper's M, measured on a few."""
    seconds, iterations = row_seconds(sky, kernel, _LARGE, plan.nodes, plan.timed)
    return {
        "data": sky.name,
        "M": prod(_LARGE),
        "rows measured": plan.timed,
        "s per row": seconds,
        "most iterations": iterations,
        "EXTRAPOLATED: h per epoch of 480,000 rows": seconds * 480_000 / 3_600,
    }


def notes(plans: dict[str, Plan]) -> list[str]:
    """What was run on what, and why figures differ from the paper's."""
    few = "; ".join(
        f"{name}: {plan.few[0]:,} to train and {plan.few[1]:,} to test on"
        for name, plan in plans.items()
    )
    return [
        "MAE and MSE of the noise-free extinction, log likelihood of the noisy one, "
        "both of held-out stars; density r is the correlation with the true density",
        f"HIP-GP's stars: {few}; the other engines have all stars, SVGP these as well",
        "HIP-GP and SVGP: the optimum of the published bound with blocks of 2 × 2 × 2; "
        f"'{SVGP}{SUBGRID}': conditional variances as further noise instead, with the "
        "full batch's kernel; PCG stops after 200 iterations in training and 500 in "
        "evaluation, as in the paper, or at 1e-5",
        "their lengthscale is that of the largest evidence, or 1.5 spacings on grids "
        "that are too coarse for it",
        "HIP-GP's embeddings grow until they are positive or have 65,536 points, or 16 "
        "for each inducing point; from there on negative modes are set to zero, as the "
        "published code does in general, where that changes the covariance by no more "
        "than 2%: the thinner the box in lengthscales, the sooner",
        "the paper's figures are of other stars, noise and densities: ratios over M "
        "and the order of engines can be compared, figures cannot",
    ]


if __name__ == "__main__":
    main()
