"""The map by its defaults on the development sets, beside what needs no map.

Every set is split once; `dustmap.fit` sees the training rows with the settings that a
user has to give, and predicts the others. The baseline is `pipelines.run.kriged` from
the same training rows. Where the truth is known, noise-free extinctions and densities
at the true places are judged; else observed extinctions with all their noise. All
figures are of held-out stars inside the box.

Coverages are of the central intervals p16–p84 and p2.5–p97.5: of the truth, or of
observations by the run's law of measurements, whose tails are shares of observations
beyond p97.5 and p2.5. Log scores are mean log densities [ln(1/mag)]: of the truth that
of two half normals which meet at p50 with deviations p50 − p16 and p84 − p50; of an
observation that of the run's law.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from astropy import units as u
from astropy.coordinates import SkyCoord
from development_sets import SETS, Development
from report import Report, Row, data_folder, parser
from scipy.stats import norm
from scoring import WIDTHS, correlation, coverage, read_prediction
from sklearn.ensemble import HistGradientBoostingRegressor

import dustmap
from dustmap.functionals import PointValues
from dustmap.residual.field import ResidualField
from dustmap.residual.predictive import Measured, learn_law
from dustmap.residual.surveys import SurveyLaw
from pipelines.base.calibration import coverage as z_coverage
from pipelines.base.quantiles import summaries
from pipelines.base.table import Table
from pipelines.catalog.schema import Stars, read_stars
from pipelines.config import FitConfig
from pipelines.model.plan import Plan
from pipelines.run.baseline import Baseline
from pipelines.run.folder import read_run
from pipelines.run.held_out import HeldOut, measured_columns
from pipelines.run.kriged import predict_baseline
from pipelines.run.residual import read_residual
from pipelines.run.surveys import calibrated

# Stars of a smoke run, to fit and to predict, and its settings.
_QUICK = 2000, 400
_QUICK_SETTINGS = ("inference.samples=4", "inference.learn=false", "box.spacing=100")

# Bounds of distances [pc] between which cells are judged.
_CELL_SHELLS = 0.0, 300.0, 600.0, 900.0, 1200.0


def main() -> None:
    options = arguments()
    report = Report.of("development", __doc__, options)
    rows: list[Row] = []
    shells: list[Row] = []
    cells: list[Row] = []
    for name in options.set or SETS:
        print(f"development: {name}", file=sys.stderr, flush=True)
        part = SETS[name](options.data)
        if options.within is not None:
            part = part.within(options.within)
        if options.quick:
            part = part.first(*_QUICK)
        row, apart = one_set(part, options, options.output / name)
        rows.append({"set": name, **row})
        shells += [{"set": name, **shell} for shell in apart]
        if part.cells is not None:
            run = options.output / name
            cells += [{"set": name, **each} for each in in_cells(*part.cells, run)]
            print(Table.of_rows(cells).text(), file=sys.stderr, flush=True)
        print(Table.of_rows([*rows[-1:], *apart]).text(), file=sys.stderr, flush=True)
    report.tables = {f"Held-out stars, {commit()}": rows}
    if shells:
        report.tables["By distance"] = shells
    if cells:
        report.tables["Mean densities in cells, by distance of the cells"] = cells
    report.write(options.output)


def one_set(
    part: Development, options: argparse.Namespace, run: Path
) -> tuple[Row, list[Row]]:
    """Fit, predict, judge: all stars, and those of the set's shells of distance."""
    load, clocks = os.getloadavg()[0], (time.perf_counter(), time.process_time())
    quick = _QUICK_SETTINGS if options.quick else ()
    train = part.train
    fit_set(part, run, [*quick, *options.settings])
    wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
    predicted = dustmap.predict(run, coordinates(part.test))
    columns = {name: np.asarray(predicted[name]) for name in predicted.colnames}
    inside = columns["inside"].astype(bool)
    columns = {name: column[inside] for name, column in columns.items()}
    fitted, residual = read_run(run), read_residual(run)
    plan, test = fitted.plan, part.test.select(inside)
    laws = [SurveyLaw(**law) for law in fitted.summary["surveys"]]
    test = calibrated(test, laws, read_stars(run / "stars.parquet"))
    generator = torch.Generator().manual_seed(options.seed)
    others = predict_baseline(train, test, generator)
    assert others is not None
    said = {**columns, "by kriging": others.kriging}
    truth = {name: values[inside] for name, values in (part.truth or {}).items()}
    bounds = [0.0, *part.shells, np.inf]
    shells = [
        {
            "shell [pc]": f"{low:g} to {high:g}",
            **judge(said, truth, test, plan, residual, within),
        }
        for low, high in itertools.pairwise(bounds)
        for within in [(low <= test.distance) & (test.distance < high)]
    ]
    row = {
        "stars": len(train),
        "judged": len(test),
        "outside": int((~inside).sum()),
        "spacing [pc]": "×".join(f"{h:.4g}" for h in plan.grid.spacing),
        "levels": len(plan.tori),
        **judge(said, truth, test, plan, residual, np.ones(len(test), dtype=bool)),
        "tails": "none" if residual is None else residual.tails,
        "wall [s]": wall,
        "CPU [s]": cpu,
        "load": load,
    }
    if options.rivals and not truth:
        row |= rivals(train, test, others, generator)
    return row, shells if part.shells else []


def fit_set(part: Development, run: Path, chosen: Sequence[str]) -> None:
    """Fit a set's stars with its own settings, then those ``chosen`` (KEY=VALUE)."""
    train = part.train
    assert train.extinction is not None
    dustmap.fit(
        coordinates(train),
        train.extinction,
        train.extinction_error,
        distance_error=train.distance_error,
        survey=train.survey,
        output=run,
        settings=settings([*part.settings, *chosen]),
        overwrite=True,
    )


def rivals(
    train: Stars,
    test: Stars,
    kriged: Baseline,
    generator: torch.Generator,
) -> Row:
    """Log scores of what needs no map, each with a law of its own from unseen stars.

    Kriging, gradient boosting of (l, b, distance), and their weighted mean with the
    least absolute error of as many validation stars as a fit has.
    """
    parts = train.split(FitConfig(), generator, train.places())
    some = train.select(parts.validation)
    some = some.select(np.argsort(some.pixels()))
    assert test.extinction is not None
    known = train.select(np.concatenate([parts.train, parts.test]))
    again = predict_baseline(known, some, generator)
    assert again is not None
    boosted = HistGradientBoostingRegressor(random_state=0, max_iter=400)
    boosted.fit(places(known), known.extinction)
    row: Row = {}
    shares = np.linspace(0, 1, 21)
    said = {
        "kriging": (again.kriging, kriged.kriging),
        "boosting": tuple(boosted.predict(places(stars)) for stars in (some, test)),
    }
    error = [
        np.abs(w * said["kriging"][0] + (1 - w) * said["boosting"][0] - some.extinction)
        for w in shares
    ]
    best = shares[int(np.argmin(np.mean(error, axis=1)))]
    said["their stack"] = tuple(
        best * one + (1 - best) * other for one, other in zip(*said.values())
    )
    for name, (seen, predicted) in said.items():
        law = learn_law(some.extinction - seen, measured(some, seen, again.kriging_std))
        rows = measured(test, predicted, kriged.kriging_std)
        expected = predicted + law.mean(rows)
        row[f"RMSE measured by {name}"] = rmse(expected, test.extinction)
        score = law.log_density(test.extinction - predicted, rows)
        row[f"log score {name}"] = float(score.mean())
    return row


def measured(stars: Stars, predicted: np.ndarray, std: np.ndarray) -> Measured:
    """What a law of predictions depends on, with kriging's standard deviations."""
    return Measured(
        std=np.hypot(std, np.sqrt(stars.variance())),
        extinction=predicted,
        distance_std=stars.distance_std,
        distance=stars.distance,
    )


def places(stars: Stars) -> np.ndarray:
    """Inputs of gradient boosting."""
    return np.column_stack([stars.l, stars.b, stars.distance])


def judge(
    columns: dict[str, np.ndarray],
    truth: dict[str, np.ndarray],
    test: Stars,
    plan: Plan,
    residual: ResidualField | None,
    some: np.ndarray,
) -> Row:
    """The map and the baseline at some of the stars."""
    columns = {name: column[some] for name, column in columns.items()}
    test, true = test.select(some), test.extinction
    if truth:
        truth = {name: values[some] for name, values in truth.items()}
        judged, true = against_truth(columns, truth, test.distance), truth["extinction"]
    else:
        judged = against_observed(columns, test, plan, residual)
    assert true is not None
    said = {"map": columns["extinction_mean"], "kriging": columns["by kriging"]}
    error = {name: rmse(values, true) for name, values in said.items()}
    off = {name: np.abs(values - true) for name, values in said.items()}
    return {
        **{f"RMSE {name}": value for name, value in error.items()},
        "map / kriging": error["map"] / error["kriging"],
        **{f"MAE {name}": float(values.mean()) for name, values in off.items()},
        **{f"median {name}": float(np.median(v)) for name, v in off.items()},
        **judged,
    }


def in_cells(centres: np.ndarray, true: np.ndarray, run: Path) -> list[Row]:
    """Judge mean densities in cells by distance: those of the map over true masses."""
    distance = np.linalg.norm(centres, axis=1)
    widths = [float(np.diff(np.unique(axis)).min()) for axis in centres.T]
    in_run = read_run(run).posterior.over_cells(widths)
    found = in_run.moments(PointValues(torch.from_numpy(centres)), rows=2**18)
    said = {name: np.asarray(values) for name, values in summaries(found).items()}
    rows: list[Row] = []
    for low, high in itertools.pairwise(_CELL_SHELLS):
        some = (low <= distance) & (distance < high)
        part, rho = {name: values[some] for name, values in said.items()}, true[some]
        row: Row = {"cells at [pc]": f"{low:g} to {high:g}", "cells": int(some.sum())}
        row["mass / true"] = float(part["mean"].sum() / rho.sum())
        row["r"] = float(np.corrcoef(part["mean"], rho)[0, 1])
        row["RMSE / mean"] = rmse(part["mean"], rho) / float(rho.mean())
        for share, ends in (("68%", ("p16", "p84")), ("95%", ("p2_5", "p97_5"))):
            held = (part[ends[0]] <= rho) & (rho <= part[ends[1]])
            row[f"ρ in {share}"] = float(held.mean())
        row["median std/mean"] = float(np.median(part["std"] / part["mean"]))
        row["median ln(p50/ρ)"] = float(np.median(np.log(part["p50"] / rho)))
        rows.append(row)
    return rows


def coordinates(stars: Stars) -> SkyCoord:
    """Of the stars, with distances."""
    return SkyCoord(
        l=stars.l * u.deg,
        b=stars.b * u.deg,
        distance=stars.distance * u.pc,
        frame="galactic",
    )


def settings(pairs: list[str]) -> dict[str, object]:
    """``KEY=VALUE`` with values as TOML has them, or plain words."""
    found: dict[str, object] = {}
    for key, _, value in (pair.partition("=") for pair in pairs):
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def against_truth(
    columns: dict[str, np.ndarray], truth: dict[str, np.ndarray], distance: np.ndarray
) -> Row:
    """Of noise-free extinction and density."""
    said = read_prediction(columns)
    row: Row = {"density r": correlation(said["density"], truth["density"])}
    if "extinction_interval" not in said:
        return row
    interval, true = said["extinction_interval"], truth["extinction"]
    row["A in 68%"], row["A in 95%"] = coverage(interval, true)
    held = (interval[0] <= true) & (true <= interval[1])
    row["by thirds of distance"] = by_parts(held, distance)
    row["ρ in 68%"] = coverage(said["density_interval"], truth["density"])[0]
    quantiles = (columns[f"extinction_{name}"] for name in ("p16", "p50", "p84"))
    row["log score"] = float(half_normals(true, *quantiles).mean())
    z = (true - columns["extinction_mean"]) / columns["extinction_std"]
    row["rms z"] = rmse(z, 0.0)
    both = (columns["density_p50"] > 0) & (truth["density"] > 0)
    ratio = columns["density_p50"][both] / truth["density"][both]
    row["median ln(p50/ρ)"] = float(np.median(np.log(ratio)))
    return row


def against_observed(
    columns: dict[str, np.ndarray],
    test: Stars,
    plan: Plan,
    residual: ResidualField | None,
) -> Row:
    """Of extinctions with their noise, by the law of the run."""
    assert test.extinction is not None
    if np.isnan(columns["extinction_std"]).all():
        return {}
    found = measured_columns(residual, test, plan, columns)
    held = HeldOut.of(test, plan, columns | found)
    z = held.z_scores(positive=plan.is_lognormal)
    at68, at95 = z_coverage(z, (0.68, 0.95))
    within = np.abs(z) <= WIDTHS[0]
    score = norm.logpdf(
        held.residual, scale=np.hypot(columns["extinction_std"], held.noise)
    )
    if residual is not None and residual.law is not None:
        score = residual.law.log_density(held.residual, held.measured)
    row: Row = {"A in 68%": at68.held, "A in 95%": at95.held}
    row["above p97.5"] = float(np.mean(z > WIDTHS[1]))
    row["below p2.5"] = float(np.mean(z < -WIDTHS[1]))
    if "measured_mean" in found:
        # The mean has the least RMSE, the median the least MAE.
        row["RMSE measured"] = rmse(found["measured_mean"], held.observed)
        error = found["measured_p50"] - held.observed
        row["MAE measured"] = float(np.abs(error).mean())
    for name, value, count in (
        ("distance", test.distance, 6),
        ("extinction", columns["extinction_mean"], 4),
        ("relative distance error", test.distance_std / test.distance, 4),
    ):
        row[f"68% by {name}"] = by_parts(within, value, count)
    return {**row, "log score": float(score.mean())}


def by_parts(held: np.ndarray, value: np.ndarray, count: int = 3) -> str:
    """Fractions in parts of equal number, from the least value to the largest."""
    parts = np.array_split(held[np.argsort(value, kind="stable")], count)
    return " / ".join(f"{part.mean():.3f}" for part in parts)


def half_normals(
    true: np.ndarray, low: np.ndarray, middle: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Log density of two half normals that meet at ``middle``."""
    below, above = middle - low, high - middle
    z = (true - middle) / np.where(true < middle, below, above)
    return -0.5 * z**2 - np.log((below + above) / 2) - 0.5 * np.log(2 * np.pi)


def rmse(predicted: np.ndarray, true: np.ndarray | float) -> float:
    """Root mean square error."""
    return float(np.sqrt(np.mean((predicted - true) ** 2)))


def commit() -> str:
    """The checkout's commit, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    folder = Path(__file__).parent
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    return f"commit {done.stdout.strip()}" if not done.returncode else "no checkout"


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--set", action="append", choices=list(SETS))
    options.add_argument(
        "--within", type=float, metavar="PC", help="leave out stars further away"
    )
    options.add_argument(
        "--rivals", action="store_true", help="log scores of others, of real stars"
    )
    options.add_argument(
        "--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of the fit"
    )
    return options.parse_args()


if __name__ == "__main__":
    main()
