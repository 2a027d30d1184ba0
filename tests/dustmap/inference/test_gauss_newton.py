"""Gauss–Newton steps of the full-batch engine on a model that is not linear."""

from __future__ import annotations

import dense_torus
import numpy as np
import pytest
import scipy.optimize
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.inference.full_batch.gauss_newton import GaussNewton
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.noise import Normal

TIGHT = ConjugateGradients(rtol=1e-12, max_steps=2000)


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def largest_error(found, exact):
    exact = np.asarray(exact)
    return np.abs(np.asarray(found) - exact).max() / np.abs(exact).max()


def log_normal(seed, noise):
    """The model, and data drawn from it with noise relative to their mean."""
    functionals = Stack(
        [
            PointValues(dense_torus.inside(1, 10, 3)),
            LineIntegrals(dense_torus.inside(1, 30, 4), GaussLegendre(count=6)),
        ]
    )
    whitening = dense_torus.whitening("matern52", 1, 1)
    model = LogNormal(whitening, functionals, mean=ConstantMean(value=1.0))
    generator = rng(seed)
    truth = model.white_noise(np.random.default_rng(1))
    clean = model.apply(truth)
    sigma = noise * clean.abs().mean()
    white = torch.randn(len(clean), generator=generator, dtype=torch.float64)
    return model, clean + sigma * white, torch.full_like(clean, float(sigma) ** 2)


def dense_mode(model, y, noise):
    """The least of ``½|ε|² + ½ Σ r²/σ²`` by Newton's method with its full Hessian."""
    eye = torch.eye(model.latent_size, dtype=torch.float64)
    A = model.whitening.colour(eye).numpy().T
    W = model.weights.to_dense().numpy()
    sigma = np.sqrt(noise.numpy())

    def parts(eps):
        density = np.exp(A @ eps)
        return density, (W @ density - y.numpy()) / sigma

    def value(eps):
        _, r = parts(eps)
        return 0.5 * (eps @ eps + r @ r)

    def gradient(eps):
        density, r = parts(eps)
        return eps + A.T @ (density * (W.T @ (r / sigma)))

    def curvature(eps):
        density, r = parts(eps)
        J = (W * density) @ A / sigma[:, None]
        second = density * (W.T @ (r / sigma))
        return np.eye(len(eps)) + J.T @ J + A.T @ (second[:, None] * A)

    start = np.zeros(model.latent_size)
    best = scipy.optimize.minimize(
        value, start, jac=gradient, hess=curvature, method="trust-exact"
    )
    eps = best.x
    for _ in range(3):
        eps = eps - np.linalg.solve(curvature(eps), gradient(eps))
    assert np.linalg.eigvalsh(curvature(eps))[0] > 0
    return eps, value


# Whole steps run away from draw 6, and go back and forth in draw 0.
@pytest.mark.parametrize(
    ("seed", "noise"), [(0, 0.02), (1, 0.1), (6, 0.005), (11, 0.02)]
)
def test_a_model_that_is_not_linear_is_solved_to_its_mode(seed, noise):
    model, y, variance = log_normal(seed, noise)
    settings = FullBatch(
        solver=TIGHT,
        samples=0,
        newton_steps=100,
        newton_tolerance=0.0,
        subgrid_noise=False,
    )
    result = infer(model, y, variance, settings=settings, generator=rng())
    exact, value = dense_mode(model, y, variance)
    assert result.converged and result.newton_steps > 2
    assert value(result.mean.numpy()) == pytest.approx(value(exact), rel=1e-9)
    assert largest_error(result.mean, exact) < 1e-6


def test_too_few_newton_steps_are_told_and_never_make_it_worse():
    model, y, variance = log_normal(6, 0.005)
    _, value = dense_mode(model, y, variance)
    values = [value(np.zeros(model.latent_size))]
    settings = FullBatch(solver=TIGHT, samples=0, newton_steps=1, subgrid_noise=False)
    eps = None
    for _ in range(4):
        result = infer(
            model, y, variance, settings=settings, generator=rng(), start=eps
        )
        assert not result.converged and result.newton_steps == 1
        assert bool(result.mean_solution.converged.all())
        eps = result.mean
        values.append(value(eps.numpy()))
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("refine", [True, False])
def test_a_rough_mode_costs_no_accurate_solve(refine):
    model, y, variance = log_normal(6, 0.005)
    names = set()
    infer(
        model,
        y,
        variance,
        settings=FullBatch(samples=0, newton_tolerance=1e-2, refine=refine),
        generator=rng(),
        on_step=lambda task, *_: names.add(task.name),
    )
    assert ("decrement" in names) == refine


@pytest.mark.parametrize(
    ("error", "reached"),
    [(1e-3, True), pytest.param(1e-6, False, marks=pytest.mark.slow)],
)
def test_a_mode_without_samples_is_judged_by_an_accurate_solve(error, reached):
    """Rough solves gain little long before little is left."""
    model = dense_torus.log_normal(3.0 if reached else 2.0, 1200, seed=4)
    generator = rng()
    eps = model.white_noise(np.random.default_rng(1))
    y = model.apply(eps)
    settings = FullBatch(
        solver=ConjugateGradients(rtol=1e-10, max_steps=2000),
        samples=0,
        newton_steps=100,
        newton_tolerance=1e-2,
        subgrid_noise=False,
    )
    noise = torch.full_like(y, (error * float(y.mean())) ** 2)
    result = infer(model, y, noise, settings=settings, generator=generator)
    noise = Normal(stated=result.noise_variance)
    newton = GaussNewton(model=model, y=y, noise=noise, solver=TIGHT)
    fixed = min(len(y), model.latent_size)
    small = newton.decrement(result.mean) <= 5 * 1e-2 * fixed
    assert result.converged == reached == small
