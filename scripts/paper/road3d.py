#!/usr/bin/env python3
"""Elevations along roads on a plane grid (supplement C.3, Table S4).

64% of the rows to train and 20% to test on, in random order of several seeds; the full
batch on M = 36,000 and more points of a torus, SGPR (512 points) and SVGP (1,024)
beside it. The full batch has the kernel of the largest evidence of a subset, SGPR and
SVGP that of their own bound. The paper has 3DRoad with three inputs and a mean-field
posterior; --file reads a copy of it (two inputs), without one a simulated set of the
same size stands in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Comparison, Report, Row, Size, parser, size_of
from road3d_data import GIVEN, ROWS, SIMULATED, Roads, read_roads, simulate_roads
from road3d_engines import (
    FULL_BATCH,
    SGPR_NAME,
    SVGP_NAME,
    Fit,
    averaged,
    choose_scales,
    full_batch,
    scores,
    sgpr,
    svgp,
)

from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.figures.style import BLUE, GREEN, ORANGE

_POINTS = 36_000
_SGPR_POINTS, _SVGP_POINTS = 512, 1_024
_SEED = 42
# Table S4: RMSE and NLL.
_PAPER = {
    "HIP-GP": (0.189, -0.171),
    "exact GP": (0.101, 0.909),
    SGPR_NAME: (0.661, 0.943),
    SVGP_NAME: (0.481, 0.697),
}
_SHOWN = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run.

    ``rows`` and ``lattice`` are of the simulated set. ``points`` of the full batch run
    on all ``splits``, ``more_points`` and, unless ``sparse_splits`` says otherwise, the
    sparse methods on the first.
    """

    rows: int
    lattice: int
    searched: int
    splits: int
    points: int
    more_points: tuple[int, ...]
    samples: int
    sparse_splits: int
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
        samples=8,
        sparse_splits=1,
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
        samples=8,
        sparse_splits=1,
        sgpr={"count": _SGPR_POINTS, "rows": 8_000, "steps": 15},
        svgp={"count": _SVGP_POINTS, "steps": 150, "batch": 1_024},
    ),
    "full": Plan(
        rows=ROWS,
        lattice=4_096,
        searched=1_500,
        splits=3,
        points=_POINTS,
        more_points=(100_000, 300_000, 1_000_000, 3_000_000),
        samples=32,
        sparse_splits=3,
        sgpr={"count": _SGPR_POINTS, "rows": ROWS, "steps": 50},
        svgp={"count": _SVGP_POINTS, "steps": 5_000, "batch": 1_024},
    ),
}


def main() -> None:
    options = arguments()
    plan = PLANS[size_of(options)]
    try:
        report = Report.of("road3d", __doc__, options)
        roads = (
            simulate_roads(plan.rows, plan.lattice, options.seed)
            if options.file is None
            else read_roads(options.file)
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    chosen, rows = run(roads, plan, options.seed)
    means = averaged(rows)
    report.comparisons = comparisons(rows, means, roads.name)
    report.tables = {
        "Kernel and noise": [chosen],
        "Means over splits": means,
        "Every fit": rows,
    }
    report.notes = notes(roads, plan)
    report.write(
        options.output,
        lambda figure: draw(figure, roads, means),
        shape=(11.0, 3.9),
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="3DRoad as text: longitude, latitude, altitude in the last three columns",
    )
    return options.parse_args()


def run(roads: Roads, plan: Plan, seed: int) -> tuple[Row, list[Row]]:
    """Every engine on its splits."""
    first = roads.split(_SEED)
    scales, chosen = choose_scales(first, plan.searched, seed)
    say(f"{roads.name}: {chosen}")
    rows = []

    def judge(number: int, engine: str, fit: Fit) -> None:
        row = {"engine": engine, "M": 0, "split": number, **scores(fit, split)}
        row |= {"noise std": fit.noise**0.5, "fit [s]": fit.seconds, **fit.facts}
        say(str(row))
        rows.append({"data": roads.name, "N": len(split.values), **row})

    for number in range(plan.splits):
        split = first if number == 0 else roads.split(_SEED + number)
        more = plan.more_points if number == 0 else ()
        for points in (plan.points, *more):
            fit = full_batch(split, scales, points, seed, samples=plan.samples)
            judge(number, FULL_BATCH, fit)
        if number < plan.sparse_splits:
            fit, learnt = sgpr(split, seed=seed, **plan.sgpr)
            judge(number, SGPR_NAME, fit)
            judge(number, SVGP_NAME, svgp(split, learnt, seed=seed, **plan.svgp))
    return {"data": roads.name, "rows": len(roads), **chosen}, rows


def comparisons(
    rows: Sequence[Row], means: Sequence[Row], name: str
) -> list[Comparison]:
    """Table S4 beside the same engines here."""
    full = {row["M"]: row for row in means if row["engine"] == FULL_BATCH}
    # Rows and columns of the grid make almost as many points as are asked for.
    near = {m: row for m, row in full.items() if abs(m / _POINTS - 1) < 0.02}
    here: dict[str, Row | None] = {
        "HIP-GP": next(iter(near.values()), None),
        "exact GP": None,
        SGPR_NAME: _with(means, SGPR_NAME, _SGPR_POINTS),
        SVGP_NAME: _with(means, SVGP_NAME, _SVGP_POINTS),
    }
    remarks = {
        "HIP-GP": f"here: full batch, {name}",
        "exact GP": "here: too many rows",
    }
    found = []
    for index, what in enumerate(("RMSE", "NLL")):
        for engine, stated in _PAPER.items():
            own = here[engine]
            found.append(
                Comparison(
                    what=f"{what}, {engine}{_points(engine)}",
                    source="Table S4",
                    paper=stated[index],
                    here=None if own is None else own[what],
                    remark=remarks.get(engine, f"here: {name}"),
                )
            )
    for engine in (SGPR_NAME, SVGP_NAME):
        found.append(_ratio(engine, here))
    best = min(full.values(), key=lambda row: row["RMSE"])
    for what in ("RMSE", "NLL"):
        found.append(
            Comparison(
                what=f"{what}, as many points as help: M = {best['M']:,}",
                source="largest there: 36,000",
                paper=None,
                here=best[what] if len(full) > 1 else None,
                remark=f"here: full batch, {name}, first split",
            )
        )
    return found


def _points(engine: str) -> str:
    counts = {"HIP-GP": _POINTS, SGPR_NAME: _SGPR_POINTS, SVGP_NAME: _SVGP_POINTS}
    return f", M = {counts[engine]:,}" if engine in counts else ""


def _with(means: Sequence[Row], engine: str, points: int) -> Row | None:
    """The engine's row if it had so many points."""
    own = (row for row in means if (row["engine"], row["M"]) == (engine, points))
    return next(own, None)


def _ratio(engine: str, here: dict[str, Row | None]) -> Comparison:
    ours, theirs = here["HIP-GP"], here[engine]
    ratio = None
    if ours is not None and theirs is not None:
        ratio = theirs["RMSE"] / ours["RMSE"]
    return Comparison(
        what=f"RMSE of {engine} / of HIP-GP",
        source="Table S4",
        paper=f"{_PAPER[engine][0] / _PAPER['HIP-GP'][0]:.3g}",
        here=ratio,
    )


def notes(roads: Roads, plan: Plan) -> list[str]:
    """What was run on what, and why figures differ from the paper's."""
    lines = [
        f"data: {roads.name}, {len(roads):,} rows, two inputs; elevations in units of "
        "the training rows' standard deviation, RMSE and NLL (mean negative log "
        "density) of the noisy ones",
        f"splits: 64/16/20% by a permutation of seeds {_SEED} to "
        f"{_SEED + plan.splits - 1}; the 16% are not looked at; scales are learnt on "
        "the first split",
        f"sparse methods: {plan.sparse_splits} of {plan.splits} splits; SGPR's kernel "
        f"and noise by at most {plan.sgpr['steps']} steps of L-BFGS on "
        f"{plan.sgpr['rows']:,} rows and its fit on all, SVGP's from there by Adam "
        "along with natural steps",
        f"full batch: {plan.samples} posterior samples, whose scatter and the "
        "conditional variance of what the grid cannot resolve make the predictive "
        "variance; the latter also counts as noise in the fit",
    ]
    if roads.name == SIMULATED:
        lines.append(
            "3DRoad itself: not run, no file was given (--file). The simulated relief "
            "is Matérn-1/2 (variance 1, lengthscale 1/20 of the box, noise 0.05), so "
            "that its errors are of the paper's size by construction; ratios of "
            "engines and their order are what can be compared"
        )
    else:
        lines.append(
            f"{GIVEN} of the paper has a third input, the road's identifier; here it "
            "is left out"
        )
    return lines


def draw(figure: Figure, roads: Roads, means: Sequence[Row]) -> None:
    """The data; both scores against M."""
    place, left, right = figure.subplots(1, 3)
    _draw_roads(figure, place, roads)
    for axes, what in ((left, "RMSE"), (right, "NLL")):
        _draw_scores(axes, what, means)
    left.legend(frameon=False, fontsize="x-small")


def _draw_roads(figure: Figure, axes: Axes, roads: Roads) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(roads), generator=generator)[:_SHOWN]
    height = (roads.height - roads.height.mean()) / roads.height.std()
    size = max(0.15, 2_000 / len(rows))
    options: dict[str, Any] = {"s": size, "linewidths": 0, "rasterized": True}
    drawn = axes.scatter(*roads.at[rows].T, c=height[rows], cmap="cividis", vmin=-2.5,
                         vmax=2.5, **options)  # fmt: skip
    figure.colorbar(drawn, ax=axes, label="elevation / its standard deviation",
                    extend="both", shrink=0.8)  # fmt: skip
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{roads.name}, {len(roads):,} rows", fontsize="medium")


def _draw_scores(axes: Axes, what: str, means: Sequence[Row]) -> None:
    index = ("RMSE", "NLL").index(what)
    styles = {
        FULL_BATCH: (BLUE, "-o"),
        SGPR_NAME: (ORANGE, "s"),
        SVGP_NAME: (GREEN, "^"),
    }
    for engine, (colour, style) in styles.items():
        own = [row for row in means if row["engine"] == engine]
        axes.plot([r["M"] for r in own], [r[what] for r in own], style, color=colour,
                  markersize=6, label=engine)  # fmt: skip
    stated = {
        "HIP-GP": (_POINTS, BLUE, "o"),
        SGPR_NAME: (_SGPR_POINTS, ORANGE, "s"),
        SVGP_NAME: (_SVGP_POINTS, GREEN, "^"),
    }
    for engine, (points, colour, marker) in stated.items():
        axes.plot(points, _PAPER[engine][index], marker, color=colour, markersize=9,
                  fillstyle="none")  # fmt: skip
    axes.plot([], [], "o", color="0.4", markersize=9, fillstyle="none",
              label="paper, 3DRoad")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("inducing points M")
    long = {"RMSE": "RMSE", "NLL": "mean negative log density"}
    axes.set_ylabel(f"{long[what]} of held-out rows")


if __name__ == "__main__":
    main()
