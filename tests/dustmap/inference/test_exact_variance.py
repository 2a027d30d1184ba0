"""Posterior variances by one solve each, against dense algebra and samples."""

from __future__ import annotations

import dense_torus
import numpy as np
import pytest
import torch
from reference import woodbury_posterior

from dustmap.functionals import PointValues
from dustmap.inference.exact_variance import exact_variance
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.posterior import Posterior

TIGHT = ConjugateGradients(rtol=1e-12, max_steps=2000)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def problem(dimension, fine):
    functionals = dense_torus.mixed("matern52", dimension, 3)
    model = dense_torus.model(
        "matern52",
        dimension,
        functionals,
        residual_refinement=fine,
        residual_count=8,
    )
    return model, 0.01 + torch.rand(len(functionals), generator=rng(2)).double()


@pytest.mark.parametrize(("dimension", "fine"), [(1, 1), (1, 2), (2, 2), (3, 1)])
def test_variances_are_those_of_dense_algebra(dimension, fine):
    model, noise = problem(dimension, fine)
    others = dense_torus.mixed("matern52", dimension, 50, count=5)
    features = dense_torus.dense("matern52", dimension, model).features
    rows = dense_torus.dense("matern52", dimension, model.at(others)).features
    _, S = woodbury_posterior(features, np.zeros(len(noise)), noise.numpy())
    v = model.at(others).linearise(torch.zeros(model.latent_size).double()).variance
    expected = np.einsum("np,pq,nq->n", rows, S, rows) + v.numpy()
    found = exact_variance(model, noise, others, solver=TIGHT, block=2)
    np.testing.assert_allclose(found.variance, expected, rtol=1e-9)
    assert bool(found.solution.converged.all())
    assert len(found.solution.residual) == len(others)
    # An early stop costs the square of its residual.
    rough = exact_variance(
        model, noise, others, solver=ConjugateGradients(rtol=1e-3), block=3
    )
    np.testing.assert_allclose(rough.variance, expected, rtol=1e-4)


def test_samples_scatter_around_it_by_their_stated_error():
    model, noise = problem(2, 1)
    others = dense_torus.mixed("matern52", 2, 50, count=12)
    count = 400
    result = infer(
        model,
        torch.zeros(len(noise)).double(),
        noise,
        settings=FullBatch(solver=TIGHT, samples=count),
        generator=rng(7),
    )
    exact = exact_variance(model, result.noise_variance, others, solver=TIGHT)
    sampled = Posterior(model=model, mean=result.mean, samples=result.samples)
    std = sampled.moments(others).std
    z = (std / exact.variance.sqrt() - 1) * (2 * count) ** 0.5
    assert float(z.abs().max()) < 4
    assert 0.3 < float((z**2).mean()) < 3


def test_a_model_that_is_not_linear_is_refused():
    model = dense_torus.log_normal(1.0, 5)
    points = PointValues(dense_torus.inside(2, 2, 1))
    with pytest.raises(ValueError, match="come from samples"):
        exact_variance(model, torch.ones(5).double(), points, solver=TIGHT)


def test_no_functional_at_all_is_refused():
    model, noise = problem(1, 1)
    none = model.functionals.select(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one"):
        exact_variance(model, noise, none, solver=TIGHT)
