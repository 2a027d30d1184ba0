"""The law of measurements is found again from its own draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student_t

from dustmap.residual.predictive import Measured, PredictiveLaw, learn_law

LAW = PredictiveLaw(
    coefficients=np.array([0.3, -0.2, 0.3, 0.1, 0.2, 0.0, 0.4]),
    centres=np.log([0.15, 1.0, 0.03, 900.0]),
    degrees=4.0,
    slopes=np.array(
        [[0.02, 0.05, 0.01, 0.0, 0.1, 0.02, 0.0, 0.03, 0.0, 0.01], 10 * [0.0]]
    ),
    ends=np.array([[-3.4, -2.2], [2.7, 0.9]]),
    surveys=("one", "two"),
)


def stars(count: int, rng: np.random.Generator) -> Measured:
    """Stars of two surveys."""
    return Measured(
        std=rng.uniform(0.05, 0.3, count),
        extinction=rng.lognormal(0.0, 0.8, count),
        placing=rng.uniform(1.0, 100.0, count),
        distance=rng.uniform(100.0, 3000.0, count),
        survey=rng.choice(["one", "two"], count),
    )


def test_it_is_found_from_draws() -> None:
    rng = np.random.default_rng(1)
    seen, unseen = stars(20_000, rng), stars(20_000, rng)
    places = (seen.logarithms() - LAW.centres)[:, 2:]
    law = replace(LAW, ends=np.quantile(places, (0.01, 0.99), axis=0))
    errors = [
        law.shift(some) + law.scale(some) * rng.standard_t(law.degrees, 20_000)
        for some in (seen, unseen)
    ]
    found = learn_law(errors[0], seen)
    assert found.surveys == law.surveys
    assert found.degrees == pytest.approx(law.degrees, rel=0.1)
    np.testing.assert_allclose(found.scale(unseen), law.scale(unseen), rtol=0.12)
    wrong = found.shift(unseen) - law.shift(unseen)
    assert np.sqrt(np.mean(wrong**2)) < 0.05 * np.std(law.shift(unseen))
    # Only the stars of the first survey have one.
    assert not found.slopes[1].any()
    z = np.abs(found.z_scores(errors[1] - found.shift(unseen), found.scale(unseen)))
    assert np.mean(z < 1) == pytest.approx(0.6827, abs=0.012)
    assert np.mean(z < 1.96) == pytest.approx(0.95, abs=0.006)


def test_its_numbers_are_those_of_a_student_t() -> None:
    rng = np.random.default_rng(2)
    some = stars(50, rng)
    scale = LAW.scale(some)
    expected = student_t(LAW.degrees, scale=scale)
    np.testing.assert_allclose(LAW.std(scale), expected.std())
    np.testing.assert_allclose(LAW.quantile(scale, 0.2), expected.ppf(0.2))
    np.testing.assert_allclose(
        LAW.z_scores(LAW.quantile(scale, 0.975), scale), 1.959964, rtol=1e-6
    )
    # Far outliers keep finite scores.
    assert np.isfinite(LAW.z_scores(1e6 * scale, scale)).all()


def test_outliers_do_not_widen_the_intervals_of_others() -> None:
    rng = np.random.default_rng(5)
    seen, unseen = stars(6_000, rng), stars(20_000, rng)

    def drawn(some: Measured) -> np.ndarray:
        wide = np.where(rng.random(len(some.std)) < 0.02, 10.0, 1.0)
        return wide * some.std * rng.standard_normal(len(some.std))

    law, errors = learn_law(drawn(seen), seen), drawn(unseen)
    assert law.outliers == pytest.approx(0.02, abs=0.008)
    scale = law.scale(unseen)
    for probability in (0.6827, 0.95, 0.99):
        high = law.quantile(scale, 0.5 + probability / 2)
        held = np.abs(errors) < high
        assert np.mean(held) == pytest.approx(probability, abs=0.012)
        np.testing.assert_allclose(high, -law.quantile(scale, 0.5 - probability / 2))
    # z-scores are those of the quantiles.
    z = law.z_scores(law.quantile(scale, 0.975), scale)
    np.testing.assert_allclose(z, 1.959964, rtol=1e-6)
    assert law.quantile(scale, 0.5) == pytest.approx(0)
    # The density integrates to one, with the standard deviation of the law.
    x = np.linspace(-400, 400, 400_001)
    density = np.exp(replace(law, degrees=8.0).log_density(x, np.ones(1)))
    variance = replace(law, degrees=8.0).std(np.ones(1))[0] ** 2
    assert np.trapezoid(density, x) == pytest.approx(1, rel=1e-4)
    assert np.trapezoid(density * x**2, x) == pytest.approx(variance, rel=1e-2)


def test_an_unknown_survey_has_no_term() -> None:
    one = replace(stars(5, np.random.default_rng(3)), survey=np.array(["other"] * 5))
    np.testing.assert_allclose(
        LAW.scale(one), LAW.scale(replace(one, survey=None)), rtol=1e-12
    )
    assert not LAW.shift(one).any()


def test_a_few_stars_leave_it_near_the_stated_errors() -> None:
    rng = np.random.default_rng(4)
    some = stars(30, rng)
    found = learn_law(some.std * rng.standard_normal(30), some)
    assert not found.slopes.any()
    assert 0.65 < np.median(found.scale(some) / some.std) < 1.2
    assert found.degrees > 4
