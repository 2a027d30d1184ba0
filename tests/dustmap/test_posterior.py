"""Moments and draws of functionals: against dense algebra, and calibrated."""

from __future__ import annotations

import functools

import dense_torus
import numpy as np
import pytest
import scipy.stats
import torch
from reference import (
    Covariance,
    functional_covariance,
    points_as_rows,
    rows_of,
    woodbury_posterior,
)

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.posterior import Posterior

COUNT = 1200


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


@functools.cache
def fitted(refinement, *, samples=COUNT):
    """A posterior from mixed data, with dense mean and covariance of ε."""
    functionals = dense_torus.mixed("matern32", 2, 3)
    model = dense_torus.model("matern32", 2, functionals, refinement=refinement)
    oracle = dense_torus.dense("matern32", 2, model)
    n = len(functionals)
    y = 1 + torch.randn(n, generator=rng(), dtype=torch.float64)
    noise = 0.05 + 0.1 * torch.rand(n, generator=rng(2), dtype=torch.float64)
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-9), samples=samples, block=500
    )
    result = infer(model, y, noise, settings=settings, generator=rng(4))
    patient = dense_torus.model(
        "matern32", 2, functionals, refinement=refinement, residual_count=COUNT
    )
    posterior = Posterior(model=patient, mean=result.mean, samples=result.samples)
    mean, S = woodbury_posterior(
        oracle.features, y.numpy() - oracle.offset, result.noise_variance.numpy()
    )
    return posterior, mean, S


def prediction(posterior, others, mean, S):
    """Mean, covariance of the explained part and ``v_*`` of functionals, dense."""
    elsewhere = dense_torus.dense("matern32", 2, posterior.model.at(others))
    Phi = elsewhere.features
    centre = elsewhere.offset + Phi @ mean
    return centre, Phi @ S @ Phi.T, elsewhere.covariance - Phi @ Phi.T


@pytest.mark.parametrize("refinement", [1, 2])
def test_moments_are_those_of_dense_algebra_with_the_unresolved_part(refinement):
    posterior, mean, S = fitted(refinement)
    others = dense_torus.mixed("matern32", 2, 60)
    centre, explained, residual = prediction(posterior, others, mean, S)
    moments = posterior.moments(others)
    np.testing.assert_allclose(moments.mean, centre, rtol=1e-6)
    explained, residual = np.diag(explained), np.diag(residual)
    if refinement == 1:
        assert np.abs(residual).max() < 1e-10
        # About the exact mean, so that the number of samples is the divisor.
        scatter = posterior.model.at(others).apply(posterior.samples).numpy() - centre
        own = (scatter**2).mean(axis=0)
        np.testing.assert_allclose(moments.std.numpy() ** 2, own, rtol=1e-5)
    else:
        # It matters here: leaving it out would be seen.
        assert np.median(residual / explained) > 0.15
    # Both parts are mean squares of as many normal draws.
    error = np.sqrt((explained**2 + residual**2) * 2 / COUNT)
    z = (moments.std.numpy() ** 2 - explained - residual) / error
    assert np.abs(z).max() < 4
    assert 0.5 < z.std() < 1.5


def test_draws_have_the_joint_covariance_of_dense_algebra():
    posterior, mean, S = fitted(2)
    others = dense_torus.mixed("matern32", 2, 60, count=3)
    centre, explained, residual = prediction(posterior, others, mean, S)
    draws = posterior.draws(others, rng(8)).numpy()
    assert draws.shape == (COUNT, len(others))
    total = explained + residual
    variance = np.diag(total)
    z = (draws.mean(axis=0) - centre) / np.sqrt(variance / COUNT)
    assert np.abs(z).max() < 4
    found = np.cov(draws.T)
    error = np.sqrt((np.outer(variance, variance) + total**2) / COUNT)
    # 78 entries: the largest of as many normal numbers exceeds 4 once in 200 seeds.
    z = ((found - total) / error)[np.triu_indices(len(total))]
    assert np.abs(z).max() < 4


@pytest.mark.slow
def test_the_interpolation_error_tends_to_that_of_the_continuous_functional():
    functionals = Stack(
        [
            PointValues(dense_torus.inside(1, 6, 1)),
            LineIntegrals(dense_torus.inside(1, 6, 2), GaussLegendre(count=4)),
        ]
    )
    model = dense_torus.model(
        "matern32", 1, functionals, residual_refinement=8, residual_count=8000
    )
    _, shape, spacing, ratio = dense_torus.SETTINGS[1]
    kernel = Covariance(
        name="matern32",
        lengthscale=(ratio[0] * spacing[0],),
        variance=dense_torus.VARIANCE,
        periods=(shape[0] * spacing[0],),
        images=(6,),
    )
    rows = rows_of(functionals)
    torus = dense_torus.torus(1)
    steps = np.arange(shape[0]) * spacing[0] + torus.grid.origin[0]
    K_nu = functional_covariance(kernel, rows, points_as_rows(steps[:, None]))
    K_nn = functional_covariance(kernel, rows, rows)
    w = model.weights.to_dense().numpy()
    K_uu = dense_torus.torus_covariance("matern32", 1, 1, (1, 1))
    exact = np.diag(K_nn - K_nu @ w.T - (K_nu @ w.T).T + w @ K_uu @ w.T)
    # Monte Carlo errs by 1%, the finer interpolation by some per cent of the largest.
    error = np.abs(model.variance.numpy() - exact)
    assert (error < 0.05 * exact + 0.02 * exact.max()).all()


def test_rows_at_a_time_change_only_the_draws_of_the_unresolved_part():
    posterior, _, _ = fitted(1, samples=10)
    others = dense_torus.mixed("matern32", 2, 60)
    whole, parts = posterior.moments(others), posterior.moments(others, rows=7)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.std, whole.std, rtol=1e-9, atol=1e-12)


def test_without_samples_a_std_is_not_a_number_and_the_mean_stands():
    posterior, mean, S = fitted(1, samples=0)
    others = dense_torus.mixed("matern32", 2, 60)
    moments = posterior.moments(others)
    assert bool(torch.isnan(moments.std).all())
    centre, _, _ = prediction(posterior, others, mean, S)
    np.testing.assert_allclose(moments.mean, centre, rtol=1e-6)
    assert posterior.draws(others, rng()).shape == (0, len(others))


@pytest.mark.wrong_shapes
@pytest.mark.parametrize(
    ("mean", "samples", "message"),
    [
        ((240,), (1, 240), "two"),
        ((239,), (4, 240), "mean"),
        ((240,), (4, 241), "samples"),
        ((240,), (240,), "samples"),
    ],
)
def test_parameters_of_another_model_are_refused(mean, samples, message):
    model = dense_torus.model("matern32", 2, dense_torus.mixed("matern32", 2, 3))
    with pytest.raises(ValueError, match=message):
        Posterior(model=model, mean=torch.zeros(mean), samples=torch.zeros(samples))


def calibration(*, problems, samples):
    """Errors of density and extinction in claimed standard deviations.

    60 rays are observed, 20 points and 20 other rays are not. The truth is a draw of
    the model's own field. Returns ``(problems, 2, 20)``.
    """
    errors = []
    for seed in range(problems):
        places = [
            dense_torus.inside(2, n, 10 * seed + i) for i, n in enumerate((60, 20, 20))
        ]
        rule = GaussLegendre(count=6)
        targets = Stack([PointValues(places[1]), LineIntegrals(places[2], rule)])
        model = dense_torus.model("matern32", 2, LineIntegrals(places[0], rule))
        there, generator = model.at(targets), rng(seed)
        field, _ = model.whitening.prior_draw(generator)
        clean = model.offset + model.weights.matvec(field)[0]
        truth = there.offset + there.weights.matvec(field)[0]
        noise = torch.full_like(clean, 0.1)
        white = torch.randn(60, generator=generator, dtype=torch.float64)
        result = infer(
            model,
            clean + noise.sqrt() * white,
            noise,
            settings=FullBatch(samples=samples, block=samples),
            generator=generator,
        )
        assert result.converged
        posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
        moments = posterior.moments(targets)
        errors.append(((truth - moments.mean) / moments.std).numpy())
    return np.array(errors).reshape(problems, 2, 20)


LEVELS = (0.50, 0.68, 0.95)


def coverage(errors, level):
    """Coverage pooled over problems, and its standard error from their scatter.

    Places of one problem share their data: only problems are independent.
    """
    half_width = scipy.stats.norm.ppf(0.5 + level / 2)
    each = (np.abs(errors) < half_width).mean(axis=1)
    error = each.std(ddof=1) / np.sqrt(len(each))
    assert error < 0.03
    return each.mean(), error, half_width


@pytest.mark.slow
def test_intervals_hold_what_they_promise():
    samples = 50
    errors = calibration(problems=36, samples=samples)
    for kind in (0, 1):
        for level in LEVELS:
            found, error, half_width = coverage(errors[:, kind], level)
            # A standard deviation from S draws makes Student's t of a normal error.
            t = scipy.stats.t(samples)
            promised = t.cdf(half_width) - t.cdf(-half_width)
            assert abs(found - promised) < 4 * error
            assert abs(found - level) < 4 * error


@pytest.mark.slow
def test_ranks_of_the_truth_among_draws_are_uniform():
    # Simulation-based calibration (Talts et al. 2018): one place a problem.
    samples, ranks = 9, []
    place = torch.tensor([[0.4, -0.3]])
    for seed in range(100):
        seen = LineIntegrals(dense_torus.inside(2, 12, seed), GaussLegendre(count=4))
        model = dense_torus.model("matern52", 2, seen)
        generator = rng(1000 + seed)
        field, _ = model.whitening.prior_draw(generator)
        y = model.offset + model.weights.matvec(field)[0]
        y = y + 0.3 * torch.randn(12, generator=generator, dtype=torch.float64)
        result = infer(
            model,
            y,
            torch.full_like(y, 0.09),
            settings=FullBatch(samples=samples),
            generator=generator,
        )
        posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
        there = model.at(PointValues(place))
        truth = there.offset + there.weights.matvec(field)[0]
        draws = posterior.draws(PointValues(place), generator)
        ranks.append(int((draws < truth).sum()))
    counts = np.bincount(ranks, minlength=samples + 1)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
