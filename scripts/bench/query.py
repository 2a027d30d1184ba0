"""Questions to a map: a million coordinates, a large map, and how true answers are.

Each question is asked in a process of its own, with what it took beyond its imports:
time, peak memory, and the bytes that it read by system calls. The map of 2 GB is noise,
which no codec makes much smaller. Against the run itself, answers of the map store are
compared at random places in the box with those of `dustmap predict`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord
from measured import dustmap
from query_tasks import TASKS
from report import Report, parser

from pipelines.base.geometry import Box
from pipelines.base.table import Row
from pipelines.catalog.schema import Stars
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves
from pipelines.formats.zarr import write_zarr
from pipelines.query import open_map
from pipelines.run.folder import read_run
from pipelines.run.predict import predict_columns

_HERE = Path(__file__).resolve().parent
# Grid points per axis, nside, distances: 2.4 GB of float32, 2.1 GB on the disk.
_LARGE = ((512, 512, 288), 128, 150)
_SMALL = ((40, 40, 20), 16, 20)


def main() -> None:
    options = arguments()
    report = Report.of("query", __doc__, options)
    work = options.output / "work"
    run, store = fitted_map(options, work)
    large = work / "large.zarr"
    if not large.exists():
        write_noise(large, _SMALL if options.quick else _LARGE, options.seed)
    asked = [("of a fit", store, name, options.count) for name in TASKS]
    asked += [("of noise", large, name, 10) for name in ("extinction", "density")]
    asked += [("of noise", large, "extinction", options.count)]
    rows = [
        {"map": of, "coordinates": count, **measured(path, name, count, options.seed)}
        for of, path, name, count in asked
    ]
    columns = against_run(run, store, options.targets, options.seed)
    report.tables = {
        "What a question takes": rows,
        "Map store against its run": scores(columns),
    }
    report.notes = [
        f"{of}: {size(path) / 1e9:.4g} GB in {path.name}"
        for of, path in (("of a fit", store), ("of noise", large))
    ]
    report.write(options.output)


def fitted_map(options: argparse.Namespace, work: Path) -> tuple[Path, Path]:
    """The run that is given, or one of a mock, and its map store."""
    run = options.run
    if run is None:
        run = work / "run"
        mock = work / "mock.parquet"
        galaxy = ["--stars", str(options.stars), "--seed", str(options.seed)]
        chosen = [f"box.spacing={options.spacing}", "inference.samples=16"]
        for axis, half in (("x", 2000), ("y", 2000), ("z", 1000)):
            galaxy += ["--set", f"truth.half_{axis}={half}"]
            chosen.append(f"box.{axis}=[{-half},{half}]")
        if options.quick:
            galaxy += ["--set", "truth.spacing=75"]
        dustmap(["simulate", "-o", mock, "--overwrite", *galaxy], work / "simulate.log")
        words = [word for pair in chosen for word in ("--set", pair)]
        dustmap(["fit", mock, "-o", run, *words], work / "fit.log")
    store = work / "map.zarr"
    if not store.exists():
        dustmap(["export", run, "--zarr", store], work / "export.log")
    return run, store


def write_noise(path: Path, sizes: tuple[tuple[int, ...], int, int], seed: int) -> None:
    """A map store of positive random numbers that fills the given sizes."""
    rng = np.random.default_rng(seed)
    shape, nside, count = sizes
    x, y, z = (10.0 * (np.arange(n) - n // 2) for n in shape)
    names = ("mean", "std", "p16", "p50", "p84")
    fields = {n: rng.random(shape[::-1], dtype=np.float32) for n in (*names, "support")}
    rays = {n: rng.random((12 * nside**2, count), dtype=np.float32) for n in names}
    reach = np.linalg.norm([axis[0] for axis in (x, y, z)])
    last = np.full(12 * nside**2, reach / 3, dtype=np.float32)
    distance = reach / count * np.arange(1, count + 1)
    write_zarr(
        path,
        Cube(x=x, y=y, z=z, arrays=fields),
        Curves(distances=distance, nodes=np.arange(count), arrays=rays, last_star=last),
    )


def measured(path: Path, task: str, count: int, seed: int) -> Row:
    """What a question took, by a process of its own."""
    words = [sys.executable, str(_HERE / "query_tasks.py"), str(path), task]
    done = subprocess.run(
        [*words, str(count), str(seed)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def against_run(run: Path, store: Path, count: int, seed: int) -> dict[str, np.ndarray]:
    """Answers of both at random places, ``store_`` and ``run_`` by column."""
    fitted = read_run(run)
    stars, coords = places_in(fitted.box, count, seed)
    predicted = predict_columns(fitted.plan, fitted.posterior, stars)
    columns = {"distance": stars.distance}
    dust = open_map(store)
    answers = {"extinction": dust.extinction(coords), "density": dust.density(coords)}
    for what, answer in answers.items():
        parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
        for kind, part in parts.items():
            columns[f"store_{what}_{kind}"] = u.Quantity(part).value
            columns[f"run_{what}_{kind}"] = predicted[f"{what}_{kind}"]
    return columns


def size(path: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def places_in(box: Box, count: int, seed: int) -> tuple[Stars, SkyCoord]:
    """Places evenly in a box, as the rows of a table and as coordinates."""
    rng = np.random.default_rng(seed)
    x, y, z = rng.uniform(box.lower, box.upper, size=(count, 3)).T
    distance = np.sqrt(x**2 + y**2 + z**2)
    lon, lat = np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(z / distance))
    coords = SkyCoord(
        l=lon * u.deg, b=lat * u.deg, distance=distance * u.pc, frame="galactic"
    )
    return Stars(l=lon % 360, b=lat, distance=distance), coords


def scores(columns: dict[str, np.ndarray]) -> list[Row]:
    """By quantity and distance: how far means, stds and quantiles are apart."""
    distance = columns["distance"]
    edges = np.quantile(distance, [0, 1 / 3, 2 / 3, 1])
    rows: list[Row] = []
    for what in ("extinction", "density"):
        for low, high in pairwise(edges):
            here = (distance >= low) & (distance <= high)
            values = {
                (source, kind): columns[f"{source}_{what}_{kind}"][here]
                for source in ("store", "run")
                for kind in ("mean", "std", "p50")
            }
            std = values["run", "std"]
            off = (values["store", "mean"] - values["run", "mean"]) / std
            rows.append(
                {
                    "quantity": what,
                    "distance [pc]": f"{low:.0f} to {high:.0f}",
                    "places": int(here.sum()),
                    "no answer": int(np.isnan(off).sum()),
                    "mean off, rms [std]": float(np.sqrt(np.nanmean(off**2))),
                    "mean off, 95% within [std]": float(np.nanquantile(abs(off), 0.95)),
                    "std ratio, median": _ratio(values, "std"),
                    "median's ratio, median": _ratio(values, "p50"),
                }
            )
    return rows


def _ratio(values: dict[tuple[str, str], np.ndarray], kind: str) -> float:
    return float(np.nanmedian(values["store", kind] / values["run", kind]))


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--run", type=Path, help="a run folder; default: a mock's")
    options.add_argument("--stars", type=int, default=60_000, help="of the mock")
    options.add_argument("--spacing", type=float, default=50.0, help="of its grid [pc]")
    options.add_argument("--count", type=int, default=1_000_000, help="coordinates")
    options.add_argument("--targets", type=int, default=5_000, help="against the run")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.stars, chosen.spacing = 1_500, 200.0
        chosen.count, chosen.targets = 2_000, 200
    return chosen


if __name__ == "__main__":
    main()
