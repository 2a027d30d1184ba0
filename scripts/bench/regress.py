"""`dustmap regress` on tables of several sizes: error, log density and time.

Real tables (kin40k by its first split; the observed US precipitation of April 1948;
daily US precipitation of January 2010) and simulated elevations along roads of
`scripts/paper/road3d.py`. RMSE and NLL (mean negative log density per row) of held-out
rows, in units of the standard deviation of the rows to fit. Times are those of the
whole command, its start included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from report import Report, Row, data_folder, parser
from road3d_data import ROWS, simulate_roads
from verbs import dustmap

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
    return {
        "table": name,
        "rows": summary["rows"]["fitted"],
        "inputs": len(summary["inputs"]),
        "method": summary["method"],
        "asked": method,
        "RMSE": scores["rmse"] / unit,
        "NLL": scores["nll"] - float(np.log(unit)),
        "in 68%": scores["coverage_68"],
        "in 95%": scores["coverage_95"],
        **taken.row(),
        "converged": "yes" if summary["converged"] else "no",
    }


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
