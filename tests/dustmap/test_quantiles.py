"""Quantiles, and moments of a density that is positive."""

from __future__ import annotations

import dense_torus
import numpy as np
import pytest
import scipy.stats
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues, Stack
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.moments import Moments
from dustmap.posterior import Posterior


def rng(seed=1):
    return torch.Generator().manual_seed(seed)


def test_quantiles_are_those_of_a_normal_distribution():
    mean, std = (torch.tensor(v).double() for v in ([1.0, -2.0, 0.0], [0.5, 2.0, 0.0]))
    moments = Moments(mean=mean, std=std)
    for p in (0.025, 0.5, 0.8):
        exact = scipy.stats.norm.ppf(p, loc=mean, scale=std.clamp(min=1e-300))
        np.testing.assert_allclose(moments.quantile(p), exact, rtol=1e-9, atol=1e-12)


def test_quantiles_of_a_positive_model_are_log_normal():
    m, s = (torch.tensor(v).double() for v in ([0.3, -2.0], [0.5, 1.2]))
    mean = (m + s**2 / 2).exp()
    moments = Moments(mean=mean, std=mean * (s**2).expm1().sqrt(), positive=True)
    for p in (0.025, 0.5, 0.8):
        exact = scipy.stats.lognorm.ppf(p, s.numpy(), scale=m.exp().numpy())
        np.testing.assert_allclose(moments.quantile(p), exact, rtol=1e-9)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, float("nan")])
def test_probabilities_that_are_none_are_refused(probability):
    moments = Moments(mean=torch.zeros(1), std=torch.ones(1))
    with pytest.raises(ValueError, match="between 0 and 1"):
        moments.quantile(probability)


def positive_posterior(samples=12):
    """Samples of a log-normal density, and functionals, the last without length."""
    ends = dense_torus.inside(2, 7, 4)
    ends[-1] = 0
    others = Stack(
        [
            PointValues(dense_torus.inside(2, 6, 3)),
            LineIntegrals(ends, GaussLegendre(count=5)),
        ]
    )
    whitening = dense_torus.whitening("matern32", 2, 1)
    model = LogNormal(whitening, others, mean=ConstantMean(value=0.6))
    shape = (samples, model.latent_size)
    eps = 0.6 * torch.randn(shape, generator=rng(3), dtype=torch.float64)
    return Posterior(model=model, mean=eps[0], samples=eps), others


def test_moments_of_a_positive_model_are_those_over_its_samples():
    posterior, others = positive_posterior()
    moments = posterior.moments(others)
    values = posterior.model.apply(posterior.samples).numpy()
    each = np.stack(
        [posterior.model.linearise(one).variance.numpy() for one in posterior.samples]
    )
    v = each.mean(axis=0)
    assert (v[:-1] > 1e-3 * values.var(axis=0)[:-1]).all()
    # Another mean than that of the mode, which is not what samples average to.
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-10)
    std = np.sqrt(values.var(axis=0, ddof=1) + v)
    np.testing.assert_allclose(moments.std, std, rtol=1e-10)


def test_a_ray_without_length_has_nothing_at_every_quantile():
    posterior, others = positive_posterior()
    moments = posterior.moments(others)
    assert float(moments.mean[-1]) == float(moments.std[-1]) == 0.0
    for p in (0.02, 0.5, 0.98):
        quantile = moments.quantile(p)
        assert float(quantile[-1]) == 0.0
        assert bool((quantile[:-1] > 0).all())
    draws = posterior.draws(others, rng(5))
    assert bool((draws[:, -1] == 0).all()) and bool((draws[:, :-1] > 0).all())


def test_quantiles_of_a_positive_model_are_those_of_its_draws():
    posterior, others = positive_posterior(samples=1500)
    moments = posterior.moments(others)
    draws = posterior.draws(others, rng(5))[:, :-1].numpy()
    for p in (0.16, 0.5, 0.84):
        below = (draws < moments.quantile(p)[:-1].numpy()).mean(axis=0)
        # Integrals of a log-normal density are not quite log-normal themselves.
        assert np.abs(below - p).max() < 0.03
