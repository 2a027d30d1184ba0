"""A run and the store of its map give the same answers; draws come from the run."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError
from pipelines.query import open_map
from pipelines.run.predict import predict_columns
from pipelines.storage.atomic import write_manifest


def test_a_store_answers_as_predictions_do(positive_run, places, coords):
    columns = predict_columns(positive_run.plan, positive_run.posterior, places)
    answer = open_map(positive_run.path).extinction(coords)
    assert answer.flags["inside"].all()
    parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
    for kind in ("mean", "p50", "std"):
        ratio = parts[kind].value / columns[f"extinction_{kind}"]
        # The std falls near stars: interpolation keeps its mean, not its median.
        total = parts[kind].value.sum() / columns[f"extinction_{kind}"].sum()
        assert abs((total if kind == "std" else np.median(ratio)) - 1) < 0.015, kind
        # The cloud is 70 pc wide and the grid's steps are as long as that.
        assert np.quantile(np.abs(ratio - 1), 0.9) < 0.15, kind


def test_predict_is_exact(positive_run, places, coords):
    columns = predict_columns(positive_run.plan, positive_run.posterior, places)
    table = dustmap.predict(positive_run.path, coords)
    for name in ("extinction_mean", "density_std", "extinction_p84"):
        np.testing.assert_allclose(table[name].value, columns[name], rtol=1e-9)


def test_draws_stand_on_a_last_axis_and_scatter_as_the_std_says(positive_run, coords):
    dust = open_map(positive_run.path)
    count = len(positive_run.posterior.samples)
    shaped = coords.reshape(30, 10)
    draws = dust.query(shaped, integrated=True, mode="samples")
    assert draws.shape == (30, 10, count) and draws.unit == u.mag
    std = open_map(positive_run.path).query(shaped, integrated=True, mode="std")
    ratio = draws.std(axis=-1, ddof=1) / std
    assert abs(np.median(ratio) - 1) < 0.1
    again = dust.query(shaped, integrated=True, mode="samples")
    np.testing.assert_array_equal(again, draws)
    outside = dust.query(ray_field.at([0, 1], 0, 9000), integrated=True, mode="samples")
    assert outside.shape == (2, count) and np.isnan(outside).all()
    run = open_map(positive_run.path)
    with pytest.raises(InputError, match=r"integrated=True.*integrated=False"):
        run.query(shaped)


def test_samples_along_one_direction_are_curves(positive_run):
    """Another order, another frame, another query: the same curves, which rise."""
    dust = open_map(positive_run.path)
    distances = np.arange(5.0, 480.0, 5.0)
    places = ray_field.at(18.4, -9.0, distances)
    draws = dust.query(places, integrated=True, mode="samples").value
    falls = np.diff(draws, axis=0) < 0
    assert falls.mean() < 0.01
    order = np.random.default_rng(1).permutation(len(places))[:20]
    for again in (places[order], places[order].icrs):
        some = dust.query(again, integrated=True, mode="samples").value
        np.testing.assert_allclose(some, draws[order], rtol=1e-6)
    # Another direction has curves of its own.
    near = ray_field.at(18.4, -9.0 + 0.1, distances)
    other = dust.query(near, integrated=True, mode="samples").value
    assert not np.allclose(other, draws, rtol=1e-3)


def test_one_random_sample_is_one_of_the_samples(positive_run, coords):
    dust = open_map(positive_run.path)
    draws = dust.query(coords, integrated=False, mode="samples")
    one = dust.query(
        coords, integrated=False, mode="random_sample", rng=np.random.default_rng(5)
    )
    assert one.shape == coords.shape
    same = (draws == one[:, None]).all(axis=0)
    assert same.sum() == 1
    with pytest.raises(InputError, match="default_rng"):
        dust.query(coords, integrated=False, mode="random_sample")


def test_intervals_of_the_inverse_hold_two_thirds_of_the_draws(positive_run):
    """Draws of the extinction along rays, and where each of them gets to a value."""
    rng = np.random.default_rng(8)
    lon, lat = rng.uniform(-30, 60, 120), rng.uniform(-20, 10, 120)
    rays = SkyCoord(l=lon * u.deg, b=lat * u.deg, frame="galactic")
    dust = open_map(positive_run.path)
    half = dust.query(rays, integrated=True, mode="median", total=True).value / 2
    crossing, flags = dust.distance_at(rays, half, return_flags=True)
    # The share of draws that are past the value at either end of the interval.
    past = []
    for end in (crossing.lower, crossing.upper):
        kept = flags["bounded"]
        there = SkyCoord(rays.l, rays.b, distance=end, frame="galactic")[kept]
        draws = dust.query(there, integrated=True, mode="samples").value
        past.append((draws >= half[kept, None]).mean())
    assert kept.sum() > 80
    assert 0.58 < past[1] - past[0] < 0.78


def test_a_store_of_another_fit_is_refused(positive_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(positive_run.path, run)
    description = json.loads((run / "run.json").read_text())
    description["provenance"]["fit"] = "another"
    (run / "run.json").write_text(json.dumps(description))
    write_manifest(run)
    with pytest.raises(InputError, match="another fit"):
        open_map(run)
    shutil.rmtree(run / "map.zarr")
    write_manifest(run)
    with pytest.raises(InputError, match=r"map\.zarr"):
        open_map(run)


def test_what_is_asked_of_a_run_needs_no_torch(positive_run, tmp_path):
    run = positive_run.path
    for line in (
        f"query {run} --l 20 --b 3 --distance 100 --mode samples",
        f"query {run} --l 20 --b 3 --at-extinction 0.05",
        f"export {run} --fits {tmp_path}/a.fits --healpix {tmp_path}/s.fits",
        f"export {run} --zarr {tmp_path}/a.zarr --sphere 200",
        f"plot {run} -o {tmp_path}/figures --dpi 40",
        f"view {run} -o {tmp_path}/page.html",
    ):
        code = (
            "import sys\n"
            "class Refused:\n"
            "    def find_spec(self, name, *_):\n"
            "        assert name != 'torch', 'imported'\n"
            "sys.meta_path.insert(0, Refused())\n"
            "from pipelines.cli import main\n"
            f"main({line.split()!r})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True)
        assert done.returncode == 0, (line, done.stderr.decode())
