"""Metric Gaussian variational inference of a log-normal density."""

from __future__ import annotations

import functools

import dense_torus
import numpy as np
import pytest
import torch
from reference import woodbury_posterior

from dustmap.functionals import GaussLegendre
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.mgvi import White, averages, both_signs, deviations
from dustmap.linalg.cg import ConjugateGradients

RULE = GaussLegendre(count=6)
TIGHT = ConjugateGradients(rtol=1e-10, max_steps=2000)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def data(model, noise, seed=1):
    """ε, clean data, data and ``σ²``; the noise is relative to the mean."""
    generator = rng(seed)
    truth = torch.randn(model.latent_size, generator=generator, dtype=torch.float64)
    clean = model.apply(truth)
    sigma = noise * float(clean.mean())
    white = torch.randn(len(clean), generator=generator, dtype=torch.float64)
    return truth, clean, clean + sigma * white, torch.full_like(clean, sigma**2)


def fitted(model, y, variance, *, seed=5, **options):
    settings = FullBatch(
        **{"solver": TIGHT, "samples": 16, "sampler": "mgvi", **options}
    )
    return infer(model, y, variance, settings=settings, generator=rng(seed))


def test_nearly_linear_samples_are_those_of_the_exact_posterior():
    # Of 3% scatter: what the exponential adds is far below the samples' own error.
    model = dense_torus.log_normal(0.001, 30)
    _, _, y, variance = data(model, 0.01)
    count = 3000
    result = fitted(model, y, variance, samples=2 * count, block=500, pairs=8)
    assert result.converged
    eps = torch.zeros(model.latent_size, dtype=torch.float64)
    linear = model.linearise(eps)
    Phi = linear.operator.to_dense().numpy()
    mean, S = woodbury_posterior(
        Phi, (y - linear.prediction).numpy(), result.noise_variance.numpy()
    )
    # Learnt from the data: the posterior is not the prior.
    assert np.linalg.eigvalsh(S)[0] < 0.5
    spread = np.sqrt(np.diag(S))
    assert (np.abs(result.mean.numpy() - mean) < 0.2 * spread).all()
    deltas = (result.samples - result.mean)[::2].numpy()
    found = deltas.T @ deltas / count
    error = np.sqrt((np.outer(np.diag(S), np.diag(S)) + S**2) / count)
    z = (found - S) / error
    assert np.abs(z).max() < 6 and np.sqrt((z**2).mean()) < 1.2
    # What was observed is where the posterior is narrow.
    seen, exact = Phi @ found @ Phi.T, Phi @ S @ Phi.T
    ratio = np.diag(seen) / np.diag(exact)
    assert np.abs(ratio - 1).max() < 0.15


@functools.cache
def strong():
    """Many cells that nobody looks at, and a logarithm that scatters by one."""
    model = dense_torus.log_normal(1.0, 40)
    return model, data(model, 0.05)


def misfit(prediction, y, variance):
    return float(((prediction - y) ** 2 / variance).mean())


def test_samples_of_a_strongly_non_linear_model_do_not_explode():
    model, (_, _, y, variance) = strong()
    result = fitted(model, y, variance, rounds=6, steps=6)
    samples = model.apply(result.samples)
    average = misfit(samples.mean(dim=0), y, result.noise_variance)
    at_mean = misfit(result.prediction, y, result.noise_variance)
    assert average < at_mean
    assert average < 1.0
    assert float(samples.max()) < 3 * float(y.max())


def test_samples_come_in_antithetic_pairs():
    model, (_, _, y, variance) = strong()
    result = fitted(model, y, variance)
    pairs = (result.samples - result.mean).reshape(8, 2, -1)
    torch.testing.assert_close(pairs[:, 0], -pairs[:, 1], rtol=1e-9, atol=1e-9)
    assert float(pairs.abs().max()) > 0.5
    overlap = torch.corrcoef(pairs[:, 0]) - torch.eye(8)
    assert float(overlap.abs().max()) < 0.5


def test_the_same_seed_gives_the_same_samples_and_another_others():
    model, (_, _, y, variance) = strong()
    first, again, other = (fitted(model, y, variance, seed=s) for s in (5, 5, 6))
    assert torch.equal(first.samples, again.samples)
    assert float((first.samples - other.samples).abs().max()) > 0.5


@pytest.mark.parametrize("block", [1, 3, 5])
def test_the_size_of_blocks_changes_nothing(block):
    model, (_, _, y, variance) = strong()
    whole = fitted(model, y, variance, block=16)
    parts = fitted(model, y, variance, block=block)
    torch.testing.assert_close(parts.samples, whole.samples, rtol=1e-6, atol=1e-6)


def test_more_samples_are_others_of_the_same_posterior():
    # The first ones are those that the mean was found with.
    model, (_, _, y, variance) = strong()
    few, many = (fitted(model, y, variance, samples=s, pairs=4) for s in (8, 24))
    torch.testing.assert_close(few.mean, many.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(few.samples, many.samples[:8], rtol=1e-6, atol=1e-6)


def test_odd_numbers_of_samples_are_refused():
    model, (_, _, y, variance) = strong()
    with pytest.raises(ValueError, match=r"come in pairs.*even number instead of 7"):
        fitted(model, y, variance, samples=7)


def test_white_noise_does_not_depend_on_what_was_asked_before():
    white = White(seed=3)
    first = white.pair(2, 5, 7)
    white.pair(0, 5, 7)
    for found, exact in zip(white.pair(2, 5, 7), first, strict=True):
        assert torch.equal(found, exact)
    assert [len(part) for part in first] == [5, 7]
    assert not torch.equal(first[0], white.pair(1, 5, 7)[0])


def test_deviations_solve_their_equation():
    model, (_, _, _, variance) = strong()
    eps = torch.randn(model.latent_size, generator=rng(8), dtype=torch.float64)
    operator = model.linearise(eps).operator
    white = White(seed=3)
    found = deviations(
        operator, variance, white, range(1, 4), solver=TIGHT, preconditioner=None
    )
    Phi = operator.to_dense()
    precision = torch.eye(model.latent_size) + Phi.mT @ (Phi / variance[:, None])
    for delta, number in zip(found.value, range(1, 4), strict=True):
        eta, xi = white.pair(number, *Phi.shape)
        exact = torch.linalg.solve(precision, Phi.mT @ (eta / variance.sqrt()) + xi)
        torch.testing.assert_close(delta, exact, rtol=1e-6, atol=1e-7)


def test_averages_are_those_of_the_samples():
    model, (_, _, y, _) = strong()
    mean = torch.zeros(model.latent_size, dtype=torch.float64)
    deltas = torch.randn(2, model.latent_size, generator=rng(8), dtype=torch.float64)
    eps = both_signs(mean, deltas)
    assert torch.equal(eps, torch.stack([deltas[0], -deltas[0], deltas[1], -deltas[1]]))
    seen, found = model.apply(eps), averages(model, y, eps)
    close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=0)
    close(found.prediction, seen.mean(dim=0))
    close(found.squares, ((y - seen) ** 2).mean(dim=0))
    variances = torch.stack([model.linearise(one).variance for one in eps])
    close(found.variance, variances.mean(dim=0))


def test_the_mean_is_where_the_averaged_objective_is_least():
    # Without sub-grid noise Σ stands still, and so do the deviations of one round.
    model, (_, _, y, variance) = strong()
    result = fitted(
        model,
        y,
        variance,
        samples=8,
        rounds=30,
        steps=10,
        subgrid_noise=False,
        newton_tolerance=1e-7,
    )
    deltas = (result.samples - result.mean)[::2]

    def objective(mean):
        seen = model.apply(both_signs(mean, deltas))
        return 0.5 * float(mean @ mean + ((seen - y) ** 2 / variance).sum(1).mean())

    here = objective(result.mean)
    for seed in range(5):
        aside = torch.randn(model.latent_size, generator=rng(seed), dtype=torch.float64)
        aside = aside / aside.norm()
        slope = (
            objective(result.mean + 1e-3 * aside)
            - objective(result.mean - 1e-3 * aside)
        ) / 2e-3
        assert abs(slope) < 0.02
        assert objective(result.mean + 0.3 * aside) > here
