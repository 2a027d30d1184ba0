"""A fit to merged stars beside one to all of them: time, memory, error, coverage.

Stars simulated in a box of 4 × 4 × 2 kpc, with errors of distances, are fitted as they
are and after `dustmap merge` with cells smaller than a voxel, both by `dustmap fit`
with the same settings. Both maps are asked for the noise-free extinction and density
at stars that were not fitted, at their true places.
"""

from __future__ import annotations

import argparse

from report import Report, parser
from scoring import named, score_inside
from simulated import BOX, simulated
from verbs import dustmap, fit_and_predict

from pipelines.base.measurement import Row
from pipelines.catalog.schema import read_stars


def main() -> None:
    options = arguments()
    report = Report.of("merging", __doc__, options)
    work = options.output / "work"
    mock = simulated(
        work,
        stars=options.stars,
        targets=options.targets,
        seed=options.seed,
        settings=["truth.spacing=75"] if options.quick else [],
    )
    chosen = [
        *BOX,
        f"box.shape={options.shape}",
        f"inference.samples={options.samples}",
        "data.holdout=0",
        *options.set,
    ]
    merged = work / "merged-stars"
    taken = dustmap(
        ["merge", mock.stars, "-o", merged, "--overwrite", "--cells", options.cells],
        work / "merge.log",
    )
    rows: list[Row] = []
    for name, table in (("all stars", mock.stars), ("merged", merged)):
        fitted = fit_and_predict(work / name.split()[0], table, mock.targets, chosen)
        rows.append(
            {
                "fit to": name,
                "observations": len(read_stars(table)),
                **named(score_inside(fitted.columns, mock.truth)),
                **fitted.fit.row("fit "),
                "ℓ [pc]": fitted.facts()["ℓ [pc]"],
                "converged": fitted.facts()["converged"],
            }
        )
    report.tables = {
        "Noise-free extinction and density of stars not fitted": rows,
        "Merging": [{"cells": options.cells, **taken.row()}],
    }
    report.write(options.output)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, help="200,000 unless given")
    options.add_argument("--targets", type=int, help="stars to predict; 20,000")
    options.add_argument(
        "--shape", type=int, nargs=3, metavar="N", help="grid points; 40 40 20"
    )
    options.add_argument("--cells", metavar="NSIDE,WIDTH", default="32,80pc")
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    stars, targets, shape = 200_000, 20_000, [40, 40, 20]
    if chosen.quick:
        stars, targets, shape = 2_000, 500, [16, 16, 8]
    chosen.stars = chosen.stars or stars
    chosen.targets = chosen.targets or targets
    chosen.shape = chosen.shape or shape
    return chosen


if __name__ == "__main__":
    main()
