"""Clouds: found where they are, not elsewhere, and no better than chance by chance."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import one_cloud
import pytest
from scipy.stats import binom

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.compare import compare_clouds
from pipelines.compare.chance import groups, one_each, p_at_least, p_value
from pipelines.compare.peaks import disc, largest_peak, local_peaks, profiles
from pipelines.compare.tables import Cloud, read_clouds

DISTANCE = float(np.linalg.norm(one_cloud.CENTRE))
L = float(np.degrees(np.arctan2(one_cloud.CENTRE[1], one_cloud.CENTRE[0])))
B = float(np.degrees(np.arcsin(one_cloud.CENTRE[2] / DISTANCE)))
TRUE = Cloud(name="true", distance=DISTANCE, error=10.0, l=L, b=B)


def rng():
    return np.random.default_rng(3)


def test_the_cloud_is_found_where_it_is_by_most_samples(positive_run):
    found = compare_clouds(positive_run, [TRUE], generator=rng())
    (row,) = found.tables["clouds"]
    assert row["peaks there"]
    assert row["largest peak [pc]"] == pytest.approx(DISTANCE, abs=50)
    assert row["share of samples"] > 0.8
    assert row["rank of density"] > 0.8
    assert row["tolerance [pc]"] == pytest.approx(np.hypot(20, 70))


def test_a_cloud_said_to_be_elsewhere_on_the_line_is_not(positive_run):
    false = replace(TRUE, name="false", distance=250.0)
    (row,) = compare_clouds(positive_run, [false], generator=rng()).tables["clouds"]
    assert not row["peaks there"]
    assert row["share of samples"] < 0.3


def test_what_cannot_be_judged_is_counted_and_not_judged(positive_run):
    unseen = positive_run.support.clone()
    unseen[: unseen.shape[0] // 3] = 0
    half = replace(positive_run, support=unseen)
    clouds = [
        TRUE,
        replace(TRUE, name="nowhere", l=float("nan")),
        replace(TRUE, name="far", distance=5000.0),
        replace(TRUE, name="unseen", l=180.0, b=0.0, distance=300.0),
    ]
    found = compare_clouds(half, clouds, generator=rng())
    assert [row["fate"] for row in found.tables["fates"]] == [
        "judged",
        "position not known",
        "outside the box",
        "no star at its distance or beyond",
    ]
    assert found.numbers["judged"][0]["cloud"] == "true"
    with pytest.raises(InputError, match="2 position not known"):
        compare_clouds(half, [clouds[1]] * 2, generator=rng())


def test_entries_of_one_cloud_count_once(positive_run):
    twin = replace(TRUE, name="twin", l=L + 3, error=30.0)
    found = compare_clouds(positive_run, [twin, TRUE], generator=rng())
    assert found.numbers["complexes"] == 1
    assert len(found.tables["clouds"]) == 2


def test_profiles_are_those_of_the_samples_along_the_line(positive_run):
    (profile,) = profiles(positive_run, np.array([L]), np.array([B]), radius=0.0)
    assert len(profile.samples) == len(positive_run.posterior.samples)
    at = int(np.argmin(np.abs(profile.distance - DISTANCE)))
    place = profile.distance[at] * unit_vectors(np.array(L), np.array(B))
    truth = one_cloud.density(place)
    assert profile.median[at] == pytest.approx(truth, rel=0.35)
    assert 0 < profile.informed <= profile.reach


def test_a_disc_is_as_wide_as_it_says():
    for b in (0.0, 60.0, 89.0):
        rays = disc(33.0, b, 2.0)
        away = np.degrees(np.arccos(np.clip(rays @ rays[0], -1, 1)))
        np.testing.assert_allclose(np.linalg.norm(rays, axis=1), 1)
        np.testing.assert_allclose(np.sort(away), [0] + [1] * 6 + [2] * 12, atol=1e-5)


def test_peaks_are_inside_and_the_largest_is_taken():
    distance = np.arange(8.0)
    density = np.array([9.0, 1, 3, 2, 2, 5, 1, 8])
    np.testing.assert_array_equal(local_peaks(density), [2, 5])
    assert largest_peak(distance, density) == 5
    assert np.isnan(largest_peak(distance, distance))


def test_the_permutation_test_is_exact_in_its_limits():
    every = np.ones((5, 5), dtype=bool)
    order = list(itertools.permutations(range(5)))
    p, mean = p_value(np.eye(5), every, rng())
    assert p == pytest.approx(1 / len(order), abs=0.003)
    assert mean == pytest.approx(1, abs=0.05)
    assert p_value(np.ones((5, 5)), every, rng())[0] == 1
    random = [p_value(r.random((5, 5)), every, r)[0] for r in [rng()] * 20]
    assert 0.3 < np.mean(random) < 0.7


def test_only_orders_in_which_all_would_be_judged_are_chance():
    informed = np.array([100.0, 400, 600, 900])
    distance = np.array([90.0, 300, 350, 800])
    allowed = distance <= informed[:, None]
    orders = [
        order
        for order in itertools.permutations(range(4))
        if allowed[range(4), order].all()
    ]
    assert len(orders) == 2
    scores = np.eye(4)
    p, mean = p_value(scores, allowed, rng())
    assert p == pytest.approx(1 / 2, abs=0.02)
    assert mean == pytest.approx((4 + 2) / 2, abs=0.04)


def test_independent_chances_add_up():
    for count in range(6):
        expected = binom.sf(count - 1, 5, 0.3)
        assert p_at_least(count, [0.3] * 5) == pytest.approx(expected)


def test_groups_are_connected_through_others():
    near = np.eye(5, dtype=bool)
    near[0, 3] = near[3, 0] = near[3, 4] = near[4, 3] = True
    assert groups(near) == [0, 1, 2, 0, 0]
    assert one_each([0, 1, 2, 0, 0], [3.0, 1, 1, 2, 5]) == [1, 2, 3]


@pytest.mark.data
def test_the_published_table_is_read(data_dir):
    clouds = read_clouds(data_dir / "cloud_distances.csv")
    assert len(clouds) == 69
    assert sum(np.isfinite(each.l) for each in clouds) == 31
    assert clouds[0] == Cloud(
        name="perseus", distance=250.0, error=50.0, l=159.0, b=-20.0
    )
