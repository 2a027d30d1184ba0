"""The map by its defaults as stars are added: the first of `galaxy_dev_million.npz`.

Every row is a fit of its own, judged by the same held-out stars (`development`). Stages
are seconds of wall time, memory the peak of the fit's process so far.

`--sky` takes another sky, NAME.npz with the truth of test stars (``xyz``, ``av``,
``rho``) and of random places (``field_xyz``, ``field_rho``), and the stars to fit,
NAME_train.parquet. Each size is ingested and fitted by the command line; finished runs
in the output folder are kept, unfinished ones go on. Judged are the extinctions of the
first 20,000 test stars, and the densities at all places.

`--products` makes no fit. It judges W as a tree of rays with the true mean densities of
`galaxy_dev_clean.npz` on their own cells, by rms(truth − tree) / rms(truth − rows), and
times W and its transpose on cells of 20 pc, by the median of five, relative to a pair
of real Fourier transforms of the same torus.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import healpy
import numpy as np
import pyarrow.parquet as pq
import torch
from astropy import units as u
from astropy.coordinates import SkyCoord
from development import commit, one_set, rmse
from development_sets import galaxy
from report import Report, Row, data_folder, parser
from scoring import coverage, read_prediction

import dustmap
from dustmap.functionals import DistanceMarginalizedIntegrals, FixedStep, LineIntegrals
from dustmap.grid import Grid, Torus
from dustmap.projection import projection
from pipelines.base.geometry import unit_vectors
from pipelines.base.table import Table
from pipelines.model.observations import exit_distances
from pipelines.run.folder import read_run

_SIZES, _QUICK = (48_000, 240_000, 1_000_000), (2_000, 4_000)
# Test stars of another sky.
_JUDGED = 20_000
_SKY = partial(galaxy, name="galaxy_dev_million", density=1e-3)


def main() -> None:
    options = arguments()
    report = Report.of("growth", __doc__, options)
    if options.products:
        sizes = options.stars or (_QUICK if options.quick else _SIZES)
        report.tables = {
            "Errors of the tree, by distance": errors(options.data),
            "Products": [
                products(options.data, size, uncertain=uncertain)
                for size in sizes
                for uncertain in (False, True)
            ],
        }
        report.write(options.output)
        return
    rows: list[Row] = []
    stages: list[Row] = []
    for size in options.stars or (_QUICK if options.quick else _SIZES):
        if options.sky:
            for each, found in zip((rows, stages), of_sky(size, options), strict=True):
                each.append(found)
                print(Table.of_rows(each).text(), file=sys.stderr, flush=True)
            continue
        part = _SKY(options.data, first=size)
        if options.quick:
            part = part.first(size, 400)
        run = options.output / f"{size}"
        row, _ = one_set(part, options, run)
        summary = json.loads((run / "run.json").read_text())["summary"]
        rows.append({**row, "grade": summary["grade"]})
        spent = {f"{name} [s]": round(s, 1) for name, s in summary["seconds"].items()}
        memory = summary["peak_memory_bytes"] / 2**30
        stages.append({"stars": size, **spent, "memory [GiB]": round(memory, 2)})
        for each in (rows, stages):
            print(Table.of_rows(each).text(), file=sys.stderr, flush=True)
    report.tables = {f"Held-out stars, {commit()}": rows, "Stages": stages}
    report.write(options.output)


def of_sky(size: int, options: argparse.Namespace) -> tuple[Row, Row]:
    """Ingest, fit and judge the first stars of a sky."""
    sky, run = options.sky, options.output / f"{size}"
    source, table = (options.output / f"{size}{end}.parquet" for end in ("_seen", ""))
    took = math.nan
    if not table.exists():
        stars = pq.ParquetFile(sky.with_name(f"{sky.stem}_train.parquet"))
        with pq.ParquetWriter(source, stars.schema_arrow) as part:
            left = size
            for batch in stars.iter_batches(2**20):
                part.write_batch(batch.slice(0, left))
                if (left := left - len(batch)) <= 0:
                    break
        start = time.perf_counter()
        columns = [
            *("l=l:deg", "b=b:deg", "distance=dist_pc:pc", "extinction=av:mag"),
            *("distance_error=e_dist_pc:pc", "extinction_error=e_av:mag"),
        ]
        given = [part for column in columns for part in ("--map", column)]
        dustmap_run("ingest", source, "-o", table, *given)
        took = time.perf_counter() - start
        source.unlink()
    given = [part for key in options.settings for part in ("--set", key)]
    dustmap_run("fit", table, "-o", run, "--resume", *given)
    summary, plan = read_run(run).summary, read_run(run).plan
    with np.load(sky) as truth:
        xyz, av, places, density = (
            truth[name] for name in ("xyz", "av", "field_xyz", "field_rho")
        )
    judged = {}
    for name, where, true in (
        ("extinction", xyz[:_JUDGED], av[:_JUDGED]),
        ("density", places, density),
    ):
        found = dustmap.predict(run, coordinates_of(where))
        columns = {key: np.asarray(found[key]) for key in found.colnames}
        inside = columns["inside"].astype(bool)
        prediction = read_prediction({k: c[inside] for k, c in columns.items()})
        held = coverage(prediction[f"{name}_interval"], true[inside])
        judged[name] = prediction[name], true[inside], held
    (seen, true, held), (rho, true_rho, held_rho) = judged.values()
    row = {
        "stars": size,
        "cells [pc]": "×".join(f"{grid.spacing[0]:.4g}" for grid in plan.grids),
        "points": sum(grid.size for grid in plan.grids),
        "RMSE [mag]": rmse(seen, true),
        "MAE [mag]": float(np.abs(seen - true).mean()),
        "A in 68%": held[0],
        "A in 95%": held[1],
        "r(ρ)": float(np.corrcoef(rho, true_rho)[0, 1]),
        "ρ in 68%": held_rho[0],
        "ρ in 95%": held_rho[1],
        "grade": summary["grade"],
    }
    spent = {f"{name} [s]": round(s, 1) for name, s in summary["seconds"].items()}
    total = sum(summary["seconds"].values())
    return row, {
        "stars": size,
        "ingest [s]": took,
        **spent,
        "fit [s]": total,
        "fit [µs a star]": 1e6 * total / size,
        "memory [GiB]": summary["peak_memory_bytes"] / 2**30,
    }


def dustmap_run(*given: object) -> None:
    """Run the command line in a process of its own, which must succeed."""
    command = [sys.executable, "-m", "pipelines.cli", *map(str, given)]
    subprocess.run(command, check=True)


def coordinates_of(places: np.ndarray) -> SkyCoord:
    """Return heliocentric Galactic places [pc] as coordinates."""
    distance = np.linalg.norm(places, axis=1)
    l = np.degrees(np.arctan2(places[:, 1], places[:, 0])) * u.deg  # noqa: E741
    b = np.degrees(np.arcsin(places[:, 2] / distance)) * u.deg
    return SkyCoord(l=l, b=b, distance=distance * u.pc, frame="galactic")


def errors(data: Path) -> list[Row]:
    """Judge both forms of W with true densities, for stars in the box of the cells."""
    with np.load(data / "galaxy_dev_clean.npz") as stored:
        column = {name: stored[name] for name in stored.files}
    cells, half = column["density_grid"], column["density_grid_half_size"]
    step = 2 * half / cells.shape
    grid = Grid(
        shape=cells.shape,
        spacing=tuple(step.tolist()),
        origin=tuple((step / 2 - half).tolist()),
    )
    torus = Torus(grid=grid, shape=tuple(n + n % 2 for n in cells.shape))
    padding = [(0, n - m) for n, m in zip(torus.shape, cells.shape, strict=True)]
    field = torch.from_numpy(np.pad(cells.astype(float), padding).ravel())
    distance = column["distance_true"].astype(float)
    vectors = unit_vectors(column["l"], column["b"])
    ends = torch.from_numpy(distance[:, None] * vectors)
    inside = grid.contains(ends)
    distance, truth = distance[inside], column["av_true"][inside].astype(float)
    lines = LineIntegrals(ends[inside], FixedStep(step=float(step.min()) / 4))
    tree, rows = (
        projection(torus, lines, tree=form).matvec(field).numpy()
        for form in (True, False)
    )
    found: list[Row] = []
    for low, high in ((0, 400), (400, 800), (800, 2000), (0, 2000)):
        some = (low <= distance) & (distance < high)
        missed = [rmse(a[some], truth[some]) for a in (tree, rows)]
        off = (tree - rows)[some]
        found.append(
            {
                "stars at [pc]": f"{low} to {high}",
                "total": missed[0] / missed[1],
                "tree − rows, rms [mag]": rmse(off, 0.0),
                "mean [mag]": float(off.mean()),
            }
        )
    return found


def products(data: Path, count: int, *, uncertain: bool) -> Row:
    """Time W and its transpose with the first stars, in float32."""
    with np.load(data / "galaxy_dev_million.npz") as stored:
        keys = ("l", "b", "dist_pc", "e_dist_pc")
        l, b, distance, error = (stored[key][:count].astype(float) for key in keys)  # noqa: E741
    # Stars are in the order in which a fit has them.
    order = healpy.ang2pix(64, l, b, nest=True, lonlat=True).argsort(kind="stable")
    ends = torch.from_numpy(distance[:, None] * unit_vectors(l, b))[order]
    grid = Grid(
        shape=(126, 126, 41), spacing=(20.0,) * 3, origin=(-1250.0, -1250.0, -400.0)
    )
    torus, inside = Torus(grid=grid, shape=(144, 144, 54)), grid.contains(ends)
    ends, spread = ends[inside], torch.from_numpy(error)[order][inside]
    lines = LineIntegrals(ends, FixedStep(step=10.0))
    if uncertain:
        reach = exit_distances(grid, ends)
        lines = DistanceMarginalizedIntegrals(ends, spread, reach, lines.rule)
    start, load = time.perf_counter(), os.getloadavg()[0]
    W = projection(torus, lines, dtype=torch.float32, tree=True)
    made = time.perf_counter() - start
    x, y = torch.randn(torus.size), torch.randn(len(ends))
    field = x.reshape(torus.shape)
    pair = seconds(lambda: torch.fft.irfftn(torch.fft.rfftn(field), s=torus.shape))
    took = seconds(lambda: W.matvec(x)) + seconds(lambda: W.rmatvec(y))
    return {
        "stars": len(ends),
        "distance errors": uncertain,
        "made in [s]": made,
        "entries": W.nonzeros,
        "bytes": W.bytes,
        "pair of transforms [ms]": 1e3 * pair,
        "W and its transpose [ms]": 1e3 * took,
        "ratio": took / pair,
        "threads": torch.get_num_threads(),
        "load": load,
    }


def seconds(action: Callable[[], object]) -> float:
    """Return the median time of five runs after a first one [s]."""
    action()
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=data_folder(), metavar="FOLDER")
    options.add_argument("--sky", type=Path, metavar="NAME.npz", help="another sky")
    options.add_argument("--stars", type=int, nargs="+", metavar="N")
    options.add_argument(
        "--products", action="store_true", help="the tree of rays alone, no fits"
    )
    options.add_argument(
        "--settings", nargs="+", default=[], metavar="KEY=VALUE", help="of the fit"
    )
    # Rivals are compared by development.py alone.
    options.set_defaults(rivals=False)
    return options.parse_args()


if __name__ == "__main__":
    main()
