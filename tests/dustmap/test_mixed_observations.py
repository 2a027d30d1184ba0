"""Values, slopes and line integrals in one fit, each kind with a noise of its own.

The published engine in one, two and three dimensions against dense algebra.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_box import Box, box, fresh_model, known, optimum
from reference import conditional_features, woodbury_posterior

from dustmap.inference.svi import HipSettings, fit_svi
from dustmap.inference.svi.bound import LatentMoments, Observations, predict
from dustmap.likelihoods import Gaussian
from dustmap.models.rowwise import RowwiseGaussian
from dustmap.whitening import CholeskyWhitening

CASES = {1: ("matern52", 3.0), 2: ("matern32", 2.0), 3: ("matern52", 1.2)}
# Standard deviations of the noise, in the unit of each kind.
SPREAD = {"values": 0.1, "integrals": 0.02, "slopes": 0.5}


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
