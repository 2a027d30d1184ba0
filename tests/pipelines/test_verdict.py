"""The verdict on a map follows from its held-out stars and convergence."""

import math

import pytest

from pipelines.run.verdict import verdict

GOOD = {
    "rmse": 0.1, "stars": 900.0, "coverage_68": 0.69, "coverage_95": 0.95,
    "rmse_kriging": 0.12, "excess": -3.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "converged", "grade", "word"),
    [
        ({}, True, "usable", "kriging 0.12,"),
        ({"rmse": 0.121, "excess": 0.4}, True, "usable", "0.121"),
        ({"rmse": 0.123, "excess": 5.0}, True, "usable", "kriging"),
        ({"rmse": 0.13, "excess": 1.0}, True, "usable", "kriging"),
        ({"rmse": 0.13, "excess": 5.0}, True, "with care", "kriging 0.12"),
        ({"rmse": 0.19, "excess": 5.0}, True, "not usable", "kriging 0.12"),
        ({}, False, "with care", "converge, though"),
        ({"coverage_95": 0.92}, False, "with care", "95% intervals contain only 92%"),
        ({"coverage_68": 0.16}, False, "not usable", "only 16%"),
        ({"coverage_68": 0.55}, True, "with care", "only 55%"),
        ({"coverage_68": 0.49}, True, "not usable", "only 49%"),
        ({"coverage_68": 0.64, "stars": 9e9}, True, "usable", "64%"),
        ({"coverage_68": 0.6, "stars": 100.0}, True, "usable", "60%"),
        ({"coverage_95": 0.927, "stars": 2e4}, True, "with care", "only 93%"),
        ({"coverage_95": 0.75}, True, "not usable", "only 75%"),
        ({"coverage_95": 0.999}, True, "with care", "contain 100%"),
        ({"z_median": 0.21}, True, "with care", "above"),
        ({"z_median": -1.1}, True, "not usable", "below"),
        ({"z_median": 0.19, "stars": 9e9}, True, "usable", "69%"),
        ({"stars": 29.0}, True, "with care", "only 29"),
        ({"rmse": math.nan}, True, "not usable", "not finite"),
    ],
)
def test_the_verdict_follows_from_held_out_stars(changes, converged, grade, word):
    found = verdict(converged, {**GOOD, **changes})
    assert found.grade == grade and word in found.reason and found.advice
    assert found.meets("care") is (grade != "not usable")
    assert found.meets("usable") is (grade == "usable")


def test_what_was_not_judged_is_to_be_used_with_care():
    bare = {key: value for key, value in GOOD.items() if "coverage" not in key}
    for judged in (verdict(True, {}), verdict(False, {}), verdict(True, bare)):
        assert judged.grade == "with care"
