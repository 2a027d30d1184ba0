"""Hyperparameter gradients at the posterior against the dense collapsed objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_evidence import TAU2, solved

from dustmap.inference.scales.dual_gradient import DualSamples
from dustmap.inference.scales.evidence_gradient import evidence_gradient
from dustmap.inference.scales.hyperpoint import Hyperpoint

CASES = [(1, 2, False), (2, 2, False), (1, 1, False), (2, 2, True)]


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize(("refinement", "fine", "isotropic"), CASES)
def test_the_gradient_is_that_of_the_dense_objective(
    refinement, fine, isotropic, subgrid
):
    model, y, noise, theta, dense, exact = solved(refinement, fine, isotropic)
    mean, S = dense.posterior(theta, subgrid)
    # Every direction of S once: the trace is exact.
    root = np.linalg.cholesky(S).T * np.sqrt(len(S))
    found, _ = evidence_gradient(
        model,
        y,
        noise,
        TAU2,
        torch.from_numpy(mean),
        torch.from_numpy(root),
        subgrid_noise=subgrid,
    )
    assert set(found) == set(theta)
    for name, value in found.items():
        assert value.shape == theta[name].shape
        np.testing.assert_allclose(
            value.reshape(-1), exact[name][:, int(subgrid)], rtol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("subgrid", [False, True])
def test_sampled_gradients_scatter_as_they_say(subgrid):
    model, y, noise, theta, dense, exact = solved(2, 2, False)
    mean, S = dense.posterior(theta, subgrid)
    root = torch.from_numpy(np.linalg.cholesky(S))
    scores = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        white = torch.randn(12, len(S), generator=generator, dtype=torch.float64)
        found, errors = evidence_gradient(
            model,
            y,
            noise,
            TAU2,
            torch.from_numpy(mean),
            white @ root.mT,
            subgrid_noise=subgrid,
        )
        for name in ("lengthscale", "variance", "common_noise"):
            off = found[name].reshape(-1).numpy() - exact[name][:, int(subgrid)]
            scores.extend(off / errors[name].reshape(-1).numpy())
        # The prediction is linear in the mean's amplitude: only m counts.
        assert float(errors["mean"]) < 1e-9
    # Twelve pairs: Student's distribution with 11 degrees of freedom; 80 numbers.
    assert np.abs(scores).max() < 4.5
    assert 0.7 < np.std(scores) < 1.4


def test_one_pair_has_no_scatter():
    model, y, noise, *_ = solved(2, 2, False)
    zero = torch.zeros(model.latent_size, dtype=torch.float64)
    _, errors = evidence_gradient(
        model, y, noise, TAU2, zero, zero[None], subgrid_noise=True
    )
    assert all(bool(torch.isinf(value).all()) for value in errors.values())


@pytest.mark.parametrize("subgrid", [False, True])
@pytest.mark.parametrize(("refinement", "fine", "isotropic"), CASES)
def test_dual_samples_have_the_gradient_of_the_dense_objective(
    refinement, fine, isotropic, subgrid
):
    model, y, noise, theta, dense, exact = solved(refinement, fine, isotropic)
    mean, _ = dense.posterior(theta, subgrid)
    tangent = model.linearise(torch.from_numpy(mean))
    point = Hyperpoint(model=model, common_noise=TAU2)
    total = point.noise(noise) + subgrid * model.variance
    Phi = torch.from_numpy(dense.features(theta))
    C = Phi @ Phi.mT + total.diag()
    # Every direction of the inverse covariance once, all with one sign: their mean is
    # not zero, and Lμ must not feel it.
    draws = torch.linalg.cholesky(torch.linalg.inv(C)).mT * len(C) ** 0.5
    samples = DualSamples(
        weights=(y - tangent.prediction) / total,
        draws=draws,
        noise=point.noise(noise),
        variance=model.variance,
        subgrid_noise=subgrid,
    )
    found = samples.gradient(point, tangent)
    for name, value in found.items():
        np.testing.assert_allclose(
            value.reshape(-1), exact[name][:, int(subgrid)], rtol=1e-6, err_msg=name
        )
