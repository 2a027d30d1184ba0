"""Six nested grids beside one that fits into the memory, on a sky known from 2 pc on.

1,000,000 simulated stars, as many from each distance to its double, look through
turbulent log-normal dust with the spectrum q^(-11/3), which is known on cells of 2 pc
within 200 pc and twice coarser at each doubling. `dustmap fit` makes two maps: on six
nested grids, with cells of 1.6 to 50 pc unless given, and on one. Held-out stars are
judged at their true places by shells of distance, beside grid-free kriging;
the density by shells and by scale: its average over random cubes of a side, of the map
and of the truth.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np
import torch
from astropy import units as u
from astropy.coordinates import SkyCoord
from development import judge
from report import Report, parser
from scoring import correlations
from simulated import Simulated, simulated
from verbs import Fitted, fit_and_predict

import dustmap
from pipelines.base.table import Row
from pipelines.catalog.schema import Stars, read_stars
from pipelines.cubes.cube import Cube
from pipelines.formats.zarr import read_zarr
from pipelines.run.baseline import predict_baseline
from pipelines.run.folder import read_run

SKY = (
    "truth.half_x=1600",
    "truth.half_y=1600",
    "truth.half_z=800",
    "truth.spacing=16",
    "truth.levels=4",
    "dust.density=2.5e-3",
    "dust.turbulence=1.5",
    "dust.clouds=0",
    "dust.cavities=0",
    "tracers.complete_within=20",
    "tracers.magnitude_limit=30",
    "errors.extinction=0.01",
    "errors.growth=0.05",
    "errors.parallax=0.0001",
)
SHELLS = (0.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)
SCALES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
# Cubes for every shell and scale, and points along a side that are averaged.
_CUBES, _QUICK_CUBES, _POINTS = 300, 50, 4
_GRIDS = ("box.spacing=50", "box.levels=6")
# Of a smoke run: its sky, and its nested grids.
_QUICK_SKY = ("truth.spacing=64", "truth.levels=2")
_QUICK_GRIDS = ("box.spacing=150", "box.levels=2", "inference.learn=false")


def main() -> None:
    options = arguments()
    report = Report.of("levels", __doc__, options)
    work = options.output / "work"
    mock = simulated(
        work,
        stars=options.stars,
        targets=options.targets,
        seed=options.sky,
        settings=(*SKY, *_QUICK_SKY) if options.quick else SKY,
        truth=work / "truth.zarr",
        keep=options.keep,
    )
    budget = [f"budget.minutes={options.minutes:g}"]
    budget += [f"budget.memory_gib={options.memory:g}", "data.holdout=0"]
    budget.append(f"inference.samples={options.samples}")
    fits = {
        "nested grids": list(_QUICK_GRIDS if options.quick else options.nested),
        "one grid": ["box.levels=1", f"box.spacing={options.spacing:g}"],
    }
    targets = read_stars(mock.targets)
    others = predict_baseline(
        mock.train, targets, torch.Generator().manual_seed(options.seed)
    )
    assert others is not None
    truth = read_zarr(work / "truth.zarr", verify=False)
    maps: list[Row] = []
    stars: list[Row] = []
    cubes: list[Row] = []
    for name, chosen in fits.items():
        settings = [*budget, *options.set, *chosen]
        fitted = fit_and_predict(
            work / name.replace(" ", "_"),
            mock.stars,
            mock.targets,
            settings,
            keep=options.keep,
        )
        maps.append({"map": name, **facts(fitted)})
        judged = by_distance(fitted, mock, targets, others.kriging)
        stars += [{"map": name, **row} for row in judged]
        count = _QUICK_CUBES if options.quick else _CUBES
        found = by_scale(fitted, truth, count, np.random.default_rng(options.seed))
        cubes += [{"map": name, **row} for row in found]
        print(name, maps[-1], file=sys.stderr, flush=True)
    report.tables = {
        "The fits": maps,
        "Extinction and density at held-out stars": stars,
        "Density averaged over cubes": cubes,
    }
    report.write(options.output)


def facts(fitted: Fitted) -> Row:
    """Grids and cost."""
    plan = read_run(fitted.run).plan
    return {
        "stars": fitted.summary["counts"]["fitted"],
        "cells [pc]": " ".join(f"{grid.spacing[0]:.3g}" for grid in plan.grids),
        "points": sum(grid.size for grid in plan.grids),
        "ℓ [pc]": float(plan.lengthscale[0]),
        "std": float(plan.std),
        "converged": "yes" if fitted.summary["converged"] else "no",
        **fitted.fit.row("fit "),
        **{f"{part} [s]": s for part, s in fitted.summary["seconds"].items()},
    }


def by_distance(
    fitted: Fitted,
    mock: Simulated,
    targets: Stars,
    kriged: np.ndarray,
) -> list[Row]:
    """The map and the baseline at held-out stars, by shells."""
    inside = fitted.columns["inside"].astype(bool)
    said = {name: values[inside] for name, values in fitted.columns.items()}
    said["by kriging"] = kriged[inside]
    truth = {name: values[inside] for name, values in mock.truth.items()}
    test, plan = targets.select(inside), read_run(fitted.run).plan
    rows: list[Row] = []
    for low, high in itertools.pairwise(SHELLS):
        some = (low <= test.distance) & (test.distance < high)
        row = judge(said, truth, test, plan, None, some)
        del row["by thirds of distance"]
        rows.append(
            {"shell [pc]": f"{low:g}-{high:g}", "judged": int(some.sum()), **row}
        )
    return rows


def by_scale(
    fitted: Fitted, truth: Cube, count: int, rng: np.random.Generator
) -> list[Row]:
    """Correlation and coverage of the density's averages over random cubes."""
    fit = dustmap.open_map(fitted.run)
    grid = read_run(fitted.run).plan.grid
    lower, upper = np.array(grid.lower), np.array(grid.upper)
    rows: list[Row] = []
    for low, high in itertools.pairwise(SHELLS):
        row: Row = {"shell [pc]": f"{low:g}-{high:g}"}
        for side in SCALES:
            if 2 * side > high:
                continue
            centres = places(rng, count, (low, high), lower + side, upper - side)
            offsets = side * ((np.arange(_POINTS) + 0.5) / _POINTS - 0.5)
            lattice = np.stack(np.meshgrid(offsets, offsets, offsets), axis=-1)
            points = centres[:, None, :] + lattice.reshape(-1, 3)
            true = truth.sample("density", points).mean(axis=1)
            x, y, z = u.Quantity(points.transpose(2, 0, 1), u.pc)
            where = SkyCoord(x, y, z, frame="galactic", representation_type="cartesian")
            drawn = fit.query(where, integrated=False, mode="samples")
            samples = np.asarray(drawn.value).mean(axis=1)
            # Not the mean of a few samples, which scatters.
            mean = fit.query(where, integrated=False, mode="mean")
            both = correlations(np.asarray(mean.value).mean(axis=1), true)
            ends = np.quantile(samples, (0.16, 0.84), axis=1, method="weibull")
            row[f"r {side:g} pc"] = both["density_r"]
            row[f"r ln {side:g} pc"] = both["density_log_r"]
            row[f"68% {side:g} pc"] = float(
                np.mean((ends[0] <= true) & (true <= ends[1]))
            )
        rows.append(row)
    return rows


def places(
    rng: np.random.Generator,
    count: int,
    shell: tuple[float, float],
    lower: np.ndarray,
    upper: np.ndarray,
) -> np.ndarray:
    """Random points in a part of a shell that lies in a box, ``(n, 3)`` [pc]."""
    found = np.empty((0, 3))
    while len(found) < count:
        heading = rng.standard_normal((count, 3))
        heading /= np.linalg.norm(heading, axis=1, keepdims=True)
        volume = rng.uniform(shell[0] ** 3, shell[1] ** 3, count)
        position = np.cbrt(volume)[:, None] * heading
        inside = ((position > lower) & (position < upper)).all(axis=1)
        found = np.concatenate([found, position[inside]])
    return found[:count]


def arguments() -> argparse.Namespace:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--stars", type=int, help="1,000,000 unless given")
    options.add_argument("--targets", type=int, help="to predict; 20,000")
    options.add_argument("--sky", type=int, default=7, help="seed of the sky")
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--memory", type=float, default=14.0, help="[GiB]")
    options.add_argument("--samples", type=int, default=12)
    options.add_argument("--nested", nargs="+", default=_GRIDS, metavar="KEY=VALUE")
    options.add_argument(
        "--spacing", type=float, default=12.0, help="cells of the one grid [pc]"
    )
    options.add_argument(
        "--keep", action="store_true", help="what the same commands left stands"
    )
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    chosen = options.parse_args()
    stars, targets = (3_000, 500) if chosen.quick else (1_000_000, 20_000)
    chosen.stars = chosen.stars or stars
    chosen.targets = chosen.targets or targets
    if chosen.quick:
        chosen.samples, chosen.spacing = 4, 150.0
    return chosen


if __name__ == "__main__":
    main()
