"""Values, slopes and line integrals in one fit, each kind with a noise of its own.

Both engines in one, two and three dimensions against dense algebra: the published one
on a box with the plain kernel, the full-batch one on a torus with the summed kernel.
"""

from __future__ import annotations

from dataclasses import replace

import dense_torus
import numpy as np
import pytest
import torch
from dense_box import Box, box, fresh_model, known, optimum
from reference import conditional_features, exact_posterior, woodbury_posterior

from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import LatentMoments, Observations, elbo, predict
from dustmap.likelihoods import Gaussian
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening

CASES = {1: ("matern52", 3.0), 2: ("matern32", 2.0), 3: ("matern52", 1.2)}
# Standard deviations of the noise, in the unit of each kind.
SPREAD = {"values": 0.1, "integrals": 0.02, "slopes": 0.5}
TIGHT = ConjugateGradients(rtol=1e-12, max_steps=5000)
DRAWS = 500


def noise_of(counts: dict[str, int]) -> np.ndarray:
    """``σ_n²`` of kinds one after another."""
    return np.concatenate([np.full(n, SPREAD[kind] ** 2) for kind, n in counts.items()])


def drawn(covariance: np.ndarray, noise: np.ndarray, seed: int) -> np.ndarray:
    """Data of the very model: ``N(0, K_nn + Σ)``."""
    white = np.random.default_rng(seed).standard_normal(len(noise))
    return np.linalg.cholesky(covariance + np.diag(noise)) @ white


def on_a_box(dimension: int) -> tuple[Box, Observations]:
    problem = box(dimension, *CASES[dimension])
    noise = noise_of({"values": 5, "integrals": 5, "slopes": 5})
    residual = torch.as_tensor(drawn(problem.K_nn, noise, dimension))
    data = Observations.of(
        problem.model, problem.model.offset + residual, torch.as_tensor(noise)
    )
    return problem, data


def dense_svgp(problem: Box, data: Observations) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the targets less their prior mean, by features."""
    features = conditional_features(problem.K_nu, problem.K_uu)
    seen = conditional_features(problem.K_su, problem.K_uu)
    m, S = woodbury_posterior(features, data.residual.numpy(), known(data).numpy())
    left = problem.K_ss.diagonal() - (seen**2).sum(axis=1)
    return seen @ m, (seen @ S * seen).sum(axis=1) + left


def free_points(problem: Box) -> RowwiseGaussian:
    """The same inducing points without their grid."""
    known = problem.model.whitening
    whitening = CholeskyWhitening(known.kernel, known.points)
    return RowwiseGaussian(
        whitening, problem.model.functionals, mean=problem.model.mean
    )


MODELS = {"toeplitz": fresh_model, "cholesky": free_points}


def by_svi(
    problem: Box, data: Observations, end: str, generator, root: str = "toeplitz"
) -> LatentMoments:
    model = MODELS[root](problem)
    if end == "optimum":
        q = optimum(model, data, family="full")
    else:
        settings = HipSettings(
            family="full", batch_size=4, epochs=3, mean_tolerance=1e-12,
        )  # fmt: skip
        q = fit_svi(model, data, settings, generator=generator).q
    targets = model.at(problem.targets)
    moments = predict(targets, q)
    return LatentMoments(moments.mean - targets.offset, moments.variance)


@pytest.mark.parametrize("root", MODELS)
@pytest.mark.parametrize("end", ["optimum", "full"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_published_engine_is_dense_algebra(dimension, end, root, generator):
    problem, data = on_a_box(dimension)
    mean, variance = dense_svgp(problem, data)
    ours = by_svi(problem, data, end, generator, root)
    prior = np.sqrt(problem.K_ss.diagonal())
    assert np.abs((ours.mean.numpy() - mean) / prior).max() < 1e-6
    np.testing.assert_allclose(ours.variance.sqrt(), np.sqrt(variance), rtol=1e-6)
    # Were nothing learnt, or the noises of two kinds swapped, the above would be idle.
    assert (variance < 0.9 * prior**2).sum() >= 3
    swapped = replace(data, likelihood=Gaussian(known=known(data).flip(0)))
    other = by_svi(problem, swapped, "optimum", generator)
    assert np.abs((other.mean.numpy() - mean) / prior).max() > 1e-2


@pytest.mark.parametrize("root", MODELS)
def test_hyperparameters_are_learnt_by_either_whitening(root, generator):
    problem, data = on_a_box(1)
    fixed = HipSettings(family="full", batch_size=4, epochs=12, rate=0.05)
    learning = replace(fixed, learn=("kernel", "likelihood"))
    bounds = [
        fit_svi(MODELS[root](problem), data, chosen, generator=generator).bound
        for chosen in (fixed, learning)
    ]
    assert bounds[1] > bounds[0] + 1


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_order_of_the_rows_is_of_no_account(dimension, generator):
    problem, data = on_a_box(dimension)
    order = torch.randperm(len(data), generator=generator)
    model = fresh_model(problem)
    mixed = model.at(model.functionals.select(order))
    turned = data.select(order)
    one = optimum(model, data, family="full")
    other = optimum(mixed, turned, family="full")
    bounds = elbo(model, data, one), elbo(mixed, turned, other)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    rows = model.at(problem.targets)
    for a, b in zip(predict(rows, one), predict(rows, other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_every_kind_tells_something_that_the_others_do_not(dimension, kind):
    """More data never widen a Gaussian posterior; of its own kind they narrow it."""
    problem, data = on_a_box(dimension)
    model = fresh_model(problem)
    rows = torch.arange(len(data))
    others = rows[rows // 5 != kind]
    fewer = model.at(model.functionals.select(others))
    less = data.select(others)
    own = model.at(model.functionals.select(rows[rows // 5 == kind]))
    without = predict(own, optimum(fewer, less, family="full")).variance
    with_all = predict(own, optimum(model, data, family="full")).variance
    assert bool((with_all <= without * (1 + 1e-9)).all())
    assert float((with_all / without).mean()) < 0.9


def on_a_torus(dimension: int, refinement: int):
    """A model of the data, the targets seen by it, their dense twins and the noise."""
    name, _ = CASES[dimension]
    data = dense_torus.mixed(name, dimension, 3, count=6)
    targets = dense_torus.mixed(name, dimension, 50, count=3)
    options = {"refinement": refinement, "residual_count": 2}
    model = dense_torus.model(name, dimension, data, interpolation="cubic", **options)
    both = model.at(dense_torus.Stack([data, targets]))
    oracle = dense_torus.dense(name, dimension, both)
    noise = noise_of({"values": 6, "integrals": 12, "slopes": 6})
    return model, model.at(targets), oracle, noise


def by_full_batch(model: TorusGaussian, y: np.ndarray, noise: np.ndarray, draws: int):
    return infer(
        model,
        torch.as_tensor(y),
        torch.as_tensor(noise),
        settings=FullBatch(
            solver=TIGHT, samples=draws, block=500, sample_rtol=1e-6,
            subgrid_noise=False,
        ),
        generator=torch.Generator().manual_seed(4),
    )  # fmt: skip


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_full_batch_engine_is_the_gaussian_process_of_its_weights(dimension):
    """Without refinement the features lose nothing: no ε, no Φ in the oracle."""
    model, seen, oracle, noise = on_a_torus(dimension, refinement=1)
    n = len(noise)
    K = oracle.covariance
    residual = drawn(K[:n, :n], noise, dimension)
    mean, covariance = exact_posterior(K[:n, :n], K[n:, :n], K[n:, n:], residual, noise)
    result = by_full_batch(model, residual + oracle.offset[:n], noise, DRAWS)
    assert result.converged
    prior = np.sqrt(K[n:, n:].diagonal())
    error = seen.apply(result.mean).numpy() - oracle.offset[n:] - mean
    assert np.abs(error / prior).max() < 1e-6
    check_draws(
        seen.apply(result.samples).numpy(), mean + oracle.offset[n:], covariance
    )
    assert (covariance.diagonal() < 0.9 * prior**2).sum() >= 3


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_samples_on_a_refined_torus_have_what_the_grid_leaves_open(dimension):
    model, seen, oracle, noise = on_a_torus(dimension, refinement=2)
    n = len(noise)
    residual = drawn(oracle.covariance[:n, :n], noise, dimension)
    features, rows = oracle.features[:n], oracle.features[n:]
    m, S = woodbury_posterior(features, residual, noise)
    left = oracle.covariance[n:, n:] - rows @ rows.T
    result = by_full_batch(model, residual + oracle.offset[:n], noise, DRAWS)
    prior = np.sqrt(oracle.covariance[n:, n:].diagonal())
    error = seen.apply(result.mean).numpy() - oracle.offset[n:] - rows @ m
    assert np.abs(error / prior).max() < 1e-6
    draws = seen.apply(result.samples)
    draws = draws + seen.residual_draws(
        result.samples, torch.Generator().manual_seed(6)
    )
    check_draws(draws.numpy(), rows @ m + oracle.offset[n:], rows @ S @ rows.T + left)


def check_draws(draws: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Moments within 4.5 of their Monte Carlo errors, which are of the right size."""
    count = len(draws)
    variance = covariance.diagonal()
    shift = (draws.mean(axis=0) - mean) / np.sqrt(variance / count)
    assert np.abs(shift).max() < 4.5
    found = (draws - mean).T @ (draws - mean) / count
    errors = np.sqrt((np.outer(variance, variance) + covariance**2) / count)
    z = ((found - covariance) / errors)[np.triu_indices(len(mean))]
    assert np.abs(z).max() < 4.5
    assert z.std() < 1.5


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_rows_of_the_full_batch_engine_may_come_in_any_order(dimension):
    model, seen, oracle, noise = on_a_torus(dimension, refinement=2)
    n = len(noise)
    y = drawn(oracle.covariance[:n, :n], noise, dimension) + oracle.offset[:n]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(8))
    turned = model.at(model.functionals.select(order))
    one = by_full_batch(model, y, noise, 0).mean
    other = by_full_batch(turned, y[order], noise[order], 0).mean
    torch.testing.assert_close(seen.apply(one), seen.apply(other), rtol=1e-8, atol=1e-8)
