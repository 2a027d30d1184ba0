"""Learning, safeguards and settings of sparse variational regression."""

import math

import pytest
import torch
from svgp_cases import (
    LEARN,
    ONE_STEP,
    POINTS,
    START,
    curve,
    fit,
    normal,
)

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpSettings, fit_svgp
from dustmap.kernels import Matern32
from dustmap.likelihoods import Bernoulli, Gaussian, StudentT
from dustmap.models import rowwise
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
    assert set(result.hyperparameter_trace) == {
        "kernel.lengthscale",
        "kernel.variance",
        "likelihood.variance",
        "mean",
    }


def test_minibatches_climb_to_the_optimum_of_all_data(generator):
    x, f = curve(generator, 90)
    data, y = PointValues(x), f + 0.5 * normal(generator, 90)
    noise = Gaussian(variance=0.25)
    best = fit(data, y, POINTS, noise, ONE_STEP, kernel=START).bound
    settings = SvgpSettings(steps=600, batch_size=30, learn=())
    found = fit(data, y, POINTS, noise, settings, kernel=START).bound
    assert best - 0.05 < found < best + 1e-9 * abs(best)


def test_outliers_cost_students_noise_less(generator):
    x, f = curve(generator, 300)
    y = f + 0.1 * normal(generator, 300)
    y[::15] += 5.0
    errors = {}
    for likelihood in (Gaussian(variance=0.1), StudentT(scale=0.3, degrees=4.0)):
        result = fit(PointValues(x), y, POINTS, likelihood, LEARN, kernel=START)
        moments = result.model.predict(PointValues(x))
        errors[type(likelihood)] = float((moments.mean - f).square().mean())
        assert math.isfinite(result.bound)
    assert errors[StudentT] < 0.1 * errors[Gaussian]


def test_classes_are_told_better_than_by_their_frequency(generator):
    x, f = curve(generator, 400)
    y = (
        torch.rand(400, generator=generator) < torch.special.ndtr(3 * (f - 0.5))
    ).double()
    train, test = slice(0, 300), slice(300, 400)
    result = fit(
        PointValues(x[train]), y[train], POINTS, Bernoulli(), LEARN, kernel=START
    )
    moments = result.model.predict(PointValues(x[test]))
    told = result.model.likelihood.predictive_log_density(
        y[test], moments.mean, moments.variance
    )
    frequency = float(y[train].mean())
    plain = torch.where(y[test] > 0, frequency, 1 - frequency).log()
    assert float(told.mean()) > float(plain.mean()) + 0.15


def test_learnt_points_go_where_the_data_are(generator):
    x, f = curve(generator, 200)
    start = 0.3 * POINTS[::2]
    data, y = PointValues(x), f + 0.1 * normal(generator, 200)
    keys = {"steps": 150, "batch_size": 100, "rate": 0.05}
    settings = SvgpSettings(learn=("likelihood.variance",), **keys)
    moved = SvgpSettings(learn=("likelihood.variance", "points"), **keys)
    noise = Gaussian(variance=0.1)
    kernel = Matern32(lengthscale=1.0, variance=1.0)
    fixed = fit(data, y, start, noise, settings, kernel=kernel)
    free = fit(data, y, start, noise, moved, kernel=kernel, nugget=1e-6)
    assert free.bound > fixed.bound + 30
    assert float(free.model.whitening.points.max()) > 2.0


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
            SvgpSettings(
                steps=12,
                batch_size=50,
                family=family,
                record_every=every,
            ),
            seed=seed,
            kernel=START,
        )
        for seed, every in ((3, 2), (3, 5), (4, 2))
    ]
    means = [r.model.predict(data).mean for r in results]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])
    assert results[0].recorded.tolist() == [0, 2, 4, 6, 8, 10]


def test_features_that_do_not_change_may_be_kept(generator):
    """Kept or made anew, blocks large or small: the same numbers."""
    x, f = curve(generator, 120)
    keys = {"steps": 10, "batch_size": 50, "learn": ("likelihood.variance", "mean")}
    fresh, kept = (
        fit(
            PointValues(x),
            f,
            POINTS,
            Gaussian(variance=0.1),
            SvgpSettings(row_memory=memory, **keys),
            kernel=START,
        )
        for memory in (0, 2**30)
    )
    torch.testing.assert_close(kept.model.q.mean, fresh.model.q.mean)
    assert kept.rows.rows == 120 < fresh.rows.rows


def test_prediction_in_blocks_is_prediction(generator, monkeypatch):
    x, f = curve(generator, 60)
    result = fit(
        PointValues(x), f, POINTS, Gaussian(variance=0.1), ONE_STEP, kernel=START
    )
    whole = result.model.predict(PointValues(x))
    monkeypatch.setattr(rowwise, "_BLOCK", 7 * len(POINTS))
    parts = result.model.predict(PointValues(x))
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.variance, whole.variance)


def test_rates_decay_at_their_fractions():
    settings = SvgpSettings(decay_at=(0.05, 0.25), epochs=3, batch_size=10)
    assert [settings.decayed(f) for f in (0.0, 0.05, 0.5)] == pytest.approx(
        [1.0, 0.1, 0.01]
    )
    assert settings.total_steps(21) == 9


def test_hyperparameters_rest_at_the_start(generator):
    x, f = curve(generator, 60)
    result = fit(
        PointValues(x),
        f,
        POINTS,
        Gaussian(variance=0.1),
        SvgpSettings(steps=10, rest=0.5, record_every=1),
        kernel=START,
    )
    trace = result.hyperparameter_trace["likelihood.variance"]
    assert bool((trace[:6] == trace[0]).all()) and trace[6] != trace[0]


def test_with_normal_noise_a_step_solves_for_the_mean_alone(generator):
    x, f = curve(generator, 60)
    keys = {"steps": 6, "batch_size": 20, "learn": (), "solves": "iterative"}
    solves = []
    for every in (1, 10):
        settings = SvgpSettings(record_every=every, **keys)
        result = fit(
            PointValues(x), f, POINTS, Gaussian(variance=0.1), settings, kernel=START
        )
        solves.append(result.solves.rows)
    assert solves == [6 * 21, 20 + 6]


SETTINGS = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"steps": 0}, "steps must be at least 1"),
    ({"family": "diagonal"}, "family is one of"),
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
    with pytest.raises(ValueError, match=message):
        fit(**given)


def test_data_that_do_not_fit_are_refused():
    refused("8 functionals need as many values", values=torch.ones(3))
    refused("1-D do not fit inducing points in 2-D", points=torch.eye(2))
    refused(
        "1 of 8 observations are not finite",
        values=torch.full((8,), math.nan).index_fill(0, torch.arange(7), 0.0),
    )
    refused("neither 0 nor 1", likelihood=Bernoulli())


def test_what_cannot_be_learnt_or_held_is_refused():
    refused(
        "cannot learn kernel.period", settings=SvgpSettings(learn=("kernel.period",))
    )
    refused("takes 0.0 GiB", settings=SvgpSettings(covariance_memory=10))
    refused("not positive definite", points=torch.zeros(2, 1))
