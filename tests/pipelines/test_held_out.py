"""Held-out stars are judged by what was observed of them, in the map alone."""

import dataclasses

import numpy as np
import pytest

from pipelines.catalog.schema import Stars, read_table
from pipelines.compare.stars import compare_held_out
from pipelines.model.plan import Plan
from pipelines.run.folder import read_run
from pipelines.run.held_out import (
    HELD_OUT_FILE,
    held_out_score,
    read_held_out,
    write_held_out,
)
from pipelines.view.record import read_record


@pytest.fixture(scope="module")
def plan(cloud_run) -> Plan:
    """Any plan, with a common noise."""
    return dataclasses.replace(cloud_run.plan, common_noise=0.3)


def stars() -> Stars:
    """Three stars, one of them in no map."""
    return Stars(
        l=np.array([10.0, 20.0, 30.0]),
        b=np.zeros(3),
        distance=np.array([100.0, 200.0, 300.0]),
        extinction=np.array([1.0, 2.0, 3.0]),
        extinction_error=np.array([0.4, 0.4, 0.4]),
        distance_error=np.array([0.0, 60.0, np.nan]),
    )


def predictions(inside=(True, True, False)) -> dict[str, np.ndarray]:
    """Log-normal with a median of one and a sigma of ln 2."""
    known = np.array(inside)
    column = np.where(known, 1.0, np.nan)
    values = {"mean": 1.2, "std": 0.7, "p16": 0.5, "p50": 1.0, "p84": 2.0}
    values |= {"p2_5": 1 / 3.89, "p97_5": 3.89}
    named = {f"extinction_{name}": value * column for name, value in values.items()}
    densities = {f"density_{name}": 0.02 * column for name in values}
    return {**named, **densities, "inside": known}


def test_noise_is_of_the_star_of_the_catalogue_and_of_its_distance(plan):
    variance = stars().variance(np.full(3, 0.02), plan.common_noise)
    np.testing.assert_allclose(variance, [0.25, 1.69, 0.25])


def test_what_was_written_comes_back_without_the_stars_outside(tmp_path, plan):
    write_held_out(tmp_path / HELD_OUT_FILE, stars(), plan, predictions())
    found = read_held_out(tmp_path)
    assert found is not None and len(found) == 2 and found.has_uncertainty
    np.testing.assert_array_equal(found.observed, [1.0, 2.0])
    np.testing.assert_allclose(found.residual, [-0.2, 0.8])
    np.testing.assert_allclose(found.noise, [0.5, 1.3])
    # At its median a log-normal is a little below the mean of a noisy observation.
    assert -0.2 < found.z_scores(positive=True)[0] < 0
    assert found.z_scores(positive=False)[0] == pytest.approx(-0.2 / np.hypot(0.7, 0.5))
    _, units, _ = read_table(tmp_path / HELD_OUT_FILE)
    assert units["extinction"] == units["noise"] == "mag"


def test_a_run_without_observations_or_stars_in_the_map_judges_nothing(tmp_path, plan):
    assert read_held_out(tmp_path) is None
    nowhere = predictions((False, False, False))
    write_held_out(tmp_path / HELD_OUT_FILE, stars(), plan, nowhere)
    assert read_held_out(tmp_path) is None


def test_fit_page_and_comparison_tell_one_coverage(positive_run):
    score = positive_run.summary["held_out"]
    compared = compare_held_out(positive_run).numbers["all"]
    held = {each["level"]: each["held"] for each in compared["coverage"]}
    reported = read_record(positive_run.path).judged
    assert reported is not None and reported.stars == score["stars"]
    for each in reported.coverage:
        assert each.held == held[each.level]
    assert (score["coverage_68"], score["coverage_95"]) == (held[0.68], held[0.95])


def test_a_fit_keeps_what_its_own_score_was_made_of(cloud_report):
    run = read_run(cloud_report.output)
    found = read_held_out(run.path)
    assert found is not None
    z = np.abs(found.z_scores(positive=False))
    assert cloud_report.held_out["coverage_68"] == np.mean(z < 0.9945)
    rmse = np.sqrt(np.mean(found.residual**2))
    assert cloud_report.held_out["rmse"] == pytest.approx(rmse)


def test_the_score_of_a_positive_density_is_of_its_log_normal(plan):
    """A star at 2.9 is within the 95% of a log-normal and without those of a normal."""
    assert plan.density == "gaussian"
    one = stars().select(slice(1))
    one = dataclasses.replace(
        one,
        extinction=np.array([2.9]),
        extinction_error=np.array([0.01]),
        distance_error=None,
    )
    said = {name: column[:1] for name, column in predictions().items()}
    quiet = dataclasses.replace(plan, common_noise=0.0)
    assert held_out_score(said, one, quiet)["coverage_95"] == 0
    positive = dataclasses.replace(quiet, density="lognormal")
    score = held_out_score(said, one, positive)
    assert (score["coverage_68"], score["coverage_95"]) == (0, 1)


def test_no_held_out_stars_have_no_score(plan):
    assert held_out_score({}, stars().select(slice(0)), plan) == {}
