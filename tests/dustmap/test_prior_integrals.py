"""The prior's extinction along a ray, against dense sums and closed forms."""

import json

import numpy as np
import pytest
import torch

from dustmap.kernels import KERNELS
from dustmap.models.means import ExponentialDisc
from dustmap.models.prior_integrals import PriorIntegrals
from dustmap.whitening.bands import band_covariance

DISC = ExponentialDisc(
    value=1e-3, scale_height=110.0, scale_length=3200.0, centre_distance=8178.0
)
# l, b [deg], and both ends [pc].
RAYS = [(0, 60, 460, 2000), (180, 20, 1170, np.inf), (90, 5, 1250, 3000), (9, 80, 4, 9)]


def correlation(
    name="matern32", lengthscale=(150.0, 150.0, 80.0), bend=(), positive=True
):
    variance = 1.2 if positive else 1e-8
    return KERNELS[name](lengthscale=list(lengthscale), variance=variance, bend=bend)


def prior(*given, positive=True):
    kernel = correlation(*given, positive=positive)
    return PriorIntegrals.of(DISC, kernel, positive=positive)


def towards(l, b):  # noqa: E741
    l, b = np.radians(l), np.radians(b)  # noqa: E741
    return np.array([np.cos(b) * np.cos(l), np.cos(b) * np.sin(l), np.sin(b)])


def dense(law, kernel, direction, start, end, count=6000):
    """Mean and variance by sums over all pairs of points."""
    step = (end - start) / count
    along = start + step * (np.arange(count) + 0.5)
    mean = DISC(torch.from_numpy(along[:, None] * direction)).numpy()
    rate = np.linalg.norm(direction / kernel.lengthscale.numpy())
    lag = torch.from_numpy(step * rate * np.arange(count))
    values = band_covariance(kernel, 0.0, np.inf, lag).numpy()
    size = np.ones(count)
    if law.positive:
        values, size = np.expm1(values), mean
    pairs = (
        size @ np.convolve(size, np.r_[values[:0:-1], values])[count - 1 : -count + 1]
    )
    return mean.sum() * step, pairs * step**2


@pytest.mark.parametrize(
    ("name", "lengthscale", "bend"),
    [
        ("matern12", (100.0, 100.0, 100.0), (-0.02, -0.2, -0.4)),
        ("matern32", (150.0, 150.0, 80.0), ()),
        ("matern52", (300.0, 300.0, 300.0), (0.3, 0.8)),
    ],
)
@pytest.mark.parametrize(("l", "b", "start", "end"), RAYS)
def test_moments_are_those_of_dense_sums(name, lengthscale, bend, l, b, start, end):  # noqa: E741
    law, direction = prior(name, lengthscale, bend), towards(l, b)
    found = law.moments(direction[None], np.array([start]), np.array([end]))
    last = 25 * 110 / np.sin(np.radians(b)) if np.isinf(end) else end
    kernel = correlation(name, lengthscale, bend)
    mean, variance = dense(law, kernel, direction, start, last)
    assert found[0][0] == pytest.approx(mean, rel=1e-4)
    assert found[1][0] == pytest.approx(variance, rel=1e-3)


def test_a_normal_density_has_the_same_variance_everywhere():
    law, direction = prior(positive=False), towards(90, 5)
    (_, found) = law.moments(direction[None], np.array([100.0]), np.array([900.0]))
    known = dense(law, correlation(positive=False), direction, 100.0, 900.0)[1]
    assert found[0] == pytest.approx(known, rel=1e-3)
    with pytest.raises(ValueError, match="finite"):
        law.moments(direction[None], np.array([100.0]), np.array([np.inf]))


def test_straight_up_the_mean_is_that_of_an_exponential():
    up, ends = np.array([[0.0, 0.0, 1.0]] * 3), np.array([400.0, 700.0, np.inf])
    mean, variance = prior().moments(up, np.full(3, 400.0), ends)
    known = 1e-3 * 110 * (np.exp(-400 / 110) - np.exp(-ends / 110))
    np.testing.assert_allclose(mean, known, rtol=1e-6)
    assert variance[0] == 0.0


@pytest.mark.parametrize("positive", [True, False])
def test_moments_scale_with_the_density(positive):
    law, direction = prior(positive=positive), towards(90, 30)[None]
    ends = np.array([100.0]), np.array([900.0])
    for own, scaled in (
        (law.moments(direction, *ends), law.scaled(3.0).moments(direction, *ends)),
        (law.at(100 * direction), law.scaled(3.0).at(100 * direction)),
    ):
        np.testing.assert_allclose(scaled[0], 3 * own[0])
        np.testing.assert_allclose(scaled[1], 9 * own[1])


def test_plain_numbers_have_the_prior():
    law, direction = prior(), towards(90, 30)[None]
    ends = np.array([100.0]), np.array([900.0])
    again = PriorIntegrals.from_dict(json.loads(json.dumps(law.as_dict())))
    np.testing.assert_allclose(
        again.moments(direction, *ends), law.moments(direction, *ends), rtol=1e-5
    )
