"""`dustmap regress` on tables of several sizes: error, log density and time.

Real tables (kin40k by its first split; the observed US precipitation of April 1948;
daily US precipitation of January 2010; monthly precipitation in Colorado, in longitude,
latitude and time; arrival delays of flights), simulated elevations along roads of
`scripts/paper/road3d.py`, the simulated half of Heaton et al. 2019 (JABES 24, 398; the
hidden places are judged by the noisy truth), and a rough raster of 1000 × 1000 points
whose hidden rows are a fifth in discs. RMSE, MAE and NLL (mean negative log density per
row) of held-out rows, in units of the standard deviation of the rows to fit; CRPS of
normal distributions over the MAE. Times are those of the whole command, its start
included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from measured import dustmap
from report import Report, Row, data_folder, parser
from road3d import ROWS, simulate_roads
from scipy.stats import norm

from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12
from dustmap.whitening import TorusWhitening
from pipelines.base.progress import say
from pipelines.regress.methods import METHODS

Columns = dict[str, np.ndarray]
# Points along each side of the lattice on which the simulated relief is drawn.
_LATTICE = 4_096


def kin40k(data: Path, rows: int | None) -> Columns:
    """Forward kinematics of an arm, eight inputs; ``test`` marks the first split."""
    table = np.loadtxt(data / "kin40k.csv.gz", delimiter=",")
    test = np.loadtxt(data / "kin40k_test_mask.csv.gz", delimiter=",")[:, 0]
    inputs = {f"x{i}": values for i, values in enumerate(table[:, :-1].T)}
    columns = {**inputs, "y": table[:, -1], "test": test}
    return {name: values[:rows] for name, values in columns.items()}


def april_1948(data: Path, rows: int | None) -> Columns:
    """Precipitation anomalies at the stations that observed."""
    table = _named(data / "us_precip_april1948.csv.gz")
    seen = table["infill"] == 1
    names = {"lon": "lon", "lat": "lat", "y": "anomaly"}
    return {new: table[old][seen][:rows] for new, old in names.items()}


def january_2010(data: Path, rows: int | None) -> Columns:
    """Daily precipitation, three quarters of it zero."""
    table = _named(data / "precip_daily_jan2010.csv.gz")
    names = {"lon": "lon", "lat": "lat", "time": "time", "y": "precipitation"}
    return {new: table[old][:rows] for new, old in names.items()}


def roads(rows: int) -> Columns:
    """Elevations along simulated roads in random order."""
    made = simulate_roads(rows, _LATTICE, seed=1)
    order = np.random.RandomState(42).permutation(rows)
    first, second = made.at.numpy()[order].T
    return {"lon": first, "lat": second, "y": made.height.numpy()[order]}


def colorado(data: Path, rows: int | None) -> Columns:
    """Monthly precipitation of stations [cm]."""
    table = _named(data / "colorado_monthly_precip.csv.gz")
    time = table["year"] + (table["month"] - 0.5) / 12
    columns = {"lon": table["lon"], "lat": table["lat"], "time": time}
    return {n: v[:rows] for n, v in {**columns, "y": table["ppt_cm"]}.items()}


def flights(data: Path, rows: int | None) -> Columns:
    """Eight inputs of a flight and its delay [min]; rows with gaps are left out."""
    table = _named(data / "pnw_flights_2014.csv.gz")
    assert table.dtype.names is not None
    names = {name: name for name in table.dtype.names} | {"arr_delay": "y"}
    return {new: table[old][:rows] for old, new in names.items()}


def heaton(data: Path, rows: int | None) -> Columns:
    """Temperatures on 500 × 300 points, hidden in the shapes of clouds."""
    table = _named(data / "heaton_simulated.csv.gz")
    table = table[np.isfinite(table["TrueTemp"])]
    table = table if rows is None else table[:: len(table) // rows]
    hidden = np.isnan(table["MaskTemp"])
    names = {"lon": "Lon", "lat": "Lat", "y": "TrueTemp"}
    return {n: table[old] for n, old in names.items()} | {"test": hidden.astype(float)}


def raster(side: int) -> Columns:
    """A field of exponential covariance, with noise, whose discs are hidden."""
    grid = Grid(shape=(side, side), spacing=(1.0, 1.0), origin=(0.0, 0.0))
    torus = Torus(grid=grid, shape=(2 * side, 2 * side))
    generator = torch.Generator().manual_seed(1)
    field, _ = TorusWhitening(Matern12(lengthscale=side / 8), torus).prior_draw(
        generator
    )
    field = field.reshape(torus.shape)[:side, :side].numpy()
    rng = np.random.default_rng(1)
    x, y = np.meshgrid(*2 * [np.arange(float(side))], indexing="ij")
    hidden = np.zeros(x.shape, dtype=bool)
    while hidden.mean() < 0.2:
        at, radius = rng.uniform(0, side, 2), side * rng.uniform(0.005, 0.05)
        hidden |= np.hypot(x - at[0], y - at[1]) < radius
    value = field + 0.1 * rng.standard_normal(field.shape)
    columns = {"x": x, "y0": y, "y": value, "test": hidden.astype(float)}
    return {name: column.ravel() for name, column in columns.items()}


def _named(path: Path) -> np.ndarray:
    return np.genfromtxt(path, delimiter=",", names=True)


def cases(data: Path, *, quick: bool) -> dict[str, Callable[[], Columns]]:
    """Tables by name, made when they are asked for."""
    few = 400 if quick else None
    return {
        "kin40k": lambda: kin40k(data, few),
        "kin40k, 16,000 rows": lambda: kin40k(data, few or 16_000),
        "April 1948": lambda: april_1948(data, few),
        "January 2010": lambda: january_2010(data, few),
        "roads, 16,000 rows": lambda: roads(few or 16_000),
        "roads": lambda: roads(few or ROWS),
        "roads, 1,000,000 rows": lambda: roads(few or 1_000_000),
        "Colorado": lambda: colorado(data, few),
        "flights": lambda: flights(data, few),
        "Heaton et al., simulated": lambda: heaton(data, few),
        "raster, 1,000,000 rows": lambda: raster(30 if quick else 1_000),
    }


def main() -> None:
    options = arguments()
    report = Report.of("regress", __doc__, options)
    made = cases(options.data, quick=options.quick)
    rows = []
    for name in options.case or made:
        for method in options.method or ["auto"]:
            rows.append(measured(name, made[name](), method, options))
            say(str(rows[-1]))
    report.tables = {"Held-out rows": rows}
    report.write(options.output)


def measured(
    name: str, columns: Columns, method: str, options: argparse.Namespace
) -> Row:
    """One run of the command."""
    work = options.output / "work"
    table, run = work / "table.parquet", work / "run"
    pq.write_table(pa.table(columns), table)
    words = ["regress", table, "--target", "y", "--method", method, "-o", run]
    words += ["--split-column", "test"] if "test" in columns else []
    words += ["--likelihood", options.likelihood, "--overwrite"]
    taken = dustmap(words, work / "regress.log")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    scores = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    unit = summary["scaling"]["target_scale"]
    predicted = pq.read_table(run / "predictions.parquet")
    truth, mean, std = (predicted[n].to_numpy() for n in ("truth", "mean", "std"))
    return {
        "table": name,
        "rows": summary["rows"]["fitted"],
        "inputs": len(summary["inputs"]),
        "method": summary["method"],
        "asked": method,
        "RMSE": scores["rmse"] / unit,
        "MAE": scores["mae"] / unit,
        "NLL": scores["nll"] - float(np.log(unit)),
        "CRPS / MAE": crps(truth, mean, std) / scores["mae"],
        "in 68%": scores["coverage_68"],
        "in 95%": scores["coverage_95"],
        **taken.row(),
        "converged": "yes" if summary["converged"] else "no",
    }


def crps(truth: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Mean continuous ranked probability score of normals (Gneiting & Raftery 2007)."""
    z = (truth - mean) / std
    score = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - np.pi**-0.5
    return float(np.mean(std * score))


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--case", action="append", metavar="NAME", help="a table")
    options.add_argument(
        "--method",
        action="append",
        choices=("auto", *METHODS),
        help="auto unless given",
    )
    options.add_argument("--likelihood", default="gaussian")
    chosen = options.parse_args()
    known = cases(chosen.data, quick=chosen.quick)
    absent = [name for name in chosen.case or () if name not in known]
    if absent:
        options.error(f"there is no table {absent[0]!r}: choose of {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    main()
