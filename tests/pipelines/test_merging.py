"""Stars of one bin as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipelines.catalog.merging import merged
from pipelines.catalog.schema import Stars

COUNT = 20_000


def sky(*, errors: bool = True, survey: bool = False) -> Stars:
    """Stars around the sky with an extinction of their distance, in mag/kpc."""
    random = np.random.default_rng(2)
    distance = 10 ** random.uniform(1.5, 3, COUNT)
    sigma = random.uniform(0.05, 0.1, COUNT)
    return Stars(
        l=random.uniform(0, 360, COUNT),
        b=np.degrees(np.arcsin(random.uniform(-1, 1, COUNT))),
        distance=distance,
        distance_error=0.05 * distance if errors else None,
        extinction=1e-3 * distance + sigma * random.standard_normal(COUNT),
        extinction_error=sigma,
        survey=random.choice(["one", "two"], COUNT) if survey else None,
    )


@pytest.mark.parametrize("errors", [False, True])
def test_bins_are_as_many_as_allowed_and_hold_all_stars(errors):
    stars = sky(errors=errors)
    found, fewest = merged(stars, 5000)
    assert 2500 < len(found) <= 5000
    assert fewest >= 2
    assert found.merged.min() == pytest.approx(1.0)
    # Less than all by unequal errors and weights.
    assert found.merged.sum() == pytest.approx(COUNT, rel=0.2)
    again, _ = merged(stars, COUNT)
    assert len(found) < len(again) <= COUNT


def test_means_have_the_scatter_that_they_state():
    # Exact distances: the extinction of a bin is that of its mean distance.
    found, _ = merged(sky(errors=False), 5000)
    z = (found.extinction - 1e-3 * found.distance) / found.extinction_error
    assert abs(z.mean()) < 0.05
    assert 0.95 < z.std() < 1.1
    assert found.extinction_error.mean() < 0.7 * sky().extinction_error.mean()


def test_a_bin_of_two_stars_has_their_weighted_means():
    stars = Stars(
        l=np.array([10.0, 10.01, 200.0]),
        b=np.array([0.0, 0.01, 0.0]),
        distance=np.array([100.0, 101.0, 300.0]),
        distance_error=np.array([5.0, 7.0, 9.0]),
        extinction=np.array([0.3, 0.4, 1.0]),
        extinction_error=np.array([0.1, 0.2, 0.1]),
    )
    found, _ = merged(stars, 2)
    two, one = found.l.argsort()
    # Weights of outliers differ little from one.
    p = found.merged[two]
    assert 1 < p < 2
    weight = (found.extinction[two] - 0.4) / (0.3 - 0.4)
    assert weight == pytest.approx(0.8, abs=0.05)
    assert found.distance[two] == pytest.approx(101 - weight)
    variance = weight * (25 + (1 - weight) ** 2) + (1 - weight) * (49 + weight**2)
    assert found.distance_error[two] == pytest.approx(variance**0.5)
    assert found.distance_std[two] == pytest.approx((variance / p) ** 0.5)
    assert found.l[one] == pytest.approx(200.0)
    assert found.extinction[one] == pytest.approx(1.0)
    assert found.extinction_error[one] == pytest.approx(0.1)


def test_outliers_hardly_move_a_mean():
    stars = sky(errors=False)
    wrong = stars.extinction.copy()
    wrong[::50] += 2.0
    plain, _ = merged(stars, 5000)
    found, _ = merged(replace(stars, extinction=wrong), 5000)
    # Unweighted means would move by 0.04.
    assert abs((found.extinction - plain.extinction).mean()) < 0.01


def test_any_order_of_rows_gives_the_same_bins():
    stars = sky(survey=True)
    rows = np.random.default_rng(1).permutation(COUNT)
    one, two = (merged(each, 5000)[0] for each in (stars, stars.select(rows)))
    for name, column in one.columns().items():
        if name == "survey":
            assert (column == two.survey).all()
        else:
            np.testing.assert_allclose(column, two.columns()[name])
    assert set(one.survey) == {"one", "two"}
