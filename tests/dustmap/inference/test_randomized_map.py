"""Samples from fits to perturbed data."""

from __future__ import annotations

import functools

import dense_torus
import numpy as np
import pytest
import scipy.optimize
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.gauss_newton import GaussNewton
from dustmap.inference.full_batch.randomized_map import fit_samples, perturbed
from dustmap.inference.full_batch.state import InferenceState, Samples
from dustmap.keyed_noise import Purpose, stream
from dustmap.linalg.cg import ConjugateGradients
from dustmap.noise import Normal

RULE = GaussLegendre(count=6)
TIGHT = ConjugateGradients(rtol=1e-10, max_steps=2000)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


@functools.cache
def seen(std=1.0, count=40, noise=0.05, seed=3):
    """A log-normal density, its data along so many rays, and ``σ²``."""
    model = dense_torus.log_normal(std**2, count, seed)
    generator = rng()
    truth = model.white_noise(np.random.default_rng(1))
    clean = model.apply(truth)
    sigma = noise * float(clean.mean())
    white = torch.randn(len(clean), generator=generator, dtype=torch.float64)
    return model, clean + sigma * white, torch.full_like(clean, sigma**2)


def fitted(*, seed=5, **options):
    model, y, variance = seen()
    settings = FullBatch(**{"solver": TIGHT, "samples": 8, **options})
    return infer(model, y, variance, settings=settings, generator=rng(seed))


def white_noise_of(model, seed, pair):
    """The numbers that perturb data and prior mean of a pair of samples."""
    eta = stream(seed, Purpose.DATA, pair).standard_normal(len(model.functionals))
    return torch.from_numpy(eta), model.white_noise(stream(seed, Purpose.LATENT, pair))


def steps_of(model, y, variance, **options):
    noise = Normal(stated=variance)
    return GaussNewton(model=model, y=y, noise=noise, solver=TIGHT, **options)


def drawn(model, y, variance, numbers, *, steps=50, tolerance=1e-8):
    eps = torch.zeros(len(numbers), model.latent_size, dtype=torch.float64)
    newton = perturbed(steps_of(model, y, variance, forcing=0.3), 4, numbers)
    fits = fit_samples(newton, Samples.at(eps), steps=steps, tolerance=tolerance)
    return newton, fits


def test_a_sample_of_a_linear_model_is_that_of_dense_algebra():
    rays = LineIntegrals(dense_torus.inside(2, 30, 3), RULE)
    model = dense_torus.model("matern52", 2, rays)
    y = torch.randn(30, generator=rng(2), dtype=torch.float64)
    variance = torch.full_like(y, 0.1)
    Phi = model.linearise(torch.zeros(model.latent_size).double()).operator.to_dense()
    offset = model.apply(torch.zeros(model.latent_size).double())
    precision = torch.eye(model.latent_size) + Phi.mT @ (Phi / variance[:, None])
    for number, sign in [(2, 1.0), (3, -1.0)]:
        eta, xi = white_noise_of(model, 4, 1)
        data = y + sign * variance.sqrt() * eta - offset
        rhs = Phi.mT @ (data / variance) + sign * xi
        _, found = drawn(model, y, variance, [number], tolerance=1e-13)
        assert found.converged
        exact = torch.linalg.solve(precision, rhs)
        torch.testing.assert_close(found.eps[0], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("place", range(3))
def test_a_sample_is_where_its_own_objective_is_least(place):
    model, y, variance = seen()
    newton, fits = drawn(model, y, variance, [0, 1, 6])
    eps, target = fits.eps[place], newton.select(torch.tensor(place))
    assert fits.converged[place]

    def objective(eps):
        eps = torch.as_tensor(eps)
        tangent = model.linearise(eps)
        gradient = target.gradient(tangent, eps)
        return float(target.value(eps, tangent.prediction)), -gradient.numpy()

    best = scipy.optimize.minimize(
        objective,
        np.zeros(model.latent_size),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9},
    )
    at = float(target.value(eps, model.apply(eps)))
    assert at == pytest.approx(best.fun, rel=1e-6)
    torch.testing.assert_close(eps, torch.as_tensor(best.x), rtol=0, atol=1e-3)


def test_every_sample_ends_well_within_the_tolerance():
    # Expected before the last step: five times the tolerance; left after it: less.
    model, y, _ = seen()
    result = fitted(newton_tolerance=1e-3)
    seed = int(torch.randint(2**62, (1,), generator=rng(5)))
    for number, eps in enumerate(result.samples):
        newton = perturbed(steps_of(model, y, result.noise_variance), seed, [number])
        assert float(newton.decrement(eps[None])) < 1e-3 * len(y)


def test_samples_fit_their_own_data_and_do_not_explode():
    # A logarithm that scatters by two: samples of the tangent at the mode overshoot.
    model, y, variance = seen(std=2.0, count=60)
    settings = FullBatch(solver=TIGHT, samples=16)
    result = infer(model, y, variance, settings=settings, generator=rng(5))
    assert result.converged
    predictions = model.apply(result.samples)
    misfit = ((predictions - y) ** 2 / result.noise_variance).mean(dim=1)
    assert float(misfit.max()) < 5.0
    assert float(predictions.max()) < 2 * float(y.max())


def test_of_each_pair_the_data_are_perturbed_by_opposite_amounts():
    model, y, _ = seen()
    found = perturbed(steps_of(model, y, torch.full_like(y, 4.0)), 3, (0, 1, 2))
    first, second, third = found.y
    torch.testing.assert_close(first - y, y - second)
    torch.testing.assert_close(found.centre[0], -found.centre[1])
    assert float((first - third).abs().max()) > 0.1
    eta, xi = white_noise_of(model, 3, 0)
    torch.testing.assert_close(first, y + 2 * eta)
    assert torch.equal(found.centre[0], xi)
    # Errors that the data share are perturbed by one number for all.
    shared = torch.linspace(1.0, 2.0, len(y)).double()[:, None]
    steps = steps_of(model, y, torch.full_like(y, 4.0))
    found = perturbed(steps, 3, (0, 1), shared)
    beside = (found.y[0] - y - 2 * eta) / shared[:, 0]
    torch.testing.assert_close(beside, beside[:1].expand_as(beside))
    assert abs(float(beside[0])) > 1e-3
    torch.testing.assert_close(found.y.mean(dim=0), y)


def test_a_sample_does_not_depend_on_how_many_there_are():
    # Beyond the few that Σ is averaged over, and up to what they have left to gain.
    few, many = (fitted(samples=count, newton_tolerance=1e-9) for count in (6, 10))
    assert torch.equal(few.noise_variance, many.noise_variance)
    torch.testing.assert_close(few.samples, many.samples[:6], rtol=1e-3, atol=1e-3)


def test_odd_numbers_of_samples_are_refused():
    with pytest.raises(ValueError, match="even number"):
        fitted(samples=7)


def test_averages_are_those_of_the_samples():
    model, y, _ = seen()
    eps = torch.randn(4, model.latent_size, generator=rng(8), dtype=torch.float64)
    fit = InferenceState(model, y, Normal(stated=y), FullBatch(), rng())
    (residual, spread, variance), predictions = fit.averages(eps), model.apply(eps)
    variances = torch.stack([model.linearise(one).variance for one in eps])
    close = functools.partial(torch.testing.assert_close, rtol=1e-10, atol=0)
    close(y - residual, predictions.mean(dim=0))
    close(spread, predictions.var(dim=0, correction=0))
    close(variance, variances.mean(dim=0))


def test_the_newton_decrement_is_the_expected_gain():
    model, y, variance = seen()
    newton, fits = drawn(model, y, variance, [0, 3], steps=4)
    decrements = newton.decrement(fits.eps)
    for place, eps in enumerate(fits.eps):
        tangent = model.linearise(eps)
        target = newton.select(torch.tensor(place))
        gradient = target.gradient(tangent, eps)
        Phi = tangent.operator.to_dense()
        precision = torch.eye(model.latent_size) + Phi.mT @ (Phi / variance[:, None])
        exact = float(gradient @ torch.linalg.solve(precision, gradient)) / 2
        # To a hundredth of the gradient, which is less than one of the energy.
        assert exact > 0.1
        assert float(decrements[place]) == pytest.approx(exact, rel=0.2)


def test_fits_that_come_to_no_end_say_so():
    model, y, variance = seen()
    _, found = drawn(model, y, variance, [0], steps=1)
    assert not found.converged and found.expected_decrease > 1.0
    said = found.message
    assert "1 of 1 did not converge" in said and "nats" in said
    _, ended = drawn(model, y, variance, [0])
    both = Samples.joined([found, ended])
    assert both.converged.tolist() == [False, True]
    assert "each fitted by itself" in ended.message
    assert "error of 50% to 71%" in Samples.joined([ended, ended]).message
    result = fitted(newton_steps=1, newton_tolerance=1e-12)
    assert not result.converged


def test_batches_of_samples_are_those_fitted_one_by_one():
    together, alone = (
        fitted(samples=6, block=width, newton_tolerance=1e-9) for width in (3, 1)
    )
    torch.testing.assert_close(together.samples, alone.samples, rtol=1e-4, atol=1e-4)


def test_a_pair_with_another_prior_is_that_of_scaled_numbers():
    """With ε = μ + a ε' the prior of ε' is white; both searches have one end."""
    model, y, variance = seen()
    generator = np.random.default_rng(0)
    stds = torch.from_numpy(generator.uniform(0.7, 1.4, model.latent_size))
    mean = torch.from_numpy(0.1 * generator.standard_normal(model.latent_size))
    newton = steps_of(model, y, variance, forcing=0.3)
    given = perturbed(newton, 4, (0, 1), priors=lambda _: (mean, stds))
    eps = torch.zeros(2, model.latent_size, dtype=torch.float64)
    fits = fit_samples(given, Samples.at(eps), steps=50, tolerance=1e-10)
    assert bool(fits.converged.all())
    plain = perturbed(newton, 4, (0, 1))
    assert torch.allclose(given.centre, mean + stds * plain.centre)
    for number in range(2):
        scaled = torch.from_numpy(
            scipy.optimize.minimize(
                lambda x, n=number: _objective(
                    model, plain, variance, n, mean, stds, x
                ),
                np.zeros(model.latent_size),
                jac=True,
                options={"gtol": 1e-8, "maxiter": 5000},
            ).x
        )
        found = mean + stds * scaled
        size = (found**2).mean().sqrt()
        assert float((fits.eps[number] - found).abs().max()) < 1e-3 * float(size)


def _objective(model, plain, variance, number, mean, stds, x):
    x = torch.from_numpy(x).requires_grad_()
    tangent = model.linearise((mean + stds * x).detach())
    misfit = plain.y[number] - tangent.prediction
    offset = x.detach() - plain.centre[number]
    value = (offset**2).sum() / 2 + (misfit**2 / variance).sum() / 2
    gradient = offset - stds * tangent.operator.rmatvec(misfit / variance)
    return float(value), gradient.numpy()
