"""Isotonic regression along rays, against SciPy's of one curve."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.stats import lognorm, norm

from dustmap.isotonic import Ranked, non_decreasing


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 6))
def test_every_curve_is_the_weighted_isotonic_regression_of_its_ray(seed, most, rays):
    rng = np.random.default_rng(seed)
    starts = np.append(0, rng.integers(0, most + 1, rays).cumsum())
    # Ties, and weights over many orders of magnitude.
    curves = np.exp(rng.normal(0.1, 1, (3, starts[-1])).cumsum(axis=1))
    curves[1] = np.ceil(curves[1])
    variances = 10 ** rng.normal(0, 3, starts[-1])
    found = non_decreasing(curves, variances, starts)
    for curve, rising in zip(curves, found, strict=True):
        for begin, end in pairwise(starts):
            if end > begin:
                part, weights = curve[begin:end], 1 / variances[begin:end]
                expected = isotonic_regression(np.log(part), weights=weights).x
                np.testing.assert_allclose(
                    np.log(rising[begin:end]), expected, rtol=1e-9, atol=1e-9
                )
                assert (np.diff(rising[begin:end]) >= 0).all()


def test_ranks_keep_their_order_and_a_curve_that_rises_stays_as_it_is():
    rng = np.random.default_rng(2)
    starts = np.arange(0, 1001, 20)
    variances = rng.lognormal(0, 1, 1000)
    low = np.exp(rng.normal(size=1000))
    ranks = np.stack([low, low + rng.exponential(1, 1000), np.arange(1, 1001.0)])
    before = ranks.copy()
    found = non_decreasing(ranks, variances, starts)
    assert (found[0] <= found[1] + 1e-12).all()
    np.testing.assert_array_equal(found[2], ranks[2])
    np.testing.assert_array_equal(ranks, before)


@pytest.mark.parametrize("variance", [0.0, np.nan])
def test_what_has_no_variance_stays_and_does_not_count(variance):
    curves = np.array([[0.0, 3.0, 1.0, np.nan]])
    variances = np.array([variance, 1.0, 3.0, np.nan])
    found = non_decreasing(curves, variances, np.array([0, 4]))
    between = 3.0**0.75
    np.testing.assert_allclose(found, [[0.0, between, between, np.nan]])


# The ratios of standard deviations that `Ranked.samples` states.
STATED = {(8, 0.3): 1.00, (8, 0.5): 0.98, (8, 1.0): 0.89, (8, 2.0): 0.70}
STATED |= {(24, 0.3): 0.99, (24, 0.5): 0.98, (24, 1.0): 0.93, (24, 2.0): 0.79}


@pytest.mark.parametrize(("count", "std"), STATED)
def test_samples_are_means_of_equal_parts_and_scatter_by_what_is_stated(count, std):
    found = Ranked.log_normal(np.array([1.0]), np.array([std]))
    samples = found.samples(np.arange(count)[:, None])[:, 0]
    # A log-normal between two quantiles has the mean of a normal moved by its σ.
    sigma = np.sqrt(np.log1p(std**2))
    law = lognorm(sigma, scale=np.exp(-(sigma**2) / 2))
    ends = norm.ppf(np.linspace(0, 1, count + 1))
    parts = law.mean() * count * np.diff(norm.cdf(ends - sigma))
    # Between ranks half a deviate apart values are taken to be linear.
    np.testing.assert_allclose(samples, parts, rtol=0.04, atol=0.04 * std)
    assert samples.mean() == pytest.approx(law.mean(), rel=1e-4)
    ratio = samples.std(ddof=1) / law.std()
    assert ratio == pytest.approx(STATED[count, std], abs=0.006)
