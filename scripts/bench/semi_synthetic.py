"""A map of a real dust field from made-up stars, against the field itself.

75,000 stars in the decoded Bayestar 2019 map (Green et al. 2019, ApJ 887, 93) with
noisy extinctions; 60,000 are fitted, and the noise-free extinction and the density of
the other 15,000 predicted at their true places. What neighbouring stars alone predict
on the same split stands beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from report import Report, Row, data_folder, parser
from scoring import errors, named, score_inside
from verbs import Fitted, fit_and_predict

from pipelines.catalog.schema import Stars, write_stars
from pipelines.run.baseline import NAME, predict_baseline

FILE = "semi_synthetic_75k.npz"
TRAIN, QUICK_TRAIN, QUICK_TEST = 60_000, 2_000, 500


def read_field(
    path: Path, *, parallax: bool
) -> tuple[Stars, Stars, dict[str, np.ndarray]]:
    """Stars as observed, the same at their true places, and the truth there.

    With ``parallax`` observed distances are those of the noisy parallaxes; else exact.
    """
    with np.load(path) as stored:
        column = {name: stored[name].astype(np.float64) for name in stored.files}
    true = 1e3 * column["dist_kpc"]
    observed, error = true, None
    if parallax:
        observed = 1e3 / column["plx_obs_mas"]
        error = observed * column["plx_sigma_mas"] / column["plx_obs_mas"]
    place = {"l": column["l"], "b": column["b"]}
    stars = Stars(
        **place,
        distance=observed,
        distance_error=error,
        extinction=column["av_obs"],
        extinction_error=column["av_sigma"],
    )
    truth = {
        "extinction": column["av_true"],
        "density": column["rho_true_mag_per_kpc"] / 1e3,
    }
    return stars, Stars(**place, distance=true), truth


def reference_row(
    train: Stars, targets: Stars, true: np.ndarray, generator: torch.Generator
) -> Row:
    """Return errors of the baseline, which predicts no density."""
    found = predict_baseline(train, targets, generator)
    assert found is not None
    return {
        "method": NAME,
        "test stars": len(targets),
        **named(errors(found.kriging, true)),
    }


def settings_of(options: argparse.Namespace) -> list[str]:
    """What the fit is told; the rest is its own choice."""
    chosen = [f"box.spacing={options.spacing:g}", "data.holdout=0"]
    chosen.append(f"inference.seed={options.seed}")
    if options.quick:
        chosen += ["inference.samples=4", "inference.learn=false"]
    return chosen + options.set


def main() -> None:
    options = arguments()
    report = Report.of("semi_synthetic", __doc__, options)
    work = options.output / "work"
    stars, places, truth = read_field(options.data / FILE, parallax=options.parallax)
    order = np.random.default_rng(options.seed).permutation(len(stars))
    train, test = order[:TRAIN], order[TRAIN:]
    if options.quick:
        train, test = train[:QUICK_TRAIN], test[:QUICK_TEST]
    fitted_stars, targets = stars.select(np.sort(train)), places.select(np.sort(test))
    true = {name: values[np.sort(test)] for name, values in truth.items()}
    write_stars(work / "stars.parquet", fitted_stars, overwrite=True)
    write_stars(work / "targets.parquet", targets, overwrite=True)
    fitted = fit_and_predict(
        work, work / "stars.parquet", work / "targets.parquet", settings_of(options)
    )
    scores = score_inside(fitted.columns, true)
    own = {"method": "dustmap", **named(scores), **fitted.facts(), **fitted.fit.row()}
    inside = fitted.columns["inside"].astype(bool)
    beside = reference_row(
        fitted_stars,
        targets.select(inside),
        true["extinction"][inside],
        torch.Generator().manual_seed(options.seed),
    )
    rows = [own, beside]
    for row in rows:
        row["RMSE / dustmap"] = row["RMSE [mag]"] / own["RMSE [mag]"]
    report.tables = {
        "Noise-free extinction and density of the test stars": rows,
        "Where the time went": fitted.seconds(),
    }
    report.notes = notes(fitted, true)
    report.write(options.output, lambda figure: draw(figure, fitted, true))


def notes(fitted: Fitted, true: dict[str, np.ndarray]) -> list[str]:
    """What a reader of the table must know."""
    empty = float(np.mean(true["density"] == 0))
    scatter = float(true["extinction"].std())
    return [
        f"the true extinctions scatter by {scatter:.4g} mag",
        f"the true density is exactly 0 at {empty:.1%} of the test stars: r(ln ρ) is "
        "that of the others, and no interval of a positive density holds a zero",
        *fitted.summary["messages"],
    ]


def draw(figure: Figure, fitted: Fitted, true: dict[str, np.ndarray]) -> None:
    """Predicted against true extinction, and against true density."""
    inside = fitted.columns["inside"].astype(bool)
    for axes, name, unit in zip(
        figure.subplots(1, 2), ("extinction", "density"), ("mag", "mag/pc"), strict=True
    ):
        x, y = true[name][inside], fitted.columns[f"{name}_mean"][inside]
        limit = 1.05 * float(np.quantile(np.concatenate([x, y]), 0.995))
        axes.plot([0, limit], [0, limit], color="0.5", linewidth=0.8)
        axes.plot(x, y, ".", markersize=1.5, alpha=0.3, rasterized=True)
        axes.set(
            xlim=(-0.05 * limit, limit),
            ylim=(-0.05 * limit, limit),
            aspect="equal",
            xlabel=f"true {name} [{unit}]",
            ylabel=f"predicted {name} [{unit}]",
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--spacing", type=float, default=25.0, help="[pc]")
    options.add_argument(
        "--parallax", action="store_true", help="distances by noisy parallaxes"
    )
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    if chosen.quick and chosen.spacing == options.get_default("spacing"):
        chosen.spacing = 250.0
    if not (chosen.data / FILE).is_file():
        options.error(f"{chosen.data} has no {FILE}: name its folder by --data")
    return chosen


if __name__ == "__main__":
    main()
