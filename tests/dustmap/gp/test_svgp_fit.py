"""Learning, safeguards and settings of sparse variational regression."""

import math

import pytest
import torch
from svgp_cases import ONE_STEP, POINTS, START, curve, fit, normal

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.likelihoods import Gaussian
from dustmap.whitening import CiqWhitening


def test_scales_are_learnt_through_contour_quadrature(generator):
    x, f = curve(generator, 80)
    y = f + 0.2 * normal(generator, 80)
    result = fit_svgp(
        PointValues(x),
        y,
        CiqWhitening(START, POINTS[::2], nugget=1e-3),
        Gaussian(variance=1.0),
        generator=generator,
        settings=SvgpSettings(steps=40, batch_size=40, rate=0.1, record_every=39),
    )
    assert float(result.model.likelihood.parameters()["variance"]) < 0.2
    assert result.bound > result.bound_trace[0] + 50
    assert float(result.model.kernel.parameters()["lengthscale"]) < 0.9
    assert result.rows.unconverged == 0 and result.rows.iterations > 1


@pytest.mark.parametrize("family", ["full", "mean-field"])
def test_learning_recovers_the_noise(family, generator):
    x, f = curve(generator, 300)
    y = f + 0.2 * normal(generator, 300)
    settings = SvgpSettings(steps=250, batch_size=100, rate=0.05, family=family)
    result = fit(
        PointValues(x), y, POINTS, Gaussian(variance=1.0), settings, kernel=START
    )
    found = float(result.model.likelihood.parameters()["variance"])
    assert found == pytest.approx(0.04, rel=0.3)
    moments = result.model.predict(PointValues(x))
    assert float((moments.mean - f).square().mean().sqrt()) < 0.1
    assert result.bound_trace[-1] > result.bound_trace[0]
    assert set(result.learnt) == {
        "kernel.lengthscale",
        "kernel.variance",
        "likelihood.variance",
        "mean",
    }


@pytest.mark.parametrize("family", ["mean-field", "full"])
def test_the_same_seed_gives_the_same_fit(family, generator):
    x, f = curve(generator, 120)
    data = PointValues(x)
    results = [
        fit(
            data,
            f,
            POINTS,
            Gaussian(variance=0.1),
            SvgpSettings(steps=12, batch_size=50, family=family, record_every=every),
            seed=seed,
            kernel=START,
        )
        for seed, every in ((3, 2), (3, 5), (4, 2))
    ]
    means = [r.model.predict(data).mean for r in results]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])
    assert len(results[0].bound_trace) == 6


def test_hyperparameters_rest_at_the_start(generator):
    x, f = curve(generator, 60)
    learnt = []
    for rest in (0.95, 0.85):
        settings = SvgpSettings(steps=10, rest=rest)
        noise = Gaussian(variance=0.1)
        result = fit(PointValues(x), f, POINTS, noise, settings, kernel=START)
        learnt.append(float(result.learnt["likelihood.variance"]))
    assert learnt[0] == pytest.approx(0.1, rel=1e-12)
    assert abs(learnt[1] / 0.1 - 1) > 1e-5


SETTINGS = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"family": "diagonal"}, "family must be one of"),
    ({"natural_rate": 1.5}, "natural_rate"),
    ({"rate": -1.0}, "rate must be positive"),
    ({"decay_at": (1.5,)}, "fractions"),
]


@pytest.mark.parametrize(("keys", "message"), SETTINGS)
def test_settings_that_cannot_be_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        SvgpSettings(**keys)


def refused(message: str, **keys) -> None:
    x = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    given = {
        "functionals": PointValues(x),
        "values": x[:, 0],
        "points": x[::2],
        "likelihood": Gaussian(variance=0.1),
        "settings": ONE_STEP,
        "kernel": START,
        **keys,
    }
    with pytest.raises((ValueError, FloatingPointError), match=message):
        fit(**given)


def test_data_that_do_not_fit_are_refused():
    refused("one value for each of 8 functionals", values=torch.ones(3))
    refused("1-D do not fit inducing points in 2-D", points=torch.eye(2))
    refused(
        "1 of 8 observations are not finite",
        values=torch.full((8,), math.nan).index_fill(0, torch.arange(7), 0.0),
    )


def test_what_cannot_be_learnt_or_held_is_refused():
    refused(
        "cannot learn kernel.period", settings=SvgpSettings(learn=("kernel.period",))
    )
    refused("takes 0.0 GiB", settings=SvgpSettings(covariance_memory=10))
    refused("not positive definite", points=torch.zeros(2, 1))
