"""A map against stars: who is judged, and whether a wrong map is told from a right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_cloud
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog.schema import read_stars, read_table
from pipelines.compare.stars import compare_held_out, compare_stars

pytestmark = pytest.mark.usefixtures("one_baseline")


@pytest.fixture
def source(positive_run):
    """The table that was fitted, those held out among its rows."""
    return read_stars(positive_run.path.parent / "stars.parquet")


@pytest.fixture
def fresh():
    """Stars that the fit has never heard of."""
    return one_cloud.catalogue(400, seed=77)


def test_of_the_fitted_table_only_the_stars_kept_back_are_judged(positive_run, source):
    found = compare_stars(positive_run, source)
    held, _, _ = read_table(positive_run.path / "held_out.parquet")
    counts = found.numbers["counts"]
    assert counts["fitted"] == positive_run.summary["counts"]["fitted"]
    assert counts["judged"] == len(held["l"]) > 20
    assert set(found.tables["stars"].columns["distance"]) == set(held["distance"])


def test_the_run_by_itself_says_the_same(positive_run, source):
    alone, asked = compare_held_out(positive_run), compare_stars(positive_run, source)
    for column in ("z", "mean", "noise"):
        own = sorted(alone.tables["stars"].columns[column])
        again = sorted(asked.tables["stars"].columns[column])
        np.testing.assert_allclose(own, again, rtol=1e-6)


def test_where_the_run_lists_only_some_fitted_stars_the_rest_is_not_judged(
    positive_run, source
):
    # Some directions are written otherwise than the run has them: as if not listed.
    moved = np.arange(len(source)) < 50
    unlisted = replace(source, l=np.where(moved, source.l + 1e-9, source.l))
    counts = positive_run.summary["counts"]
    thinned = replace(positive_run, summary={"counts": {**counts, "fitted": 10**6}})
    plain = compare_stars(positive_run, unlisted).numbers["counts"]["judged"]
    careful = compare_stars(thinned, unlisted).numbers["counts"]["judged"]
    assert careful <= counts["held out"] < plain


def test_intervals_hold_stars_of_the_same_dust_and_not_of_other_dust(
    positive_run, fresh
):
    right = compare_stars(positive_run, fresh).numbers["all"]
    assert fresh.extinction is not None
    other = replace(fresh, extinction=1.5 * fresh.extinction + 0.1)
    wrong = compare_stars(positive_run, other).numbers["all"]
    assert right["coverage"][3]["held"] > 0.85
    assert right["chi2"] < 2
    assert wrong["coverage"][3]["held"] < 0.6
    assert wrong["chi2"] > 10
    assert wrong["bias"] > 0.1


def test_bins_and_regions_share_the_stars_out(positive_run, fresh):
    found = compare_stars(positive_run, fresh)
    judged = found.numbers["counts"]["judged"]
    for name in ("by_distance", "by_region"):
        assert sum(found.tables[name].columns["stars"]) == judged
    whole, *parts = found.tables["summary"].columns["stars"]
    assert whole == judged == sum(parts or [judged])


def test_a_region_holds_the_stars_of_its_quadrant_and_latitude(positive_run):
    ends = np.array([[300.0, 100.0, 10.0], [300.0, -100.0, 150.0]])
    stars = one_cloud.at(ends, one_cloud.extinction(ends), one_cloud.ERROR)
    found = compare_stars(positive_run, stars).tables["by_region"]
    assert found.columns["region [deg]"] == [
        "l 0 to 90, b -5 to 5",
        "l 270 to 360, b 5 to 30",
    ]


def test_what_cannot_be_judged_is_counted(positive_run, fresh):
    far = replace(fresh, distance=np.where(np.arange(400) < 30, 9e3, fresh.distance))
    exact = replace(far, extinction_error=np.where(np.arange(400) < 40, 0.0, 0.02))
    counts = compare_stars(positive_run, exact).numbers["counts"]
    assert counts["outside the box"] == 30
    assert counts["without any error"] == 10
    assert counts["judged"] == 360


def test_refusals_say_what_is_missing(positive_run, fresh):
    with pytest.raises(InputError, match="positions only"):
        compare_stars(
            positive_run, replace(fresh, extinction=None, extinction_error=None)
        )
    with pytest.raises(InputError, match=r"no star is left.*outside the box: 400"):
        compare_stars(positive_run, replace(fresh, distance=fresh.distance * 1e3))
    bare = replace(positive_run.posterior, samples=positive_run.posterior.samples[:0])
    with pytest.raises(InputError, match="no posterior samples"):
        compare_stars(replace(positive_run, posterior=bare), fresh)


def test_a_limit_in_magnitude_that_only_the_fit_corrected_for_is_named(
    positive_run, fresh, monkeypatch
):
    assert "data.magnitude" not in str(compare_stars(positive_run, fresh))
    limited = {"data": {"magnitude": "phot_g"}}
    monkeypatch.setattr("pipelines.compare.stars.read_toml", lambda _: limited)
    assert "data.magnitude = phot_g" in str(compare_stars(positive_run, fresh))
