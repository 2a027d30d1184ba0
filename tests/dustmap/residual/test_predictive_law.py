"""The law of measurements is found again from its own draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.special import logit, ndtr
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
        distance_std=rng.uniform(1.0, 100.0, count),
        distance=rng.uniform(100.0, 3000.0, count),
        survey=rng.choice(["one", "two"], count),
    )


def drawn(law: PredictiveLaw, some: Measured, rng: np.random.Generator) -> np.ndarray:
    """Differences of stars by the law's definition, from beta deviates."""
    least, half, count = 1.25, law.degrees / 2, len(some.std)
    a, b = (least + (half - least) * np.exp(s * law.skewness) for s in (1, -1))
    t = np.sqrt(a + b) * np.sinh(logit(rng.beta(a, b, 400_000)) / 2)
    t, wide = t[:count] - t.mean(), rng.random(count) < law.outliers
    core = law.scale(some) * t
    return law.shift(some) + np.where(wide, law.excess + law.width * t, core)


def assert_calibrated(z: np.ndarray) -> None:
    """Shares of z-scores below the ends of intervals, to four standard errors."""
    for end in (-1.96, -1.0, 0.0, 1.0, 1.96):
        chance = 4 * np.sqrt(ndtr(end) * ndtr(-end) / len(z))
        assert np.mean(z < end) == pytest.approx(ndtr(end), abs=chance)


@pytest.mark.parametrize("skewness", [0.8])
def test_it_is_found_from_draws(skewness: float) -> None:
    rng = np.random.default_rng(1)
    seen, unseen = stars(12_000, rng), stars(12_000, rng)
    places = (seen.logarithms() - LAW.centres)[:, 2:]
    ends = np.quantile(places, (0.01, 0.99), axis=0)
    law = replace(LAW, ends=ends, skewness=skewness)
    errors = [drawn(law, some, rng) for some in (seen, unseen)]
    found = learn_law(errors[0], seen)
    assert found.surveys == law.surveys
    assert found.degrees == pytest.approx(law.degrees, rel=0.15)
    assert found.skewness == pytest.approx(skewness, abs=0.08)
    np.testing.assert_allclose(found.scale(unseen), law.scale(unseen), rtol=0.12)
    wrong = found.shift(unseen) - law.shift(unseen)
    assert np.sqrt(np.mean(wrong**2)) < 0.05 * np.std(law.shift(unseen))
    # Only the stars of the first survey have one.
    assert not found.slopes[1].any()
    assert_calibrated(found.z_scores(errors[1], unseen))


def test_stars_that_are_too_red_leave_both_tails_in_place() -> None:
    # As real hot stars: of a symmetric law 6% lie above p97.5 and 0.1% below p2.5.
    rng = np.random.default_rng(7)
    law = PredictiveLaw(
        coefficients=np.array([-0.5, 0.0, 0.7, 0.0, 0.0]),
        centres=LAW.centres,
        degrees=6.0,
        slopes=np.zeros((1, 10)),
        ends=LAW.ends,
        skewness=0.8,
        outliers=0.05,
        width=0.3,
        excess=0.45,
    )
    seen, unseen = (replace(stars(4_000, rng), survey=None) for _ in range(2))
    errors = [drawn(law, some, rng) for some in (seen, unseen)]
    found = learn_law(errors[0], seen)
    assert_calibrated(found.z_scores(errors[1], unseen))
    # At small and at large extinctions, where outliers are as wide.
    z = found.z_scores(errors[1], unseen)
    dark = unseen.extinction > np.median(unseen.extinction)
    for some in (dark, ~dark):
        assert np.mean(z[some] > 1.96) == pytest.approx(0.025, abs=0.011)
        assert np.mean(z[some] < -1.96) == pytest.approx(0.025, abs=0.011)
    # A symmetric law would not have them there.
    even = errors[1] / (found.scale(unseen) * np.sqrt(1.5))
    assert np.mean(even > 1.96) > 2 * np.mean(even < -1.96)


def test_mirrored_stars_have_the_mirrored_law() -> None:
    rng = np.random.default_rng(8)
    some = stars(500, rng)
    errors = some.std * (rng.gamma(3.0, 1.0, 500) - 3.0)
    one, other = learn_law(errors, some), learn_law(-errors, some)
    assert one.skewness == pytest.approx(-other.skewness, rel=0.02)
    assert one.skewness > 0.3
    for probability in (0.025, 0.5, 0.84):
        mirrored = other.quantile(some, 1 - probability)
        np.testing.assert_allclose(
            one.quantile(some, probability), -mirrored, rtol=0.02, atol=0.01
        )


def test_symmetric_stars_have_a_symmetric_law() -> None:
    rng = np.random.default_rng(6)
    some = stars(1_500, rng)
    found = [learn_law(some.std * rng.standard_t(5, 1_500), some) for _ in range(2)]
    skewness = [law.skewness for law in found]
    # Their standard errors are 0.06.
    assert np.abs(skewness).max() < 0.24
    assert np.abs(np.mean(skewness)) < 0.12


def test_laws_of_few_stars_are_widened() -> None:
    # They fit those stars too closely: without it their 95% intervals hold 93%.
    rng = np.random.default_rng(9)
    unseen, z = stars(1_000, rng), []
    for _ in range(8):
        seen = stars(60, rng)
        found = learn_law(seen.std * rng.standard_t(5, 60), seen)
        z.append(found.z_scores(unseen.std * rng.standard_t(5, 1_000), unseen))
    assert np.mean(np.abs(z) < 1.96) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("outliers", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("skewness", [-1.0, 0.0, 0.6])
@pytest.mark.parametrize("degrees", [2.6, 5.0, 30.0])
def test_density_quantiles_and_scores_are_of_one_distribution(
    degrees: float, skewness: float, outliers: float
) -> None:
    changes = {"skewness": skewness, "outliers": outliers, "width": 0.8, "excess": 1.1}
    law = replace(LAW, degrees=degrees, **changes)
    # One star, at nodes evenly in arsinh of its error.
    star = stars(1, np.random.default_rng(3))
    nodes = np.linspace(-18.0, 18.0, 40_001)
    x, weight = np.sinh(nodes), np.cosh(nodes)
    density = weight * np.exp(law.log_density(x, star.select(np.zeros(40_001, int))))
    assert np.trapezoid(density, nodes) == pytest.approx(1, abs=1e-6)
    mean = np.trapezoid(x * density, nodes)
    assert law.mean(star)[0] == pytest.approx(mean, abs=1e-4)
    if degrees > 4:
        spread = np.sqrt(np.trapezoid((x - mean) ** 2 * density, nodes))
        assert law.std(star)[0] == pytest.approx(spread, rel=1e-2)
    # Below each quantile is its probability, in the density and in the z-scores.
    last, below = -np.inf, cumulative_trapezoid(density, nodes, initial=0.0)
    for z in (-3.0, -1.96, -1.0, 0.0, 0.5, 1.96, 3.0):
        found = law.quantile(star, float(ndtr(z)))
        assert found[0] > last
        last = found[0]
        assert law.z_scores(found, star)[0] == pytest.approx(z, abs=1e-8)
        assert np.interp(last, x, below) == pytest.approx(ndtr(z), abs=1e-4)


def test_its_numbers_are_those_of_a_student_t() -> None:
    rng = np.random.default_rng(2)
    some = stars(50, rng)
    expected = student_t(LAW.degrees, loc=LAW.shift(some), scale=LAW.scale(some))
    np.testing.assert_allclose(LAW.std(some), expected.std())
    np.testing.assert_allclose(LAW.mean(some), expected.mean())
    np.testing.assert_allclose(LAW.quantile(some, 0.2), expected.ppf(0.2))
    np.testing.assert_allclose(
        LAW.log_density(some.std, some), expected.logpdf(some.std)
    )
    # Far outliers keep finite scores, on both sides.
    far = 1e9 * some.std
    for sign in (1, -1):
        assert (sign * LAW.z_scores(sign * far, some) > 5).all()
        assert np.isfinite(LAW.z_scores(sign * far, some)).all()


def test_stars_outside_the_map_have_no_quantiles() -> None:
    some = stars(5, np.random.default_rng(2))
    some.std[2] = np.nan
    found = [LAW.quantile(some, 0.975), LAW.z_scores(np.ones(5), some)]
    for values in found:
        np.testing.assert_array_equal(np.isnan(values), np.arange(5) == 2)


def test_outliers_do_not_widen_the_intervals_of_others() -> None:
    rng = np.random.default_rng(5)
    seen, unseen = stars(6_000, rng), stars(20_000, rng)

    def scattered(some: Measured) -> np.ndarray:
        wide = np.where(rng.random(len(some.std)) < 0.02, 10.0, 1.0)
        return wide * some.std * rng.standard_normal(len(some.std))

    law, errors = learn_law(scattered(seen), seen), scattered(unseen)
    assert law.outliers == pytest.approx(0.02, abs=0.008)
    for probability in (0.6827, 0.95, 0.99):
        low, high = (
            law.quantile(unseen, 0.5 + sign * probability / 2) for sign in (-1, 1)
        )
        held = (low < errors) & (errors < high)
        assert np.mean(held) == pytest.approx(probability, abs=0.012)
        # Beyond these, a side has but some sixty outliers to learn from.
        if probability < 0.99:
            np.testing.assert_allclose(high, -low, rtol=0.15)


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
