"""Real open clusters and stars, each predicted from a map of the others.

Hunt & Reffert 2023 clusters and stars in fields (Miglio et al. 2021, Anders et al.
2017, Zinn et al. 2022) within 5 kpc, ingested by their presets, in five random folds:
a map of four predicts the measured A_V of the fifth. Errors contain the measurements'
own; intervals are those of a new measurement (map, stated error, common noise and
distance error, a normal distribution). No truth of the density is known.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from report import Report, Row, parser
from scoring import coverage, errors, normal_interval
from semi_synthetic import data_folder
from verbs import Fitted, dustmap, fit_and_predict

from pipelines.catalog.schema import Stars, read_stars, write_stars
from pipelines.planning.selection import distance_errors
from pipelines.run.baseline import NAME, predict_baseline

FOLDS, REACH = 5, 5000.0
SOURCES = {
    "clusters": ("clusters_hunt2023.csv.gz", "hunt2023"),
    "stars": ("stars_av.csv.gz", "stars-av"),
}
METHODS = ("dustmap", NAME)


def objects(data: Path, work: Path) -> tuple[Stars, np.ndarray]:
    """Both catalogues as one table, those within reach, and which are clusters."""
    tables = []
    for kind, (name, preset) in SOURCES.items():
        tables.append(work / f"{kind}.parquet")
        words = ["ingest", data / name, "--preset", preset, "-o", tables[-1]]
        dustmap([*words, "--overwrite"], work / f"ingest_{kind}.log")
    both = work / "both.parquet"
    dustmap(["ingest", *tables, "-o", both, "--overwrite"], work / "ingest.log")
    clusters = read_stars(tables[0]).source_id
    stars = read_stars(both)
    stars = stars.select(stars.distance < REACH)
    assert clusters is not None
    assert stars.source_id is not None
    return stars, np.isin(stars.source_id, clusters)


def one_fold(
    number: int, stars: Stars, fold: np.ndarray, options: argparse.Namespace
) -> tuple[Fitted, dict[str, np.ndarray]]:
    """The fit on the others, and what all methods predict; NaN outside the map."""
    work = options.output / "work" / f"fold{number}"
    work.mkdir(exist_ok=True)
    train, test = stars.select(fold != number), stars.select(fold == number)
    write_stars(work / "stars.parquet", train, overwrite=True)
    write_stars(work / "targets.parquet", test, overwrite=True)
    chosen = [
        f"box.spacing={options.spacing:g}",
        f"inference.seed={options.seed}",
        "data.holdout=0",
        *options.set,
    ]
    fitted = fit_and_predict(
        work, work / "stars.parquet", work / "targets.parquet", chosen
    )
    columns = fitted.columns
    noise = new_noise(fitted, test)
    spread = np.sqrt(columns["extinction_std"] ** 2 + noise)
    found = {"dustmap": columns["extinction_mean"], "spread": spread}
    generator = torch.Generator().manual_seed(options.seed)
    beside = predict_baseline(train, test, generator)
    assert beside is not None
    return fitted, {**found, NAME: beside.kriging}


def new_noise(fitted: Fitted, test: Stars) -> np.ndarray:
    """Variance [mag²] of a measurement around the noise-free extinction."""
    assert test.extinction_error is not None
    variance = test.extinction_error**2 + fitted.plan["common_noise"] ** 2
    if test.distance_error is None:
        return variance
    return variance + (fitted.columns["density_mean"] * distance_errors(test)) ** 2


def rows_of(
    found: dict[str, np.ndarray], observed: np.ndarray, is_cluster: np.ndarray
) -> list[Row]:
    """Every method on clusters and stars separately, on objects inside the maps."""
    inside = np.isfinite(found["dustmap"])
    rows = []
    for kind, chosen in (("clusters", is_cluster), ("stars", ~is_cluster)):
        kept = chosen & inside
        true = observed[kept]
        interval = normal_interval(found["dustmap"][kept], found["spread"][kept])
        for method in METHODS:
            row: Row = {
                "objects": kind,
                "method": method,
                "number": int(kept.sum()),
                "outside": int((chosen & ~inside).sum()),
                "scatter [mag]": float(true.std()),
            }
            guess = found[method][kept]
            wrong = errors(guess, true)
            row["RMSE [mag]"], row["MAE [mag]"] = wrong["rmse"], wrong["mae"]
            row["r"] = float(np.corrcoef(guess, true)[0, 1])
            if method == "dustmap":
                row["in 68%"], row["in 95%"] = coverage(interval, true)
            rows.append(row)
        best = rows[-len(METHODS)]["RMSE [mag]"]
        for row in rows[-len(METHODS) :]:
            row["RMSE / dustmap"] = row["RMSE [mag]"] / best
    return rows


def main() -> None:
    options = arguments()
    report = Report.of("real_folds", __doc__, options)
    stars, is_cluster = objects(options.data, options.output / "work")
    fold = np.random.default_rng(options.seed).permutation(len(stars)) % FOLDS
    total = {n: np.full(len(stars), np.nan) for n in (*METHODS, "spread")}
    fits: list[Row] = []
    for number in range(options.folds):
        fitted, found = one_fold(number, stars, fold, options)
        for name, values in found.items():
            total[name][fold == number] = values
        fits.append({"fold": number, **fitted.facts(), **fitted.fit.row()})
    done = fold < options.folds
    total = {name: values[done] for name, values in total.items()}
    assert stars.extinction is not None
    observed, is_cluster = stars.extinction[done], is_cluster[done]
    report.tables = {
        f"A_V of objects left out, {options.folds} of {FOLDS} folds": rows_of(
            total, observed, is_cluster
        ),
        "The fits": fits,
    }
    report.write(
        options.output,
        lambda figure: draw(figure, total["dustmap"], observed, is_cluster),
    )


def draw(
    figure: Figure, predicted: np.ndarray, observed: np.ndarray, is_cluster: np.ndarray
) -> None:
    """Predicted against measured A_V, clusters and stars."""
    panels = (("open clusters", is_cluster), ("stars in fields", ~is_cluster))
    for axes, (kind, chosen) in zip(figure.subplots(1, 2), panels, strict=True):
        x, y = observed[chosen], predicted[chosen]
        limit = float(np.nanquantile(np.concatenate([x, y]), 0.998))
        axes.plot([0, limit], [0, limit], color="0.5", linewidth=0.8)
        axes.plot(x, y, ".", markersize=2, alpha=0.4, rasterized=True)
        axes.set(
            title=kind,
            xlim=(-0.05 * limit, 1.05 * limit),
            ylim=(-0.05 * limit, 1.05 * limit),
            aspect="equal",
            xlabel="measured $A_V$ [mag]",
            ylabel="predicted $A_V$ [mag]",
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--spacing", type=float, default=50.0, help="[pc]")
    options.add_argument("--folds", type=int, choices=range(1, FOLDS + 1))
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    for name, _ in SOURCES.values():
        if not (chosen.data / name).is_file():
            options.error(f"{chosen.data} has no {name}: name its folder by --data")
    if chosen.quick:
        small = ["inference.samples=4", "inference.learn=false"]
        chosen.set = [*small, *chosen.set]
        if chosen.spacing == options.get_default("spacing"):
            chosen.spacing = 500.0
    chosen.folds = chosen.folds or (1 if chosen.quick else FOLDS)
    return chosen


if __name__ == "__main__":
    main()
