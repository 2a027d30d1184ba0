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


def test_unresolved_parts_of_neighbours_are_drawn_together():
    posterior, _, _ = fitted(2, samples=200)
    x = dense_torus.inside(2, 5, 60)
    # Two per place, a thousandth of a step apart.
    pairs = PointValues(torch.cat([x, x + torch.tensor([5e-4, 0.0])]))
    draws = posterior.draws(pairs, rng(8))
    apart = (draws[:, :5] - draws[:, 5:]).std(dim=0)
    unresolved = posterior.model.at(pairs).linearise(posterior.mean).variance[:5].sqrt()
    assert float((apart / unresolved).max()) < 0.05


@pytest.mark.parametrize("weights", ["linear", "cubic"])
def test_the_interpolation_error_is_that_of_dense_algebra(weights):
    # r = 1 with the exact functional on a torus twice as fine (DESIGN of the method:
    # k_nn − 2 wᵀ k_un + wᵀ K w).
    functionals = dense_torus.mixed("matern32", 2, 3)
    model = dense_torus.model(
        "matern32",
        2,
        functionals,
        residual_refinement=2,
        interpolation=weights,
        residual_count=COUNT,
    )
    fine = dense_torus.model(
        "matern32", 2, functionals, refinement=2, interpolation=weights
    )
    w, W = (m.weights.to_dense().numpy() for m in (model, fine))
    K_ff = dense_torus.torus_covariance("matern32", 2, 2, (1, 1))
    K_fu = dense_torus.torus_covariance("matern32", 2, 2, (1, 2))
    K_uu = dense_torus.torus_covariance("matern32", 2, 2, (2, 2))
    cross = W @ K_fu @ w.T
    exact = W @ K_ff @ W.T - cross - cross.T + w @ K_uu @ w.T
    v = np.diag(exact)
    z = (model.variance.numpy() / v - 1) / np.sqrt(2 / COUNT)
    assert np.abs(z).max() < 4 and 0.5 < z.std() < 1.5
    draws = model.residual_draws(torch.zeros(COUNT, model.latent_size), rng(4)).numpy()
    z = (draws.T @ draws / COUNT - exact) / np.sqrt((np.outer(v, v) + exact**2) / COUNT)
    # 528 different entries; 4 is exceeded in one seed of 30.
    assert np.abs(z).max() < 4


def test_the_interpolation_error_tends_to_that_of_the_continuous_functional():
    functionals = Stack(
        [
            PointValues(dense_torus.inside(1, 6, 1)),
            LineIntegrals(dense_torus.inside(1, 6, 2), GaussLegendre(count=4)),
        ]
    )
    model = dense_torus.model(
        "matern32",
        1,
        functionals,
        residual_refinement=8,
        residual_count=8000,
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


def test_nothing_asked_for_gives_nothing():
    posterior, _, _ = fitted(2, samples=2)
    moments = posterior.moments(PointValues(torch.zeros(0, 2)))
    assert moments.mean.shape == moments.std.shape == (0,)


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


def calibration_problem(seed, refinement):
    """A model of 60 rays, and 20 points and 20 other rays that nobody observed."""
    places = [
        dense_torus.inside(2, n, 10 * seed + i) for i, n in enumerate((60, 20, 20))
    ]
    rule = GaussLegendre(count=6)
    targets = Stack([PointValues(places[1]), LineIntegrals(places[2], rule)])
    seen = LineIntegrals(places[0], rule)
    return dense_torus.model("matern32", 2, seen, refinement=refinement), targets


def calibration(refinement, *, problems, samples):
    """Errors of density and extinction in claimed standard deviations.

    The truth is a draw of the model's own field on the torus that counts as exact.
    Returns ``(problems, 20)`` for points and for rays, and for r > 1 the true
    standard deviations of the errors over the claimed ones as well.
    """
    errors, ratios = [], []
    for seed in range(problems):
        model, targets = calibration_problem(seed, refinement)
        there, generator = model.at(targets), rng(seed)
        field, _ = model.whitening.prior_draw(generator)
        clean = model.offset + model.weights.matvec(field)[0]
        truth = there.offset + there.weights.matvec(field)[0]
        noise = torch.full_like(clean, 0.1)
        white = torch.randn(60, generator=generator, dtype=torch.float64)
        settings = FullBatch(samples=samples, block=samples)
        result = infer(
            model,
            clean + noise.sqrt() * white,
            noise,
            settings=settings,
            generator=generator,
        )
        assert result.converged
        posterior = Posterior(model=model, mean=result.mean, samples=result.samples)
        moments = posterior.moments(targets)
        errors.append(((truth - moments.mean) / moments.std).numpy())
        if refinement > 1:
            true = true_variance(model, there, noise.numpy(), result.noise_variance)
            ratios.append(np.sqrt(true) / moments.std.numpy())
    return np.array(errors).reshape(problems, 2, 20), np.array(ratios)


def true_variance(model, there, noise, assumed):
    """``Var(truth − prediction)`` with unresolved parts as correlated as they are."""
    here, away = (dense_torus.dense("matern32", 2, m) for m in (model, there))
    W, W_there = (m.weights.to_dense().numpy() for m in (model, there))
    cross = W_there @ dense_torus.torus_covariance("matern32", 2, 2, (1, 1)) @ W.T
    _, S = woodbury_posterior(here.features, np.zeros(len(noise)), assumed.numpy())
    gain = away.features @ S @ here.features.T / assumed.numpy()
    prior = here.covariance + np.diag(noise)
    both = gain @ cross.T
    return np.diag(away.covariance - both - both.T + gain @ prior @ gain.T)


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


def test_intervals_hold_what_they_promise():
    samples = 50
    errors, _ = calibration(1, problems=36, samples=samples)
    for kind in (0, 1):
        for level in LEVELS:
            found, error, half_width = coverage(errors[:, kind], level)
            # A standard deviation from S draws makes Student's t of a normal error.
            t = scipy.stats.t(samples)
            promised = t.cdf(half_width) - t.cdf(-half_width)
            assert abs(found - promised) < 4 * error
            assert abs(found - level) < 4 * error


def test_intervals_with_subgrid_noise_hold_at_least_what_they_promise():
    # Unresolved parts of neighbouring rays are taken for independent, which they are
    # not: dense algebra says how much wider than needed the intervals are.
    problems = 24
    errors, ratios = calibration(2, problems=problems, samples=50)
    ratios = ratios.reshape(problems, 2, 20)
    for kind in (0, 1):
        for level in LEVELS:
            found, error, half_width = coverage(errors[:, kind], level)
            inside = scipy.stats.norm.cdf(half_width / ratios[:, kind])
            assert abs(found - (2 * inside - 1).mean()) < 4 * error
            assert found > level - 4 * error


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
