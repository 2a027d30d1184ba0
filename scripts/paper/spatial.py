#!/usr/bin/env python3
"""A plane field on more and more inducing points (section 5.4, Figs. 3 and 4).

Matérn-5/2 kernel of one lengthscale, chosen with the noise by the evidence of a subset,
zero mean after centring. The full-batch engine at every M; HIP-GP's engine (blocks of
10 × 10, at most 20 PCG iterations a row in training, 50 in evaluation) and SVGP, the
optimum of its bound in closed form, on 2,000 observations. The full batch weighs
observations with what the grid cannot resolve as further noise; the others climb the
bound without it, as in the paper. RMSE is of noisy observations that were held out. An
epoch of HIP-GP: its steps and the solves of all its rows. The paper's prices are not
shipped; US precipitation and a simulated field of as many observations (Matérn-5/2,
variance 1, lengthscale 1/75 of the box, noise 0.3) stand in, and times are of a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ananke_data import default_folder
from dense_covariance import symmetric_covariance
from dense_evidence import best_scales
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
    root_mean_square,
    size_of,
)
from spatial_data import PRECIPITATION, Spatial, read_precipitation, simulate
from spatial_engines import (
    FULL_BATCH,
    SOLVED,
    STEPS,
    SVGP,
    Fit,
    Model,
    full_batch,
    stopped_early,
    svgp,
    svi,
)

from dustmap.functionals import PointValues
from dustmap.gp.inducing import clustered_subset
from dustmap.kernels import Matern52
from pipelines.base.progress import say

# Fig. 3c: RMSE and seconds per epoch of the observations, by M.
_RMSE = {"HIP-GP": {10_000: 0.411, 40_000: 0.389}, "SVGP": {10_000: 0.412}}
_EPOCH = {"HIP-GP": 91.2, "SVGP": 193.6}
_OBSERVATIONS = 160_947


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run: points per axis of the engines, observations, iterations.

    ``train`` and ``test`` are of the simulated field; ``some`` are the observations
    that svi and SVGP get on ``some_side²`` points, ``early`` those of the early
    stopping.
    """

    sides: tuple[int, ...]
    train: int
    test: int
    searched: int
    some_side: int
    some: tuple[int, int]
    epochs: int
    early_side: int
    early: tuple[int, int]
    iterations: tuple[int, ...]


PLANS: dict[Size, Plan] = {
    "quick": Plan(
        sides=(20, 30),
        train=1_500,
        test=400,
        searched=150,
        some_side=20,
        some=(400, 150),
        epochs=1,
        early_side=20,
        early=(300, 100),
        iterations=(1, 3, 10),
    ),
    "default": Plan(
        sides=(100, 120, 140, 160, 180, 200),
        train=_OBSERVATIONS,
        test=20_000,
        searched=1_000,
        some_side=100,
        some=(2_000, 500),
        epochs=2,
        early_side=120,
        early=(1_000, 300),
        iterations=(1, 2, 5, 10, 20, 50),
    ),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--data", type=Path, metavar="FOLDER", help=f"of {PRECIPITATION}"
    )
    chosen = options.parse_args()
    plan = PLANS[size_of(chosen)]
    report = Report.of("spatial", __doc__, chosen)
    with refusals():
        found, report.notes = data_sets(chosen, plan)
    rows = [row for data in found for row in run(data, plan, chosen.seed)]
    report.comparisons = [
        entry for data in found for entry in comparisons(data.name, rows)
    ]
    report.tables = {"Fits": rows}
    full = [row for row in rows if row["engine"] == FULL_BATCH]
    curves = group(full, lambda row: row["data"], "M", "RMSE")
    report.write(
        chosen.output, plot(curves, "inducing points M", "RMSE", ("log", "linear"))
    )


def data_sets(
    options: argparse.Namespace, plan: Plan
) -> tuple[list[Spatial], list[str]]:
    """Read or simulate what can be had; note what is missing."""
    found = [simulate(plan.train, plan.test, options.seed)]
    folder = options.data or default_folder()
    if options.data is None and not (folder / PRECIPITATION).is_file():
        return found, [f"US precipitation: {NOT_RUN}, {PRECIPITATION} was not found"]
    return [*found, read_precipitation(folder, options.seed)], []


def run(data: Spatial, plan: Plan, seed: int) -> list[Row]:
    """Fit one data set by every engine."""
    model = choose_model(data, plan.searched, seed)
    rows = [
        row_of(data, FULL_BATCH, side, full_batch(data, model, side, seed))
        for side in plan.sides
    ]
    some, side = data.shortened(*plan.some), plan.some_side
    fits = svi(some, model, side, seed, epochs=plan.epochs)
    fits[SVGP] = svgp(some, model, side)
    rows += [row_of(some, name, side, fit) for name, fit in fits.items()]
    few = data.shortened(*plan.early)
    for iterations in plan.iterations:
        fit = stopped_early(few, model, plan.early_side, iterations)
        row = row_of(few, SOLVED, plan.early_side, fit)
        rows.append({"PCG iterations": iterations, **row})
    return rows


def choose_model(data: Spatial, count: int, seed: int) -> Model:
    """Choose lengthscale, variance and noise by the largest evidence of a subset."""
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
    return Model(kernel=kernel, noise=best.common_noise**2)


def row_of(data: Spatial, engine: str, side: int, fit: Fit) -> Row:
    """Make one row of the table."""
    row: Row = {
        "data": data.name,
        "N": len(data.values),
        "M": side**2,
        "engine": engine,
        "RMSE": root_mean_square(fit.mean - data.test_values),
        "epoch [s]": fit.epoch,
        "converged": fit.converged,
        "modes set to zero": fit.dropped,
    }
    if data.truth is not None:
        row["RMSE of the noise-free"] = root_mean_square(fit.mean - data.truth)
    say(str(row))
    return row


def comparisons(name: str, rows: Sequence[Row]) -> list[Comparison]:
    """Compare ratios of Fig. 3c, Fig. 4's early stopping and times for one data set."""
    own = [row for row in rows if row["data"] == name]
    early = [row for row in own if "PCG iterations" in row]
    found = {
        (row["engine"], row["M"]): row for row in own if "PCG iterations" not in row
    }

    def over(above: tuple[str, int], below: tuple[str, int]) -> str | None:
        if above not in found or below not in found:
            return None
        return f"{found[above]['RMSE'] / found[below]['RMSE']:.4f}"

    hip, dense = _RMSE["HIP-GP"], _RMSE["SVGP"]
    compared = [
        Comparison(
            what="RMSE, M = 40,000 / M = 10,000, HIP-GP",
            source="Fig. 3c",
            paper=f"{hip[40_000] / hip[10_000]:.4f}",
            here=over((FULL_BATCH, 40_000), (FULL_BATCH, 10_000)),
            remark=f"here: {name}, full batch",
        ),
        *(
            Comparison(
                what="RMSE, HIP-GP / SVGP, M = 10,000",
                source="Fig. 3c",
                paper=f"{hip[10_000] / dense[10_000]:.4f}",
                here=over((engine, 10_000), (SVGP, 10_000)),
                remark=f"here: {name}, {engine}",
            )
            for engine in (STEPS, SOLVED)
        ),
    ]
    last = early[-1]
    enough = next(
        row["PCG iterations"]
        for row in early
        if abs(row["RMSE"] / last["RMSE"] - 1) < 0.01
    )
    compared.append(
        Comparison(
            what="PCG iterations that bring the RMSE within 1% of the most, M = 14,400",
            source="Fig. 4 (a curve)",
            paper="robust to stopping",
            here=f"{enough}" if last["M"] == 14_400 else None,
            remark=f"here: {name}, the most are {last['PCG iterations']}",
        )
    )
    for paper, engine in (("HIP-GP", STEPS), ("SVGP", SVGP)):
        row = found.get((engine, 10_000))
        compared.append(
            Comparison(
                what=f"seconds per epoch and 1,000 observations, {paper}, M = 10,000",
                source="Fig. 3c",
                paper=f"{1_000 * _EPOCH[paper] / _OBSERVATIONS:.3g}",
                here=None
                if row is None
                else f"{1e3 * row['epoch [s]'] / row['N']:.3g}",
                remark=f"here: {name}" + (", whole fit" if paper == "SVGP" else ""),
            )
        )
    return compared


if __name__ == "__main__":
    main()
