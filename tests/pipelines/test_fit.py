"""A fit: reproducible, without a favourite unit or size, and whole or absent."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
import torch

from pipelines.base.errors import InputError
from pipelines.catalog.schema import Stars, read_stars, read_table, write_stars
from pipelines.config import FitConfig
from pipelines.fit import fit
from pipelines.run.folder import read_run
from pipelines.run.kriged import learn_baseline
from pipelines.run.predict import predict_columns
from pipelines.storage.atomic import check_manifest

pytestmark = pytest.mark.usefixtures("no_baseline")


def fit_stars(folder, stars, settings, name="run"):
    """Fit a catalogue under ``folder``; the report and the run."""
    source = folder / f"{name}.parquet"
    write_stars(source, stars, overwrite=True)
    report = fit(source, folder / name, FitConfig.model_validate(settings))
    return report, read_run(folder / name)


def quick(**inference):
    """Four samples on a coarse grid."""
    plain = one_cloud.settings(**{"samples": 4, **inference})
    plain["box"]["spacing"] = 140.0
    return plain


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(tmp_path):
    stars = one_cloud.catalogue(120)
    _, first = fit_stars(tmp_path, stars, quick(seed=4), "first")
    _, again = fit_stars(tmp_path, stars, quick(seed=4), "again")
    _, other = fit_stars(tmp_path, stars, quick(seed=5), "other")
    assert torch.equal(first.posterior.mean, again.posterior.mean)
    assert torch.equal(first.posterior.samples, again.posterior.samples)
    assert not torch.equal(first.posterior.samples, other.posterior.samples)
    held = [set(held_out_ids(run)) for run in (first, again, other)]
    assert held[0] == held[1] != held[2]


def held_out_ids(run):
    columns, _, _ = read_table(run.path / "held_out.parquet")
    return columns["source_id"].tolist()


@pytest.mark.slow
def test_a_smaller_box_with_less_dust_gives_the_same_map_to_scale(tmp_path):
    scale, dust = 2.0**-3, 2.0**-10
    runs = []
    for name, length, amount in (("full", 1.0, 1.0), ("small", scale, dust)):
        plain = one_cloud.settings(length, amount, samples=4, dtype="float64")
        # Scales are left to be found, so that finding them is under test too.
        plain["prior"] = {"mean": "constant"}
        plain["model"] = {"density": "gaussian", "outliers": False}
        plain["inference"]["learn"] = False
        plain["box"]["spacing"] = 140.0 * length
        stars = one_cloud.catalogue(120, scale=length, dust=amount)
        runs.append(fit_stars(tmp_path, stars, plain, name)[1])
    full, small = runs
    np.testing.assert_allclose(
        small.plan.lengthscale, scale * np.array(full.plan.lengthscale), rtol=1e-4
    )
    assert small.plan.std == pytest.approx(full.plan.std * dust / scale, rel=1e-3)
    assert small.plan.mean.value == pytest.approx(
        full.plan.mean.value * dust / scale, rel=1e-3
    )
    a, b = (run.posterior.mean.numpy() for run in runs)
    assert np.abs(a - b).max() < 1e-3 * np.abs(a).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dust"),
    [(250.0, 0.01), pytest.param(3000.0, 10.0, marks=pytest.mark.slow)],
)
def test_without_a_configuration_any_size_and_unit_gives_a_sensible_map(
    tmp_path, size, dust
):
    rng = np.random.default_rng(3)
    ends = rng.uniform(-1, 1, (70, 3)) * [1.0, 1.0, 0.3]
    distance = np.linalg.norm(ends, axis=1)
    true = dust * distance * (1 + 0.6 * np.tanh(3 * ends[:, 0]))
    noise = 0.02 * dust
    stars = one_cloud.at(ends * size, true + noise * rng.normal(size=70), noise)
    # Learning has tests of its own.
    settings = {"inference": {"samples": 4, "learn": False}}
    report, run = fit_stars(tmp_path, stars, settings)
    assert report.converged
    assert report.held_out["rmse"] < 0.4 * true.std()
    assert 4 <= max(run.plan.grid.shape) <= 400
    assert all(0.05 * size < s < 3 * size for s in run.plan.lengthscale)
    # The density's logarithm has no unit, its median that of dust over length.
    assert 0.05 < run.plan.std < 2.0
    assert 0.2 * dust / size < run.plan.mean.value < 5 * dust / size
    assert run.plan.grid.contains(torch.zeros(1, 3, dtype=torch.float64)).all()


def test_a_gaussian_density_is_one_word_away_and_linear(tmp_path):
    plain = quick()
    plain["model"] = {"density": "gaussian", "common_noise": 0.0}
    report, run = fit_stars(tmp_path, one_cloud.catalogue(300), plain)
    assert run.plan.density == "gaussian" and run.plan.outliers
    assert report.converged and "student_degrees" in run.summary
    columns, _, _ = read_table(run.path / "held_out.parquet")
    np.testing.assert_array_equal(columns["density_p50"], columns["density_mean"])


def test_facts_of_a_lognormal_fit_stay_with_the_run(positive_run):
    summary = positive_run.summary
    assert summary["student_degrees"] == positive_run.plan.degrees == 8.0
    assert 0 <= summary["stars_weighed_down"] < 0.2 * summary["counts"]["fitted"]
    assert summary["subgrid_line_variance"][0] > 0
    assert "learning" not in summary


def spoilt(kind, count=1000, seed=7):
    """The cloud's stars; 2% of them off by some magnitudes, or half of them misplaced.

    The last by 30%, which their errors say.
    """
    stars, rng = one_cloud.catalogue(count, seed), np.random.default_rng(seed)
    assert stars.extinction is not None
    if kind == "outliers":
        off = (rng.random(count) < 0.02) * rng.uniform(1.0, 4.0, count)
        return replace(stars, extinction=stars.extinction + off)
    if kind == "distances":
        relative = np.where(rng.random(count) < 0.5, 0.02, 0.3)
        factor = np.exp(relative * rng.normal(size=count))
        seen = stars.distance * np.clip(factor, 0.3, 1.6)
        return replace(stars, distance=seen, distance_error=relative * seen)
    return replace(stars, distance_error=0.001 * stars.distance)


def error_with(folder, stars, name, **model):
    """RMSE [mag] of the fit's extinctions at places it has not seen, noise-free."""
    plain = one_cloud.settings(samples=0)
    plain["model"] = {**plain["model"], "distance_errors": False, **model}
    plain["data"] = {"holdout": 0.0}
    _, run = fit_stars(folder, stars, plain, name)
    places = one_cloud.catalogue(500, seed=31)
    found = predict_columns(run.plan, run.posterior, places)["extinction_mean"]
    true = one_cloud.extinction(places.positions())
    return float(np.sqrt(np.mean((found - true) ** 2)))


@pytest.mark.parametrize(
    ("kind", "switch", "gain"),
    [
        ("outliers", {"outliers": True}, 0.7),
        ("distances", {"distance_errors": True}, 0.7),
        # Without the defect, it may cost no more than this.
        ("nothing", {"outliers": True}, 1.02),
    ],
)
def test_what_a_switch_is_for_gets_better_with_it_and_nothing_else_worse(
    tmp_path, kind, switch, gain
):
    stars = spoilt(kind)
    plain = error_with(tmp_path, stars, "plain")
    switched = error_with(tmp_path, stars, "switched", **switch)
    assert switched < gain * plain


def test_stars_outside_the_box_are_dropped_and_counted(tmp_path):
    stars = one_cloud.catalogue(300)
    settings = quick()
    settings["box"]["x"] = [-140.0, 280.0]
    settings["data"] = {"holdout": 0.1, "max_distance": 500.0}
    report, run = fit_stars(tmp_path, stars, settings)
    near = stars.distance <= 500.0
    x = stars.positions()[:, 0]
    outside = near & ((x < -140.0) | (x > 280.0))
    counts = report.counts
    assert counts["read"] == 300
    assert counts["beyond max_distance"] == (~near).sum() > 0
    assert counts["outside the box"] == outside.sum() > 0
    assert counts["fitted"] + counts["held out"] == (near & ~outside).sum()
    assert counts["fitted"] == len(read_stars(run.path / "stars.parquet"))
    assert f"{outside.sum()} outside the box" in str(report)


@pytest.mark.slow
def test_a_narrow_field_makes_a_map(tmp_path):
    rng = np.random.default_rng(8)
    count = 60
    distance = rng.uniform(200, 2000, count)
    stars = Stars(
        l=80 + rng.uniform(-2.5, 2.5, count),
        b=10 + rng.uniform(-2.5, 2.5, count),
        distance=distance,
        extinction=0.4 * (distance > 900) + rng.normal(scale=0.03, size=count),
        extinction_error=np.full(count, 0.03),
    )
    # Learning has tests of its own.
    settings = {"inference": {"samples": 4, "learn": False}}
    report, run = fit_stars(tmp_path, stars, settings)
    assert report.held_out["rmse"] < 0.15
    assert report.counts["outside the box"] <= 5
    assert run.plan.grid.upper[1] > 1500


def test_a_run_says_why_and_its_settings_make_the_map_again(tmp_path):
    settings = quick()
    del settings["box"]["spacing"], settings["prior"]["lengthscale"]
    _, first = fit_stars(tmp_path, one_cloud.catalogue(300), settings)
    record = json.loads((first.path / "run.json").read_text())
    left = {"box.spacing", "prior.lengthscale", "budget.memory_gib"}
    assert left <= record["choices"].keys() and all(record["choices"].values())
    assert "prior.std" not in record["choices"]
    machine = record["provenance"]["machine"]
    assert machine["threads"] == torch.get_num_threads()
    assert machine["versions"]["torch"] == torch.__version__
    again = record["provenance"]["configuration"]
    _, second = fit_stars(tmp_path, one_cloud.catalogue(300), again, "again")
    assert second.plan == first.plan
    assert torch.equal(second.posterior.samples, first.posterior.samples)


def test_distance_errors_count_as_noise_unless_switched_off(tmp_path):
    plain = one_cloud.catalogue(300)
    blurred = replace(plain, distance_error=0.3 * plain.distance)
    off = quick()
    off["model"] = {**off["model"], "distance_errors": False}
    _, without = fit_stars(tmp_path, plain, quick(), "without")
    _, ignored = fit_stars(tmp_path, blurred, off, "ignored")
    _, counted = fit_stars(tmp_path, blurred, quick(), "counted")
    assert torch.equal(without.posterior.mean, ignored.posterior.mean)
    # What the data say less loudly pulls less away from the prior's mean.
    assert counted.posterior.mean.norm() < 0.9 * without.posterior.mean.norm()


@pytest.mark.parametrize(
    "density", ["gaussian", pytest.param("lognormal", marks=pytest.mark.slow)]
)
def test_distance_errors_that_are_switched_off_leave_no_trace(
    tmp_path, density, monkeypatch
):
    plain = one_cloud.catalogue(400, seed=8)
    blurred = replace(plain, distance_error=0.3 * plain.distance)
    chosen = one_cloud.positive_settings(samples=4)
    if density == "gaussian":
        chosen = one_cloud.settings(samples=4)
    else:
        # With the residual, and so with kriging.
        monkeypatch.setattr("pipelines.fit.judging.learn_baseline", learn_baseline)
        chosen["model"] = {"common_noise": 0.0, "degrees": 8.0}
    off = {**chosen, "model": {**chosen["model"], "distance_errors": False}}
    _, without = fit_stars(tmp_path, plain, chosen, "without")
    _, ignored = fit_stars(tmp_path, blurred, off, "ignored")
    assert (without.posterior.residual is None) == (density == "gaussian")
    for file in ("held_out.parquet", "stars.parquet"):
        one, other = (read_table(r.path / file)[0] for r in (without, ignored))
        assert one.keys() == other.keys()
        for name, column in one.items():
            np.testing.assert_array_equal(column, other[name], err_msg=name)
    places = plain.select(slice(0, 50))
    one, other = (
        predict_columns(run.plan, run.posterior, places) for run in (without, ignored)
    )
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)


def test_a_fit_without_samples_has_a_mean_and_says_nothing_of_errors(tmp_path):
    report, run = fit_stars(tmp_path, one_cloud.catalogue(200), quick(samples=0))
    assert {"stars", "rmse", "scatter"} <= set(report.held_out)
    assert not any(name.startswith("coverage") for name in report.held_out)
    columns, _, _ = read_table(run.path / "held_out.parquet")
    assert np.isnan(columns["extinction_std"]).all()
    assert np.isfinite(columns["extinction_mean"]).all()


def test_held_out_stars_are_not_fitted_and_judge_the_map(cloud_report, cloud_stars):
    stars = read_stars(cloud_stars)
    fitted = read_stars(cloud_report.output / "stars.parquet")
    columns, _, _ = read_table(cloud_report.output / "held_out.parquet")
    assert not set(columns["source_id"]) & set(np.asarray(fitted.source_id))
    score = cloud_report.held_out
    measured = dict(zip(np.array(stars.source_id), np.array(stars.extinction)))
    own = np.array([measured[star] for star in columns["source_id"]])
    difference = columns["extinction_mean"] - own
    spread = np.hypot(columns["extinction_std"], one_cloud.ERROR)
    assert score["stars"] == len(own) == 100
    assert score["rmse"] == pytest.approx(np.sqrt(np.mean(difference**2)))
    for name, width in (("68", 0.9945), ("95", 1.96)):
        held = np.mean(np.abs(difference) < width * spread)
        assert score[f"coverage_{name}"] == pytest.approx(held)
    # The prior is far rougher than one smooth cloud: its intervals are wide.
    assert score["coverage_68"] > 0.6 and score["rmse"] < 0.1 * own.std()


def test_a_plan_that_needs_more_memory_than_allowed_is_refused(tmp_path):
    settings = quick()
    settings["budget"] = {"memory_gib": 0.1}
    with pytest.raises(InputError, match=r"needs .* GiB, the budget is 0.10 GiB"):
        fit_stars(tmp_path, one_cloud.catalogue(50), settings)
    assert not (tmp_path / "run").exists()


KILLED = """
import os, signal
import pipelines.fit.writing
def die(folder, *tensors):
    assert (folder / "run.json").exists()
    os.kill(os.getpid(), signal.SIGKILL)
pipelines.fit.writing.write_posterior = die
from pipelines.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_a_killed_fit_leaves_the_old_run_or_none(cloud_report, tmp_path, old):
    output = tmp_path / "run"
    if old:
        shutil.copytree(cloud_report.output, output)
    write_stars(tmp_path / "s.parquet", one_cloud.catalogue(50), overwrite=False)
    line = f"fit {tmp_path}/s.parquet -o {output} --overwrite --set box.spacing=300 "
    line += "--set inference.learn=false "
    line += "--set inference.samples=0"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *line.split()],
        capture_output=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    if old:
        check_manifest(output)
        read_run(output)
    else:
        assert not output.exists()
