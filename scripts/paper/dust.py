#!/usr/bin/env python3
"""Dust by integrals along sight lines, on more and more points (section 5.5, Fig. 5).

HIP-GP and SVGP with blocks of 2 × 2 × 2 points (the optimum of the published bound),
zero mean and a Matérn-3/2 kernel whose variance is learnt with a common noise by their
bound on every grid; their lengthscale is that of the largest evidence of a subset, or
1.5 spacings on grids that are too coarse for it. This project's full batch has the
kernel of the largest evidence. MAE and MSE are of the noise-free extinction, the log
likelihood of the noisy one, of held-out stars. The paper has 480,000 stars of a
simulated galaxy, M = 62,500 for HIP-GP and M = 16,384 for SVGP. Here are 4,000 of its
stars in a smaller box, and a galaxy simulated by this project in the paper's: ratios
over M and the order of engines can be compared, figures cannot. A row of HIP-GP takes
PCG (200 iterations in training, 500 in evaluation, or to 1e-5) on its embedding for
each star: it runs on few stars, and what a row takes at M = 62,500 is timed. Embeddings
grow until they are positive or have 65,536 points, or 16 for each inducing point; from
there on negative modes are set to zero, as the published code does in general, where
that changes the covariance by no more than 2%.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
from ananke_data import default_folder
from dust_data import ANANKE, GALAXY, Sky, ananke, choose_kernel, galaxy
from dust_engines import (
    FULL_BATCH,
    HIPGP,
    SVGP,
    Prediction,
    Shape,
    full_batch,
    learn_scales,
    row_seconds,
    rowwise,
)
from paper_report import (
    NOT_RUN,
    Comparison,
    Report,
    Row,
    Size,
    group,
    parser,
    plot,
    refusals,
    size_of,
)

from dustmap.kernels import Matern32
from pipelines.base.errors import InputError
from pipelines.base.progress import say

_LARGE = (50, 50, 25)
# Fig. 5c: HIP-GP with M = 62,500 and SVGP with M = 16,384.
MAE, MSE, LOGLIKE = "MAE [mag]", "MSE [mag²]", "log likelihood"
_PAPER = {MAE: (0.0101, 0.0153), MSE: (0.0012, 0.0020), LOGLIKE: (2.3517, 2.0690)}


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
            svgp=((4, 4, 2), (6, 6, 2)),
            full=((4, 4, 2), (6, 6, 2)),
            few=(60, 40),
            hipgp=((4, 4, 2), (8, 8, 2)),
            samples=8,
            timed=0,
        ),
        GALAXY: Plan(
            train=400,
            test=150,
            searched=100,
            steps=4,
            nodes=6,
            svgp=((6, 6, 4), (10, 10, 5)),
            full=((6, 6, 4), (10, 10, 5)),
            few=(100, 50),
            hipgp=((4, 4, 4), (8, 8, 4)),
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
            svgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            full=((10, 10, 5), (16, 16, 8), (20, 20, 10), (32, 32, 16), _LARGE),
            few=(300, 150),
            hipgp=((10, 10, 5), (16, 16, 8), (20, 20, 10)),
            samples=8,
            timed=4,
        ),
    },
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--data", type=Path, metavar="FOLDER", help="of the Ananke sample"
    )
    chosen = options.parse_args()
    plans = PLANS[size_of(chosen)]
    report = Report.of("dust", __doc__, chosen)
    with refusals():
        skies, report.notes = data_sets(chosen, plans)
    rows, seconds = [], None
    for sky in skies:
        plan = plans[sky.name]
        kernel = choose_kernel(sky, plan.searched, plan.nodes)
        rows += list(run(sky, kernel, plan))
        if plan.timed:
            seconds = row_seconds(sky, kernel, _LARGE, plan.nodes, plan.timed)
    report.comparisons = comparisons(rows, seconds)
    report.tables = {"Fits": rows}
    curves = group(
        rows, lambda r: f"{r['engine']}, {r['data']}, N = {r['N']:,}", "M", MAE
    )
    report.write(chosen.output, plot(curves, "inducing points M", MAE))


def data_sets(
    options: argparse.Namespace, plans: dict[str, Plan]
) -> tuple[list[Sky], list[str]]:
    """Read or simulate what can be had; note what cannot."""
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


def run(sky: Sky, kernel: Matern32, plan: Plan) -> Iterator[Row]:
    """Fit by every engine, first all stars and then the few that HIP-GP gets."""
    learnt = {
        shape: learn_scales(sky, kernel, shape, plan.nodes, plan.searched, plan.steps)
        for shape in dict.fromkeys((*plan.svgp, *plan.hipgp))
    }
    for shape in plan.full:
        found = full_batch(sky, kernel, shape, plan.samples)
        yield row_of(sky, FULL_BATCH, shape, found)
    for shape in plan.svgp:
        found = rowwise(sky, learnt[shape], shape, plan.nodes, SVGP)
        yield row_of(sky, SVGP, shape, found)
    few = sky.shortened(*plan.few)
    for shape in plan.hipgp:
        for engine in (HIPGP, SVGP):
            found = rowwise(few, learnt[shape], shape, plan.nodes, engine)
            yield row_of(few, engine, shape, found)


def row_of(sky: Sky, engine: str, shape: Shape, found: Prediction) -> Row:
    """Score one fit for the table."""
    mean, std = found.mean.numpy(), found.std.numpy()
    error, noisy = mean - sky.test.extinction, mean - sky.held.values
    variance = std**2 + sky.held.sigma**2 + found.common
    density = np.log(2 * np.pi * variance) + noisy**2 / variance
    row: Row = {
        "data": sky.name,
        "N": len(sky.train),
        "engine": engine,
        "M": prod(shape),
        MAE: float(np.mean(np.abs(error))),
        MSE: float(np.mean(error**2)),
        LOGLIKE: float(-0.5 * density.mean()),
        "modes set to zero": found.dropped,
        "jitter": found.jitter,
    }
    say(str(row))
    return row


def comparisons(rows: Sequence[Row], seconds: float | None) -> list[Comparison]:
    """Compare more points with the most that SVGP has, and HIP-GP with SVGP.

    The full batch on its most points and SVGP on its most have the same stars, and so
    have HIP-GP and SVGP, the latter on the most points that are fewer by 2.5.
    """
    found = []
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        all_stars = max(row["N"] for row in own)
        by: dict[tuple[str, bool], list[Row]] = {}
        for row in sorted(own, key=lambda row: row["M"]):
            by.setdefault((row["engine"], row["N"] < all_stars), []).append(row)
        hip, alike = by[HIPGP, True], by[SVGP, True]
        most, dense = by[FULL_BATCH, False][-1], by[SVGP, False][-1]
        small = [row for row in alike if row["M"] <= hip[-1]["M"] / 2.5][-1]
        few = f"{hip[-1]['N']:,} stars, "
        pairs = (
            ("most points", most, "SVGP's most", dense, ""),
            (HIPGP, hip[-1], "SVGP on fewer points", small, few),
        )
        for (ours, last, theirs, first, stars), what in product(pairs, _PAPER):
            found.append(
                Comparison(
                    what=f"{what}, {ours} {_verb(what)} {theirs}",
                    source="Fig. 5c (HIP-GP 62,500, SVGP 16,384)",
                    paper=_change(what, *_PAPER[what]),
                    here=_change(what, last[what], first[what]),
                    remark=f"here: {name}, {stars}{last['engine']} with "
                    f"M = {last['M']:,} {_verb(what)} SVGP with M = {first['M']:,}",
                )
            )
        for what in (MAE, LOGLIKE):
            changes = [
                _change(what, ours[what], theirs[what])
                for ours, theirs in zip(hip, alike, strict=True)
            ]
            neutral = 0.0 if what == LOGLIKE else 1.0
            found.append(
                Comparison(
                    what=f"{what}, HIP-GP {_verb(what)} SVGP on the same points "
                    "(worst)",
                    source="not in Fig. 5 (alike in Fig. 3)",
                    paper=None,
                    here=max(changes, key=lambda c: abs(float(c) - neutral)),
                    remark=f"here: {name}, {len(changes)} grids",
                )
            )
    found.append(
        Comparison(
            what="seconds for a row of HIP-GP, M = 62,500",
            source="section 5.5",
            paper=None,
            here=seconds,
            remark="here: on this CPU, one thread unless said otherwise",
        )
    )
    return found


def _verb(what: str) -> str:
    return "minus" if what == LOGLIKE else "over"


def _change(what: str, last: float, first: float) -> str:
    """Subtract log likelihoods, divide errors."""
    return f"{last - first:+.3f}" if what == LOGLIKE else f"{last / first:.3f}"


if __name__ == "__main__":
    main()
