"""Families of q(ε): moments, divergences and natural steps against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from dustmap.inference.svi.gaussian import Batch, NaturalGaussian, block_prior

SHAPE = (5, 4, 3)
FAMILIES = {
    "mean-field": lambda: block_prior(SHAPE, 1),
    # 5 and 3 are no multiples of 2: the last blocks are smaller.
    "block": lambda: block_prior(SHAPE, 2),
    "full": lambda: block_prior(SHAPE, 5),
}


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def some_batch(generator, count=7) -> Batch:
    features, residual = (normal(generator, count, 60), normal(generator, count))
    weight = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    return Batch(features=features, weight=weight, target=weight * residual)


def moved(family, generator) -> NaturalGaussian:
    """A member of a family that is not the prior."""
    q = FAMILIES[family]()
    q = q.covariance_step(some_batch(generator, 90), 0.7)
    return q.with_mean(normal(generator, 60))


def dense_covariance(q: NaturalGaussian) -> torch.Tensor:
    """S by unit vectors through the block structure written out in loops."""
    total = torch.zeros(60, 60, dtype=torch.float64)
    for members, precision in zip(q.index, q.precision):
        real = members < 60
        inverse = torch.linalg.inv(precision[real][:, real])
        total[members[real][:, None], members[real][None]] = inverse
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_the_dense_covariance(family, generator):
    q = moved(family, generator)
    S = dense_covariance(q)
    rows = normal(generator, 4, 60)
    torch.testing.assert_close(q.quadratic(rows), (rows @ S * rows).sum(dim=1))
    torch.testing.assert_close(q.covariance_times(rows), rows @ S)
    own = MultivariateNormal(q.mean, S)
    eye = torch.eye(60, dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros(60, dtype=torch.float64), eye)
    assert q.divergence() == pytest.approx(float(kl_divergence(own, prior)))


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_moments_of_q(family, generator):
    q = moved(family, generator)
    draws = q.sample(20000, np.random.default_rng(1))
    S = dense_covariance(q)
    deviation = torch.sqrt(torch.outer(S.diagonal(), S.diagonal()) + S**2)
    error = (torch.cov(draws.mT) - S).abs() / (deviation / 20000**0.5)
    assert float(error.max()) < 5
    shift = (draws.mean(dim=0) - q.mean) / (S.diagonal() / 20000).sqrt()
    assert float(shift.abs().max()) < 5


def test_blocks_are_boxes_of_neighbours():
    blocks = block_prior((4, 6), 2)
    assert blocks.index.tolist() == [
        [0, 1, 6, 7],
        [2, 3, 8, 9],
        [4, 5, 10, 11],
        [12, 13, 18, 19],
        [14, 15, 20, 21],
        [16, 17, 22, 23],
    ]


def test_last_blocks_may_be_smaller_and_thin_axes_are_taken_whole():
    blocks = block_prior((2, 5), 3)
    assert blocks.index.tolist() == [[0, 1, 2, 5, 6, 7], [3, 4, 10, 8, 9, 10]]
    rows = torch.arange(20, dtype=torch.float64).reshape(2, 10)
    torch.testing.assert_close(blocks.scatter(blocks.gather(rows)), rows)
    assert blocks.gather(rows)[1].tolist() == [
        [3, 4, 0, 8, 9, 0],
        [13, 14, 0, 18, 19, 0],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_the_canonical_update_of_the_paper(family, generator):
    """S8 and S10–S12 written out with dense matrices."""
    q, batch, rate = moved(family, generator), some_batch(generator), 0.3
    weighted = batch.weight[:, None] * batch.features
    data = batch.features.mT @ weighted + torch.eye(60, dtype=torch.float64)
    b = batch.target @ batch.features
    own = torch.zeros(60, 60, dtype=torch.bool)
    for members in q.index:
        real = members[members < 60]
        own[real[:, None], real[None]] = True
    blocks = torch.where(own, data, 0.0)
    old = torch.linalg.inv(dense_covariance(q))
    first, second = old @ q.mean, -0.5 * old
    first = first + rate * (b - old @ q.mean - (data @ q.mean - blocks @ q.mean))
    second = second + rate * (-0.5 * blocks + 0.5 * old)
    S = torch.linalg.inv(-2 * second)
    stepped = q.covariance_step(batch, rate)
    stepped = stepped.with_mean(q.mean + rate * stepped.direction(batch))
    torch.testing.assert_close(dense_covariance(stepped), S)
    torch.testing.assert_close(stepped.mean, S @ first)


def test_curvature_bounds_the_stable_step(generator):
    q, batch = moved("block", generator), some_batch(generator)
    S = dense_covariance(q)
    product = batch.features.mT @ (batch.weight[:, None] * batch.features)
    exact = torch.linalg.eigvals(S @ product).real.max()
    assert q.curvature(batch) == pytest.approx(float(exact), rel=1e-9)
