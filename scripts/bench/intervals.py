"""Intervals and spectra on skies of two other kinds, on real stars and semi-real ones.

Ten skies of the generator beside the data (`sky.py --fine 2`, turbulent, seeds 100 to
109, odd ones with defects), two of `other_sky` (filaments, shells, a bubble; the second
with defects), near_dev, semi_synthetic_75k, ananke_5k, and real sets. Each is fitted by
the defaults, one at a time; what was found stands in one file per set and commit, which
a second run reads. With ``--before COMMIT`` the tables hold both, and their ratios.

Of held-out stars: errors (RMSE, MAE), coverages of 68% and 95% intervals of the true
extinction, in all and by terciles of the predicted std and of predicted extinction over
distance. Of densities: r and coverage at stars, at random places, and of means over
cells of 31 pc (skies with cells). Real sets: intervals of measured extinctions, in all
and by bins of at least 1,000 stars. S(60) and S(120) are the prior's power of ln ρ at
60 and 120 pc [pc³], and their ratio to the truth's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from development import commit, coordinates, fit_set, rmse
from development_sets import SETS, Development
from other_sky import HALF, other_sky
from report import Report, Row, data_folder, parser

import dustmap
from dustmap.inference.scales.band_power import log_spectrum
from dustmap.residual.surveys import SurveyLaw
from pipelines.base.calibration import coverage as z_coverage
from pipelines.base.quantiles import summaries
from pipelines.base.table import Table
from pipelines.catalog.schema import Stars, read_stars
from pipelines.maps.density import cell_means
from pipelines.run.baseline import predict_baseline
from pipelines.run.folder import read_run
from pipelines.run.held_out import HeldOut, measured_columns
from pipelines.run.residual import read_residual
from pipelines.run.surveys import calibrated

TURBULENT = tuple(f"turbulent_{seed}" for seed in range(100, 110))
OTHER = ("other_100", "other_101")
KNOWN = ("near_dev", "semi_synthetic_75k", "ananke_5k")
REAL = ("gaia_ob_3kpc", "stars_av", "hunt_alone", "seven_surveys")
NAMES = (*TURBULENT, *OTHER, *KNOWN, *REAL)
WAVELENGTHS = (60.0, 120.0)
# Width of the cells over which densities are averaged [pc].
_CELL = 31.25
# Fewest stars in a bin of real ones.
_BIN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sky:
    """A true density [mag/pc] on cells of a box of these half sides [pc].

    ``places`` are random points [pc] and their densities.
    """

    density: np.ndarray
    half: np.ndarray
    places: tuple[np.ndarray, np.ndarray]


def main() -> None:
    options = arguments()
    report = Report.of("intervals", __doc__, options)
    found = {}
    for name in options.set or NAMES:
        path = options.output / commit().removeprefix("commit ") / f"{name}.json"
        if not path.exists():
            print(f"intervals: {name}", file=sys.stderr, flush=True)
            row = one_set(name, options)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(row))
            print(Table.of_rows([row]).text(), file=sys.stderr, flush=True)
        found[name] = json.loads(path.read_text())
    report.tables = tables(found)
    if options.before:
        known = {}
        for name in found:
            path = options.output / options.before / f"{name}.json"
            if path.exists():
                known[name] = json.loads(path.read_text())
        report.tables |= {f"{k}, before": t for k, t in tables(known).items()}
        report.tables["Ratios to before"] = ratios(found, known)
    report.write(options.output)


def tables(found: dict[str, Row]) -> dict[str, list[Row]]:
    """The rows of every group of sets; of turbulent skies also means and spreads."""
    given: dict[str, list[Row]] = {}
    for title, names in (
        ("Turbulent skies", TURBULENT),
        ("Skies of filaments, shells and a bubble", OTHER),
        ("Other truths", KNOWN),
        ("Real stars and clusters", REAL),
    ):
        rows = [{"set": name, **found[name]} for name in names if name in found]
        if names is TURBULENT and len(rows) > 1:
            rows += [_over(rows, "mean", np.mean), _over(rows, "spread", _spread)]
        if rows:
            given[title] = rows
    return given


def _spread(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1))


def _over(rows: list[Row], name: str, of) -> Row:
    numbers = [k for k, v in rows[0].items() if isinstance(v, float | int)]
    return {"set": name, **{k: float(of([row[k] for row in rows])) for k in numbers}}


def ratios(found: dict[str, Row], known: dict[str, Row]) -> list[Row]:
    """Errors over those of another commit."""
    names = ("RMSE", "MAE", "density r")
    return [
        {"set": n, **{k: row[k] / known[n][k] for k in names if k in row}}
        for n, row in found.items()
        if n in known
    ]


def one_set(name: str, options: argparse.Namespace) -> Row:
    """Fit, predict, judge."""
    kind, _, seed = name.rpartition("_")
    sky = None
    if kind in ("turbulent", "other"):
        made = turbulent if kind == "turbulent" else other
        part, sky = made(int(seed), options)
    else:
        part = SETS[name](options.data)
    if options.quick:
        part = part.first(2_000, 400)
    run = options.output / "work" / name
    started, load = time.perf_counter(), os.getloadavg()[0]
    fit_set(part, run, options.settings)
    wall = time.perf_counter() - started
    predicted = dustmap.predict(run, coordinates(part.test))
    inside = np.asarray(predicted["inside"], bool)
    columns = {n: np.asarray(predicted[n])[inside] for n in predicted.colnames}
    plan, test = read_run(run).plan, part.test.select(inside)
    residual = read_residual(run)
    power = log_spectrum(plan.build_kernel(), 2 * math.pi / np.array(WAVELENGTHS))
    row: Row = {
        "stars": len(part.train),
        "judged": len(test),
        "cells [pc]": "/".join(f"{max(g.spacing):.3g}" for g in plan.grids),
        "ℓ [pc]": float(np.exp(np.mean(np.log(plan.lengthscale)))),
        "std": plan.std,
        "octaves": " ".join(f"{math.exp(b):.2f}" for b in plan.bend),
    }
    if residual is not None:
        row["α"] = " ".join(f"{w:.2f}" for w in residual.weights.tolist())
    row |= {f"ln S({w:g})": float(p) for w, p in zip(WAVELENGTHS, power)}
    if sky is not None:
        for w, p, true in zip(WAVELENGTHS, power, true_power(sky)):
            row[f"ln S/true ({w:g})"] = float(p - math.log(true))
    if part.truth is None:
        row |= against_observed(columns, part, test, run)
    else:
        truth = {key: values[inside] for key, values in part.truth.items()}
        row |= against_truth(columns, test, truth)
    if sky is not None:
        row |= densities(run, sky)
    return row | {"wall [s]": wall, "load": load}


def against_truth(
    columns: dict[str, np.ndarray], test: Stars, truth: dict[str, np.ndarray]
) -> Row:
    """Of noise-free extinctions and of densities at stars."""
    true, mean = truth["extinction"], columns["extinction_mean"]
    std = columns["extinction_std"]
    held = within(columns, "extinction", true)
    z = (true - mean) / std
    row: Row = {
        "RMSE": rmse(mean, true),
        "MAE": float(np.abs(mean - true).mean()),
        "density r": float(
            np.corrcoef(columns["density_mean"], truth["density"])[0, 1]
        ),
        "A in 68%": float(held[0].mean()),
        "A in 95%": float(held[1].mean()),
        "68% by std": thirds(held[0], std),
        "68% by A/d": thirds(held[0], mean / test.distance),
        "rms z": rmse(z, 0.0),
        "rms z by std": thirds(z**2, std, root=True),
        "rms z by A/d": thirds(z**2, mean / test.distance, root=True),
    }
    held = within(columns, "density", truth["density"])
    row |= {
        "ρ* in 68%": float(held[0].mean()),
        "ρ* in 95%": float(held[1].mean()),
        "ρ* by A/d": thirds(held[0], mean / test.distance),
    }
    return row


def densities(run: Path, sky: Sky) -> Row:
    """Of densities at random places, and of means over cells."""
    row: Row = {}
    points, density = sky.places
    found = dustmap.predict(run, coordinates(at(points)))
    inside = np.asarray(found["inside"], bool)
    columns = {name: np.asarray(found[name])[inside] for name in found.colnames}
    held = within(columns, "density", density[inside])
    row["ρ in 68%"], row["ρ in 95%"] = (float(h.mean()) for h in held)
    step = 2 * sky.half / sky.density.shape
    parts = np.round(_CELL / step).astype(int)
    counts = np.array(sky.density.shape) // parts
    kept = sky.density[tuple(slice(0, n) for n in counts * parts)]
    shape = [n for pair in zip(counts, parts) for n in pair]
    true, width = kept.reshape(shape).mean(axis=(1, 3, 5)).ravel(), step * parts
    axes = [w * (np.arange(n) + 0.5) - h for w, n, h in zip(width, counts, sky.half)]
    centres = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    fitted = read_run(run)
    some = fitted.box.contains(centres)
    moments = cell_means(fitted, torch.from_numpy(centres[some]), width.tolist())
    said = {f"density_{n}": np.asarray(v) for n, v in summaries(moments).items()}
    held, mean = within(said, "density", true[some]), said["density_mean"]
    row["cells r"] = float(np.corrcoef(mean, true[some])[0, 1])
    row["cells in 68%"], row["cells in 95%"] = (float(h.mean()) for h in held)
    row["cells by ρ"] = thirds(held[0], mean)
    return row


def against_observed(
    columns: dict[str, np.ndarray], part: Development, test: Stars, run: Path
) -> Row:
    """Of extinctions with their noise, by the law of the run, beside kriging."""
    fitted, residual = read_run(run), read_residual(run)
    laws = [SurveyLaw(**law) for law in fitted.summary["surveys"]]
    test = calibrated(test, laws, read_stars(run / "stars.parquet"))
    assert test.extinction is not None
    kriged = predict_baseline(part.train, test, torch.Generator().manual_seed(1))
    assert kriged is not None
    mean = columns["extinction_mean"]
    found = measured_columns(residual, test, fitted.plan, columns)
    held = HeldOut.of(test, fitted.plan, columns | found)
    z = held.z_scores(positive=fitted.plan.is_lognormal)
    at68, at95 = z_coverage(z, (0.68, 0.95))
    row: Row = {
        "RMSE": rmse(mean, test.extinction),
        "MAE": float(np.abs(mean - test.extinction).mean()),
        "RMSE kriging": rmse(kriged.kriging, test.extinction),
        "MAE kriging": float(np.abs(kriged.kriging - test.extinction).mean()),
    }
    if "measured_mean" in found:
        row["RMSE measured"] = rmse(found["measured_mean"], held.observed)
        error = found["measured_p50"] - held.observed
        row["MAE measured"] = float(np.abs(error).mean())
    row |= {"A in 68%": at68.held, "A in 95%": at95.held}
    for title, values in (
        ("distance", test.distance),
        ("A", mean),
        ("std", columns["extinction_std"]),
    ):
        count = max(len(z) // _BIN, 1)
        parts = np.array_split(z[np.argsort(values, kind="stable")], count)
        row[f"by {title}"] = " ".join(
            f"{np.mean(np.abs(p) <= 1):.3f}/{np.mean(np.abs(p) <= 1.96):.3f}"
            for p in parts
        )
    return row


def within(
    columns: dict[str, np.ndarray], name: str, true: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether 68% and 95% intervals hold the truth."""
    ends = (("p16", "p84"), ("p2_5", "p97_5"))
    one, other = (
        (columns[f"{name}_{low}"] <= true) & (true <= columns[f"{name}_{high}"])
        for low, high in ends
    )
    return one, other


def thirds(held: np.ndarray, by: np.ndarray, *, root: bool = False) -> str:
    """Means in terciles, from the least value to the largest."""
    means = [p.mean() for p in np.array_split(held[np.argsort(by, kind="stable")], 3)]
    return " / ".join(f"{math.sqrt(m) if root else m:.3f}" for m in means)


def true_power(sky: Sky) -> list[float]:
    """Power spectrum of ln ρ at the wavelengths [pc³], by half octaves.

    ln ρ loses its mean at every height and is windowed by Hann's function.
    """
    field = np.log(sky.density)
    field -= field.mean(axis=(0, 1), keepdims=True)
    steps, shape = 2 * sky.half / field.shape, field.shape
    along = [[-1 if i == axis else 1 for i in range(3)] for axis in range(3)]
    for count, where in zip(shape, along):
        field *= np.hanning(count + 2)[1:-1].astype(np.float32).reshape(where)
    power = np.abs(np.fft.rfftn(field)) ** 2 * np.prod(steps)
    # The mean of Hann's squared window is 3/8.
    power /= (3 / 8) ** 3 * field.size
    waves = [np.fft.fftfreq(n, h) for n, h in zip(shape[:2], steps)]
    waves.append(np.fft.rfftfreq(shape[2], steps[2]))
    square = sum(w.reshape(where) ** 2 for w, where in zip(waves, along))
    found = []
    for wavelength in WAVELENGTHS:
        scaled = square * wavelength**2
        some = (scaled > 2**-0.5) & (scaled < 2**0.5)
        found.append(float(power[some].mean()))
    return found


def turbulent(seed: int, options: argparse.Namespace) -> tuple[Development, Sky]:
    """A sky of `sky.py` beside the data, made once in ``work``."""
    path, defects = options.skies / f"s{seed}.npz", seed % 2 == 1
    if not Path(f"{path}"[:-4] + "_test.csv").exists():
        command = [sys.executable, options.data / "sky.py", path, "--fine", "2"]
        command += ["--seed", str(seed), *(["--defects"] if defects else [])]
        subprocess.run(command, check=True)
    with np.load(path) as stored:
        sky = dict(stored)
    train = np.loadtxt(f"{path}"[:-4] + "_train.csv", delimiter=",", skiprows=1).T
    count = len(train[0])
    part = Development(
        train=Stars(
            l=train[0],
            b=train[1],
            distance=train[2],
            distance_error=train[3] if defects else None,
            extinction=train[4],
            extinction_error=train[5],
        ),
        test=at(sky["xyz"][count:]),
        truth={"extinction": sky["av"][count:], "density": sky["rho"][count:]},
    )
    half = np.array([1250.0, 1250.0, 400.0])
    places = sky["field_xyz"], sky["field_rho"]
    return part, Sky(density=sky["rho_grid"], half=half, places=places)


def other(seed: int, options: argparse.Namespace) -> tuple[Development, Sky]:
    """A sky of filaments, shells and a bubble; the last fifth of its stars is held."""
    defects = seed % 2 == 1
    sky = other_sky(seed, defects=defects)
    true, count = at(sky.position), len(sky.seen) * 4 // 5
    observed = replace(
        true,
        distance=sky.distance,
        distance_error=sky.distance_error if defects else None,
        extinction=sky.seen,
        extinction_error=sky.error,
    )
    part = Development(
        train=observed.select(slice(0, count)),
        test=true.select(slice(count, None)),
        truth={"extinction": sky.extinction[count:], "density": sky.density[count:]},
    )
    random = np.random.default_rng(options.seed)
    points = random.uniform(-1, 1, (20_000, 3)) * HALF * (0.7, 0.7, 0.5)
    places = points, sky.density_at(points)
    return part, Sky(density=sky.cells, half=HALF, places=places)


def at(points: np.ndarray) -> Stars:
    """Places [pc] as stars."""
    distance = np.linalg.norm(points, axis=1)
    return Stars(
        l=np.degrees(np.arctan2(points[:, 1], points[:, 0])) % 360,
        b=np.degrees(np.arcsin(points[:, 2] / distance)),
        distance=distance,
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--skies", type=Path, help="of turbulent skies, made if none")
    options.add_argument("--set", action="append", choices=NAMES)
    options.add_argument("--before", metavar="COMMIT", help="to compare with")
    options.add_argument(
        "--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of the fit"
    )
    found = options.parse_args()
    found.skies = found.skies or found.output / "work"
    return found


if __name__ == "__main__":
    main()
