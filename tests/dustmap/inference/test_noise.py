"""The noise of observations: distance errors, outliers, and what they cost a fit."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import dense_torus
import numpy as np
import pytest
import scipy.stats
import torch

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    GaussLegendre,
    LineIntegrals,
)
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.state import InferenceState
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.noise import Normal, StudentT
from dustmap.whitening import TorusWhitening

RULE = GaussLegendre(count=8)
DENSITY = 0.6


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


@functools.cache
def whitening(variance=0.5):
    kernel = dense_torus.whitening("matern52", 2, 1).kernel
    kernel = kernel.with_parameters({"variance": torch.tensor(variance).double()})
    return TorusWhitening(kernel, dense_torus.torus(2))


def log_normal(functionals):
    return LogNormal(whitening(), functionals, mean=ConstantMean(value=DENSITY))


def lengths_of(ends):
    return torch.linalg.vector_norm(ends, dim=1)


def around(ends, spread):
    """The segments from ``d − σ_d`` to ``d + σ_d``."""
    share = (spread / lengths_of(ends))[:, None]
    return LineIntegrals((1 + share) * ends, RULE, start=(1 - share) * ends)


def fit_of(noise, *, subgrid=True):
    model = log_normal(LineIntegrals(0.7 * dense_torus.inside(2, 6, 3), RULE))
    settings = FullBatch(subgrid_noise=subgrid)
    return model, InferenceState(model, torch.ones(6), noise, settings, rng())


def test_the_parts_of_the_noise_add_up():
    ends = 0.7 * dense_torus.inside(2, 6, 3)
    blur = around(ends, 0.2 * lengths_of(ends))
    stated = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    scale = torch.linspace(0.3, 0.8, 6, dtype=torch.float64)
    noise = Normal(stated=stated, blur=blur, blur_scale=scale)
    model, with_grid = fit_of(noise)
    _, without = fit_of(noise, subgrid=False)
    eps = torch.randn(3, model.latent_size, generator=rng(), dtype=torch.float64)
    v = torch.linspace(1.0, 2.0, 6, dtype=torch.float64)
    W = model.at(blur).weights.to_dense()
    squares = torch.stack([(scale * (W @ model.density(one))) ** 2 for one in eps])
    exact = stated + squares.mean(dim=0)
    for fit, total in ((without, exact), (with_grid, exact + v)):
        found = fit.noise.given_unresolved(fit.unresolved(eps, v)).variance
        torch.testing.assert_close(found, total, rtol=1e-12, atol=0)
    noise = replace(with_grid.noise, weights=torch.full_like(v, 0.25))
    found = noise.given_unresolved(with_grid.unresolved(eps, v)).variance
    torch.testing.assert_close(found, 4 * (exact + v), rtol=1e-12, atol=0)


def test_in_a_constant_density_blur_is_density_times_distance_error():
    ends = 0.7 * dense_torus.inside(2, 6, 3)
    spread = torch.linspace(0.0, 0.3, 6, dtype=torch.float64) * lengths_of(ends)
    half = torch.full((6,), 0.5, dtype=torch.float64)
    noise = Normal(stated=half, blur=around(ends, spread), blur_scale=half)
    model, fit = fit_of(noise)
    eps = torch.zeros(1, model.latent_size, dtype=torch.float64)
    found = fit.unresolved(eps, torch.zeros_like(half))
    torch.testing.assert_close(found, (DENSITY * spread) ** 2, rtol=1e-10, atol=1e-12)


def reweighed(residual, **options):
    """The noise after residuals in standard deviations ``sqrt(Σ) = 2``."""
    missed = 2 * torch.as_tensor(residual, dtype=torch.float64)
    kind = StudentT if "degrees" in options else Normal
    noise = kind(stated=torch.full_like(missed, 4.0), **options)
    noise = noise.prepared(missed, 1.0, rng())
    return noise.updated(missed, 0.0, torch.zeros_like(missed))


def test_weights_are_those_of_a_scale_mixture():
    residual = np.array([0.0, 1.0, -2.0, 20.0])
    weighing = reweighed(residual, degrees=3.0, learn_degrees=False)
    np.testing.assert_allclose(weighing.weights, 4 / (3 + residual**2), rtol=1e-12)
    assert weighing.degrees == 3.0
    assert float(weighing.weights[-1]) < 0.1


def quantiles(distribution, count):
    return distribution.ppf((np.arange(count) + 0.5) / count)


def test_normal_residuals_are_not_weighed():
    weighing = reweighed(quantiles(scipy.stats.norm(), 400), degrees=4.0)
    assert weighing.degrees == 100.0
    assert bool((weighing.weights == 1).all())


@pytest.mark.parametrize("degrees", [2.0, 3.0, 6.5])
def test_degrees_are_learnt_from_residuals(degrees):
    weighing = reweighed(quantiles(scipy.stats.t(degrees), 3000), degrees=20.0)
    assert weighing.degrees == pytest.approx(degrees, rel=0.35)
    draws = scipy.stats.t(degrees).rvs(3000, random_state=np.random.default_rng(4))
    assert reweighed(draws, degrees=20.0).degrees == pytest.approx(degrees, rel=0.35)


def test_an_outlier_among_normal_residuals_is_weighed_down():
    # One in a hundred, by 20 standard deviations; the others are hardly touched.
    residual = np.append(quantiles(scipy.stats.norm(), 99), 20.0)
    weighing = reweighed(residual, degrees=4.0)
    assert weighing.degrees < 50
    assert float(weighing.weights[-1]) < 0.1
    assert float(weighing.weights[:-1].median()) > 0.9


def test_what_neighbours_miss_together_is_not_held_against_them():
    # Twenty observations that see 8 σ too much, and one of the others by itself.
    residual = np.append(quantiles(scipy.stats.norm(), 59), 8.0)
    residual = np.append(residual, 8.0 + quantiles(scipy.stats.norm(), 20))
    groups = torch.cat(
        [torch.arange(60).expand(60, -1)[:, ::3], torch.arange(60, 80).expand(20, -1)]
    )
    alone = reweighed(residual, degrees=3.0, learn_degrees=False)
    together = reweighed(residual, degrees=3.0, learn_degrees=False, neighbours=groups)
    assert float(alone.weights[60:].max()) < 0.15
    assert float(together.weights[60:].median()) > 0.9
    for weighing in (alone, together):
        assert float(weighing.weights[59]) < 0.1


@pytest.mark.parametrize("excess", [0.0, 3.0])
def test_a_common_noise_is_learnt_from_the_middle_of_the_residuals(excess):
    # In standard deviations; a tenth is far off and says nothing of the others.
    residual = math.sqrt(1 + excess) * quantiles(scipy.stats.norm(), 1000)
    weighing = reweighed(residual, learn_common=True)
    assert weighing.common == pytest.approx(4 * excess, rel=0.01, abs=0.02)
    far = np.append(residual, np.full(100, 30.0))
    spoilt = reweighed(far, learn_common=True).common
    assert 4 * excess - 0.02 <= spoilt < 4 * excess + 0.35 * 4 * (1 + excess)
    none = torch.zeros(len(residual), dtype=torch.float64)
    found = weighing.given_unresolved(none).variance
    torch.testing.assert_close(found, none + 4.0 + weighing.common)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blur": LineIntegrals(torch.ones(2, 2), RULE)}, "neither"),
        ({"blur_scale": torch.ones(3)}, "neither"),
        (
            {
                "blur": LineIntegrals(torch.ones(2, 2), RULE),
                "blur_scale": torch.ones(2),
            },
            "got 2",
        ),
        ({"degrees": 1.0}, "exceed 1"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        StudentT(stated=torch.ones(3), **options)


SETTINGS = FullBatch(solver=ConjugateGradients(rtol=1e-6), samples=8)
COUNT = 150


def mock(seed, *, spread=0.0):
    """Stated ends, model of the stated ends, the extinction there, and that observed.

    With a relative spread the observed stars are at another distance.
    """
    generator = rng(seed)
    stated = 0.75 * dense_torus.inside(2, COUNT, 100 + seed)
    model = log_normal(LineIntegrals(stated, RULE))
    truth = model.white_noise(np.random.default_rng(1))
    error = spread * torch.randn(COUNT, generator=generator, dtype=torch.float64)
    # Within the box, where stars of three standard deviations would not be.
    ends = (1 + error.clamp(-0.3, 0.3))[:, None] * stated
    there = model.at(LineIntegrals(ends, RULE)).apply(truth)
    return stated, model, model.apply(truth), there, generator


def fitted_error(model, y, noise, exact):
    """RMSE of the mean over samples at the stated ends."""
    result = infer(model, y, noise, settings=SETTINGS, generator=rng(9))
    seen = model.apply(result.samples).mean(dim=0)
    return float(((seen - exact) ** 2).mean().sqrt()), result


def both_errors(seed, *, outliers):
    """RMSE by Student-T and by normal noise."""
    _, model, exact, _, generator = mock(seed)
    sigma = 0.05 * float(exact.mean())
    white = torch.randn(COUNT, generator=generator, dtype=torch.float64)
    y = exact + sigma * white
    chosen = torch.randperm(COUNT, generator=generator)[: int(outliers * COUNT)]
    y[chosen] += 30 * sigma
    variance = torch.full_like(y, sigma**2)
    student, result = fitted_error(
        model, y, StudentT(stated=variance, degrees=4.0), exact
    )
    plain, _ = fitted_error(model, y, Normal(stated=variance), exact)
    return student, plain, result, chosen


def test_gross_outliers_hardly_hurt_a_student_t_fit():
    errors = []
    for seed in range(2):
        student, plain, result, chosen = both_errors(seed, outliers=0.05)
        errors.append((student, plain))
        assert result.degrees < 10
        assert float(result.weights[chosen].max()) < 0.1
        assert float(result.weights.median()) > 0.8
    student, plain = np.array(errors).mean(axis=0)
    # Six times as far off.
    assert plain > 3 * student


def test_on_clean_data_a_student_t_fit_is_as_good():
    errors = np.array([both_errors(seed, outliers=0.0)[:2] for seed in range(3)])
    student, plain = errors.mean(axis=0)
    assert student < 1.02 * plain


def distance_errors(seed, spread):
    """RMSE with distance errors that the fit knows, and that it ignores."""
    stated, model, exact, there, generator = mock(seed, spread=spread)
    sigma = 0.02 * float(exact.mean())
    y = there + sigma * torch.randn(COUNT, generator=generator, dtype=torch.float64)
    variance = torch.full_like(y, sigma**2)
    plain, _ = fitted_error(model, y, Normal(stated=variance), exact)
    width = spread * lengths_of(stated)
    noise = Normal(
        stated=variance,
        blur=around(stated, width),
        blur_scale=torch.full_like(width, 0.5),
    )
    seen = DistanceMarginalizedIntegrals(stated, width, 1.3 * lengths_of(stated), RULE)
    result = infer(model.at(seen), y, noise, settings=SETTINGS, generator=rng(9))
    at_ends = model.apply(result.samples).mean(dim=0)
    return float(((at_ends - exact) ** 2).mean().sqrt()), plain


def test_distance_errors_that_are_told_hurt_less():
    # 0.074 instead of 0.090.
    errors = [distance_errors(seed, 0.2) for seed in range(4)]
    known, ignored = np.array(errors).mean(axis=0)
    assert ignored > 1.1 * known
