#!/usr/bin/env python3
"""Elevations along roads on a plane grid (supplement C.3, Table S4).

64% of the rows to train and 20% to test on, in random order of three seeds; the full
batch (8 posterior samples; what the grid cannot resolve counts as noise) on M = 36,000
and more points of a torus, SGPR (512 points) and SVGP (1,024) beside it on the first
split. The full batch has the kernel of the largest evidence of a subset, SGPR and SVGP
that of their own bound (at most 15 steps of L-BFGS on 8,000 rows; Adam along with
natural steps from there). Elevations are in units of the training rows' standard
deviation, RMSE and NLL of the noisy ones. The paper has 3DRoad with three inputs and a
mean-field posterior; here a simulated set of the same size with two inputs stands in,
whose relief is Matérn-1/2 (variance 1, lengthscale 1/20 of the box, noise 0.05): its
errors are of the paper's size by construction, so that only ratios of engines and their
order can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paper_report import Comparison, Report, Row, Size, parser, size_of
from road3d_data import ROWS, Roads, simulate_roads
from road3d_engines import (
    FULL_BATCH,
    SGPR_NAME,
    SVGP_NAME,
    averaged,
    choose_scales,
    full_batch,
    scores,
    sgpr,
    svgp,
)

from pipelines.base.progress import say

_POINTS = 36_000
_SGPR_POINTS, _SVGP_POINTS = 512, 1_024
_SEED = 42
# Table S4: RMSE and NLL.
_PAPER = {
    FULL_BATCH: (0.189, -0.171),
    SGPR_NAME: (0.661, 0.943),
    SVGP_NAME: (0.481, 0.697),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` and ``lattice`` are of the simulated set. ``points`` of the full batch run
    on all ``splits``, ``more_points`` and the sparse methods on the first.
    """

    rows: int
    lattice: int
    searched: int
    splits: int
    points: int
    more_points: tuple[int, ...]
    sgpr: dict[str, int]
    svgp: dict[str, int]


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        rows=6_000,
        lattice=400,
        searched=150,
        splits=2,
        points=900,
        more_points=(3_600,),
        sgpr={"count": 48, "rows": 1_000, "steps": 4},
        svgp={"count": 64, "steps": 20, "batch": 256},
    ),
    "default": Plan(
        rows=ROWS,
        lattice=4_096,
        searched=1_000,
        splits=3,
        points=_POINTS,
        more_points=(100_000, 300_000),
        sgpr={"count": _SGPR_POINTS, "rows": 8_000, "steps": 15},
        svgp={"count": _SVGP_POINTS, "steps": 150, "batch": 1_024},
    ),
}


def main() -> None:
    options = parser(__doc__).parse_args()
    plan = PLANS[size_of(options)]
    report = Report.of("road3d", __doc__, options)
    rows = run(
        simulate_roads(plan.rows, plan.lattice, options.seed), plan, options.seed
    )
    means = averaged(rows)
    report.comparisons = comparisons(means)
    report.tables = {"Means over splits": means, "Every fit": rows}
    report.write(options.output)


def run(roads: Roads, plan: Plan, seed: int) -> list[Row]:
    """Fit every engine on its splits."""
    rows = []
    scales = choose_scales(roads.split(_SEED), plan.searched, seed)
    for number in range(plan.splits):
        split = roads.split(_SEED + number)
        more = () if number else plan.more_points
        fits = [
            (FULL_BATCH, full_batch(split, scales, points, seed))
            for points in (plan.points, *more)
        ]
        if number == 0:
            fit, learnt = sgpr(split, seed=seed, **plan.sgpr)
            fits.append((SGPR_NAME, fit))
            fits.append((SVGP_NAME, svgp(split, learnt, seed=seed, **plan.svgp)))
        for engine, fit in fits:
            row = {"engine": engine, "split": number, **scores(fit, split)}
            say(str(row))
            rows.append(row)
    return rows


def comparisons(means: Sequence[Row]) -> list[Comparison]:
    """Set Table S4 beside the same engines here."""
    counts = {FULL_BATCH: _POINTS, SGPR_NAME: _SGPR_POINTS, SVGP_NAME: _SVGP_POINTS}
    names = {engine: engine for engine in counts} | {FULL_BATCH: "HIP-GP"}
    # Rows and columns of the grid make almost as many points as are wanted.
    here = {
        row["engine"]: row
        for row in means
        if abs(row["M"] / counts[row["engine"]] - 1) < 0.02
    }
    found = [
        Comparison(
            what=f"{what}, {names[engine]}, M = {counts[engine]:,}",
            source="Table S4",
            paper=stated[index],
            here=here[engine][what] if engine in here else None,
            remark="here: full batch" if engine == FULL_BATCH else "",
        )
        for index, what in enumerate(("RMSE", "NLL"))
        for engine, stated in _PAPER.items()
    ]
    for engine in (SGPR_NAME, SVGP_NAME):
        both = FULL_BATCH in here and engine in here
        found.append(
            Comparison(
                what=f"RMSE of {engine} / of HIP-GP",
                source="Table S4",
                paper=f"{_PAPER[engine][0] / _PAPER[FULL_BATCH][0]:.3g}",
                here=here[engine]["RMSE"] / here[FULL_BATCH]["RMSE"] if both else None,
            )
        )
    full = [row for row in means if row["engine"] == FULL_BATCH]
    best = min(full, key=lambda row: row["RMSE"])
    found += [
        Comparison(
            what=f"{what}, as many points as help: M = {best['M']:,}",
            source="largest there: 36,000",
            paper=None,
            here=best[what],
            remark="here: full batch, first split",
        )
        for what in ("RMSE", "NLL")
    ]
    return found


if __name__ == "__main__":
    main()
