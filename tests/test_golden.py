"""One small map from catalogue to figures, its numbers as they were.

Nothing here depends on a stopwatch: spacing and scales are given. To accept new
numbers, run this file with ``DUSTMAP_WRITE_GOLDEN=1`` and commit ``golden.json`` with
the reason.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import healpy
import numpy as np
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits
from click.testing import CliRunner

from pipelines.cli import main
from pipelines.formats.zarr import read_zarr
from pipelines.query import open_map

GOLDEN = Path(__file__).with_name("golden.json")
WRITE = os.environ.get("DUSTMAP_WRITE_GOLDEN") == "1"
# Another processor adds in another order: solvers of a fit in single precision then end
# elsewhere by 5e-5 of a number, and by 7e-4 of a difference between two (measured on
# two). Scales that regression learns are where its search stops.
TOLERANCE = {"regress": 1e-3}
USUAL = 1e-4
# Of kriging as well: its covariance is where a search stops.
SEARCHED = ("kriging", "excess")
DIFFERENCES = ("bias [mag]", "difference", "z_mean")

COMMON = (
    "box.x=[-500,500] box.y=[-500,500] box.z=[-200,200] prior.lengthscale=200 "
    "prior.mean=constant prior.mean_density=0.0006 inference.samples=4 "
    "inference.device=cpu "
)
SETTINGS = (
    f"{COMMON} box.spacing=100 prior.std=1.2 model.common_noise=0 model.degrees=6 "
    "model.subgrid_share=0.5 inference.dtype=float64 data.holdout=0.2"
)
TRUTH = "--set truth.half_x=600 --set truth.half_y=600 --set truth.half_z=200"
# The published engine, with Monte Carlo nodes along rays.
PUBLISHED = (
    f"{COMMON} box.spacing=125 prior.std=0.001 model.common_noise=0.05 "
    "inference.engine=svi svi.epochs=2 svi.nodes=8 data.holdout=0.1"
)
COMMANDS = (
    f"simulate -o mock.parquet --truth truth.zarr --stars 1000 --seed 3 {TRUTH}"
    " --set truth.spacing=40",
    "ingest mock.parquet --preset mock -o stars.parquet",
    "fit stars.parquet -o run "
    + " ".join(f"--set {pair}" for pair in SETTINGS.split()),
    "fit stars.parquet -o svi "
    + " ".join(f"--set {pair}" for pair in PUBLISHED.split()),
    "predict run stars.parquet -o predicted.parquet",
    "predict svi stars.parquet -o predicted-svi.parquet",
    "export run --zarr map.zarr --fits map.fits --healpix map.healpix.fits --nside 8",
    "compare run held-out -o stars",
    "compare run truth.zarr -o truth",
    "plot run -o figures --kind compare --other truth.zarr --dpi 60",
    "regress mock.parquet --target extinction --inputs l,b,distance -o regressed"
    " --test-fraction 0.6",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where all these commands ran."""
    made = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as place:
        place.chdir(made)
        for line in COMMANDS:
            result = CliRunner().invoke(main, shlex.split(line))
            assert result.exit_code == 0, f"{line}: {result.output}"
    return made


def described(values: np.ndarray) -> dict[str, float]:
    """Numbers about the finite values of an array."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    low, median, high = np.percentile(finite, (5, 50, 95))
    told = {"count": finite.size, "mean": finite.mean(), "std": finite.std()}
    told |= {"p5": low, "p50": median, "p95": high}
    return {name: float(number) for name, number in told.items()}


def table(path: Path) -> dict[str, dict[str, float]]:
    """Numbers about every column of numbers of a parquet file."""
    read = pq.read_table(path)
    columns = {name: read[name].to_numpy() for name in read.column_names}
    return {n: described(c) for n, c in columns.items() if c.dtype.kind in "iuf"}


def answers(path: Path) -> dict[str, float]:
    """What a map says at four places."""
    dust = open_map(path)
    l, b = [10.0, 100.0, 200.0, 300.0] * u.deg, [0.0, 8.0, -6.0, 3.0] * u.deg  # noqa: E741
    near = SkyCoord(l=l, b=b, distance=[150, 250, 350, 420] * u.pc, frame="galactic")
    found: dict[str, Any] = {}
    for integrated in (True, False):
        for mode in ("mean", "std", "median"):
            asked = dust.query(near, integrated=integrated, mode=mode)
            found[f"{mode}, {'extinction' if integrated else 'density'}"] = asked.value
        asked = dust.query(near, integrated=integrated, mode="percentile", pct=[16, 84])
        found[f"percentiles, {integrated}"] = asked.value.ravel()
    if path.suffix == ".zarr":
        reached = dust.distance_at(SkyCoord(l=l, b=b, frame="galactic"), 0.05)
        found["distance"] = np.ravel([each.to_value(u.pc) for each in reached])
    return {
        f"{what} {number}": float(value)
        for what, values in found.items()
        for number, value in enumerate(values)
        if np.isfinite(value)
    }


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    """Numbers of nested objects and lists, by their paths."""
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        parts = (flat(part, f"{name}/{key}") for key, part in items)
        return {key: value for part in parts for key, value in part.items()}
    is_number = isinstance(tree, int | float) and not isinstance(tree, bool)
    return {name: tree} if is_number else {}


@pytest.fixture(scope="module")
def numbers(folder) -> dict[str, dict[str, float]]:
    """All that a user would read, by subject."""
    cube = read_zarr(folder / "map.zarr")
    with fits.open(folder / "map.fits") as images:
        pictures = {i.name: described(i.data) for i in images if i.data is not None}
    healpix = healpy.read_map(folder / "map.healpix.fits", nest=None, field=None)
    summary = {
        name: json.loads((folder / name / "run.json").read_text())["summary"]
        for name in ("run", "svi")
    }
    trees = {
        "mock": table(folder / "mock.parquet"),
        "stars": table(folder / "stars.parquet"),
        "run": {name: summary["run"][name] for name in ("counts", "held_out")},
        "svi": {name: summary["svi"][name] for name in ("held_out", "bound")},
        "predicted": table(folder / "predicted.parquet"),
        "predicted by svi": table(folder / "predicted-svi.parquet"),
        "zarr": {name: described(array) for name, array in cube.arrays.items()},
        "fits": pictures,
        "healpix": {str(n): described(field) for n, field in enumerate(healpix)},
        "query": answers(folder / "map.zarr"),
        "query the run": answers(folder / "run"),
        "query svi": answers(folder / "svi"),
        "held-out": json.loads((folder / "stars" / "comparison.json").read_text()),
        "truth": json.loads((folder / "truth" / "comparison.json").read_text()),
        "regress": json.loads((folder / "regressed" / "metrics.json").read_text()),
    }
    return {subject: flat(tree) for subject, tree in trees.items()}


SUBJECTS = (
    *("mock", "stars", "run", "predicted", "zarr", "fits", "healpix", "query"),
    *("query the run", "held-out", "truth", "regress"),
    *("svi", "predicted by svi", "query svi"),
)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_numbers_are_those_of_before(numbers, subject):
    if WRITE:
        GOLDEN.write_text(json.dumps(numbers, indent=0, sort_keys=True) + "\n")
    expected = json.loads(GOLDEN.read_text())[subject]
    assert set(numbers[subject]) == set(expected)
    for name, value in expected.items():
        scale = TOLERANCE.get(subject, USUAL)
        scale = 1e-3 if name.endswith((*SEARCHED, *DIFFERENCES)) else scale
        close = pytest.approx(value, rel=scale, abs=1e-9, nan_ok=True)
        assert numbers[subject][name] == close, name


def test_two_maps_are_compared_in_a_figure(folder):
    (drawn,) = (folder / "figures").iterdir()
    assert drawn.name == "compare.png" and drawn.stat().st_size > 10_000
