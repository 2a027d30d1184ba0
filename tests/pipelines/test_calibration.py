"""Calibration figures against distributions whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from pipelines.base.calibration import (
    LEVELS,
    by_bins,
    calibrate,
    coverage,
    even_edges,
    z_scores,
    z_scores_lognormal,
)


def test_coverage_of_quantiles_of_a_normal_is_the_level():
    z = ndtri((np.arange(20_000) + 0.5) / 20_000)
    for found in coverage(z):
        assert found.held == pytest.approx(found.level, abs=1e-4)
        assert found.error == pytest.approx(
            np.sqrt(found.level * (1 - found.level) / 20_000)
        )
    assert [found.level for found in coverage(z)] == list(LEVELS)


def drawn_from_a_lognormal(noise, count=10_000, p50=0.7, s=0.6):
    rng = np.random.default_rng(1)
    dust = p50 * np.exp(s * rng.standard_normal(count))
    full = np.full(count, 1.0)
    quantiles = {
        "p16": p50 * np.exp(-s) * full,
        "p50": p50 * full,
        "p84": p50 * np.exp(s) * full,
    }
    return dust + noise * rng.standard_normal(count), noise * full, quantiles


@pytest.mark.parametrize("noise", [0.02, 0.3, 2.0])
def test_z_scores_of_the_lognormal_that_was_drawn_from_are_normal(noise):
    observed, error, quantiles = drawn_from_a_lognormal(noise)
    z = z_scores_lognormal(observed, error, quantiles)
    found = calibrate(z, z)
    assert found.z_mean == pytest.approx(0, abs=0.04)
    assert found.z_std == pytest.approx(1, abs=0.03)
    for level in found.coverage:
        assert level.held == pytest.approx(level.level, abs=4 * level.error)


def test_quantiles_of_95_percent_reach_as_far_as_they_are_told():
    full = np.ones(2)
    told = {"p2_5": 0.1, "p16": 0.5, "p50": 1.0, "p84": 2.0, "p97_5": 10.0}
    said = {name: value * full for name, value in told.items()}
    z = z_scores_lognormal(np.array([2.0, 10.0]), 1e-6 * full, said)
    np.testing.assert_allclose(z, [1.0, 1.96], atol=0.021)


@pytest.mark.parametrize("far", [-60.0, 60.0])
def test_an_outlier_keeps_its_z(far):
    full = np.ones(1)
    narrow = {"p16": full * np.exp(-1e-6), "p50": full, "p84": full * np.exp(1e-6)}
    z = z_scores_lognormal(full + far * 0.1, 0.1 * full, narrow)
    assert z == pytest.approx([far], rel=1e-3)


def test_a_ray_that_sees_no_dust_is_judged_by_its_error():
    none = np.zeros(1)
    z = z_scores_lognormal(
        np.array([0.2]), np.array([0.1]), {"p16": none, "p50": none, "p84": none}
    )
    assert z == pytest.approx([2.0], abs=1e-6)


def test_bins_hold_every_star_once_and_its_own_figures():
    distance = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    residual = np.array([1.0, 1.0, -2.0, -2.0, -2.0])
    bins = by_bins(distance, [0.0, 2.0, 3.0, 4.0], residual, residual)
    assert [one.calibration.stars for one in bins] == [2, 1, 2]
    assert [one.calibration.bias for one in bins] == [1.0, -2.0, -2.0]
    assert by_bins(distance, [0.0, 2.0, 10.0, 20.0], residual, residual)[-1].high == 10


def test_even_edges_share_the_stars_evenly_and_survive_ties():
    value = np.random.default_rng(0).gamma(2.0, size=1000)
    bins = by_bins(value, even_edges(value, 5), value, value)
    assert [one.calibration.stars for one in bins] == [200] * 5
    same = np.full(7, 3.0)
    [only] = by_bins(same, even_edges(same, 4), same, same)
    assert only.calibration.stars == 7


def test_errors_of_zero_are_refused():
    one = np.ones(2)
    with pytest.raises(ValueError, match="2 stars have neither"):
        z_scores(one, 0 * one, one, 0 * one)
    with pytest.raises(ValueError, match="must be positive"):
        z_scores_lognormal(one, 0 * one, {"p16": one, "p50": one, "p84": one})


@pytest.mark.parametrize("residual", [np.array([]), np.array([np.nan])])
def test_nothing_and_nan_are_refused(residual):
    with pytest.raises(ValueError, match=r"at least one|finite"):
        calibrate(residual, residual)
