"""Regression on a grid through its door: what it learns, and tables at its limits."""

import numpy as np
import pytest
import torch

from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from pipelines.base.errors import InputError
from pipelines.regress import Regressor

NOISE = 0.1


@pytest.fixture(autouse=True)
def smaller_searches(monkeypatch):
    fewer = {"_ROWS": 300, "_SCORED": 150, "_SEARCH_ROWS": 500, "_NOISES": (0.03, 0.3)}
    for name, value in fewer.items():
        monkeypatch.setattr(f"pipelines.regress.methods.{name}", value)


def grid(X, y, **options):
    return Regressor(method="grid", **options).fit(X, y)


def wave(count, inputs, seed=0):
    """Rows of a wave along the first input, and a slope along the last."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (count, inputs))
    truth = np.sin(6 * X[:, 0]) + X[:, -1]
    return X, truth, truth + NOISE * rng.standard_normal(count)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_noise_and_field_are_found_in_one_to_three_inputs(inputs):
    X, _, y = wave(500, inputs)
    model = grid(X, y)
    assert model.field_.converged
    assert model.hyperparameters()["noise"] == pytest.approx(NOISE, rel=0.15)
    there, truth, _ = wave(300, inputs, seed=1)
    found = model.distribution(there)
    error = found.mean - truth
    size = np.sqrt(np.mean(error**2))
    assert size < 0.25 * NOISE
    # The wave is smoother than fields of the prior.
    assert 0.4 < size / np.sqrt(np.mean(found.field_std**2)) < 1.5


def test_hidden_cells_of_a_raster_of_a_rough_field_are_in_their_intervals():
    """The field has an exponential covariance, drawn densely."""
    rng = np.random.default_rng(2)
    x, y = np.meshgrid(np.arange(44.0), np.arange(40.0), indexing="ij")
    X = np.column_stack([x.ravel(), y.ravel()])
    lag = np.linalg.norm(X[:, None] - X, axis=2)
    field = np.linalg.cholesky(np.exp(-lag / 12) + 1e-9 * np.eye(len(X)))
    field = field @ rng.standard_normal(len(X))
    seen = field + NOISE * rng.standard_normal(len(X))
    hidden = (np.hypot(x - 20, y - 18) < 6).ravel()
    model = grid(X[~hidden], seen[~hidden])
    assert model.hyperparameters()["kernel"] == "Matern12"
    mean, std = model.predict(X[hidden], return_std=True)
    z = np.abs(seen[hidden] - mean) / std
    assert 0.5 < np.mean(z < 1) < 0.85 and z.max() < 4.5


def test_a_target_that_is_linear_and_few_rows_are_fitted():
    X, *_ = wave(300, 2)
    line = 2 * X[:, 0] + 1
    np.testing.assert_allclose(grid(X, line).predict(X[:9]), line[:9], rtol=1e-6)
    X, _, y = wave(12, 2)
    mean, std = grid(X, y).predict(X, return_std=True)
    assert (np.abs(y - mean) < 4 * std).all()


def test_what_a_grid_cannot_have_is_refused():
    X, _, y = wave(300, 4)
    with pytest.raises(InputError):
        grid(X, y)
    model = grid(X[:, :1], y)
    assert np.isfinite(model.predict([[3.0]])).all()
    assert model.samples(X[:5, :1], 2).shape == (2, 5)
    with pytest.raises(InputError):
        model.samples([[3.0]], 2)


def test_an_input_that_does_not_vary_has_no_effect():
    X, truth, y = wave(300, 1)
    both = np.column_stack([X, np.ones(300)])
    found = grid(both, y).predict(both)
    assert np.sqrt(np.mean((found - truth) ** 2)) < 0.4 * NOISE


@pytest.mark.parametrize("method", ["exact", "grid"])
def test_values_derivatives_and_integrals_are_fitted_by_one_door(method):
    """A wave: values at the left, slopes and integrals on the right, with units."""
    rng = np.random.default_rng(5)
    left, right = rng.uniform(0, 50, (30, 1)), rng.uniform(50, 100, (30, 1))
    start, end = rng.uniform(50, 100, (2, 20, 1))
    rays = LineIntegrals(
        torch.from_numpy(end), GaussLegendre(count=4), start=torch.from_numpy(start)
    )
    length = np.abs(end - start)[:, 0]
    observed = Stack(
        [
            PointValues(torch.from_numpy(left)),
            Derivatives(torch.from_numpy(right), 0),
            rays,
        ]
    )
    turn, size = 2 * np.pi / 40, 300.0

    def wave(x):
        return 1000 + size * np.sin(turn * x)

    def integral(x):
        return 1000 * x - size / turn * np.cos(turn * x)

    y = np.concatenate(
        [
            wave(left[:, 0]),
            size * turn * np.cos(turn * right[:, 0]),
            np.sign(end - start)[:, 0] * (integral(end) - integral(start))[:, 0],
        ]
    )
    noise = np.concatenate([np.full(30, 6.0), np.full(30, 1.0), 1 + 0.3 * length])
    y += noise * rng.standard_normal(80)
    model = Regressor(method=method).fit(None, y, functionals=observed, noise=noise)
    there = np.linspace(2, 98, 50)
    found, std = model.predict(there[:, None], return_std=True)
    assert np.sqrt(np.mean((found - wave(there)) ** 2)) < 10
    assert 0.4 < np.sqrt(np.mean((found - wave(there)) ** 2 / std**2)) < 1.6
    slopes = Derivatives(torch.from_numpy(there[5:-5, None]), 0)
    mean, std = model.predict(None, True, functionals=slopes)
    error = mean - size * turn * np.cos(turn * there[5:-5])
    assert np.sqrt(np.mean(error**2)) < 0.1 * size * turn
    assert 0.3 < np.sqrt(np.mean((error / std) ** 2)) < 1.8


def test_functionals_that_do_not_fit_are_refused():
    X, _, y = wave(40, 1)
    slopes = Derivatives(torch.from_numpy(X), 0)
    for options in ({"method": "grid"}, {"method": "svgp"}):
        with pytest.raises(InputError):
            Regressor(**options).fit(None, y, functionals=slopes)
    with pytest.raises(InputError):
        Regressor().fit(X, y, functionals=slopes)
    with pytest.raises(InputError):
        Regressor(likelihood="student-t").fit(X, y, noise=np.ones(40))
    model = Regressor().fit(X, y)
    with pytest.raises(InputError):
        model.predict(None, functionals=Derivatives(torch.ones(2, 2), 0))


@pytest.mark.slow
def test_noise_by_rows_is_heeded():
    """Half of the rows are of noise 2: the field is that of the others."""
    X, truth, y = wave(400, 1)
    noise = np.where(np.arange(400) % 2, 2.0, 0.05)
    y = truth + noise * np.random.default_rng(3).standard_normal(400)
    for method in ("exact", "grid", "neighbours", "svgp"):
        model = Regressor(method=method).fit(X, y, noise=noise)
        error = model.predict(X) - truth
        assert np.sqrt(np.mean(error**2)) < 0.05, method
        assert model.hyperparameters()["noise"] < 0.1


@pytest.mark.parametrize(
    "kind", ["raster", pytest.param("waves", marks=pytest.mark.slow)]
)
def test_the_method_is_that_which_predicts_withheld_rows_better(kind):
    """A raster of one scale, and rows in three inputs without a grid for them."""
    rng = np.random.default_rng(6)
    if kind == "raster":
        x, y = np.meshgrid(np.arange(50.0), np.arange(44.0), indexing="ij")
        X = np.column_stack([x.ravel(), y.ravel()])
        target = np.sin(X[:, 0] / 5) * np.cos(X[:, 1] / 7)
    else:
        X = rng.uniform(0, 1, (2500, 3))
        target = np.sin(400 * X[:, 0]) + np.sin(390 * X[:, 1]) + np.sin(410 * X[:, 2])
    target = target + 0.2 * rng.standard_normal(len(X))
    model = Regressor().fit(X, target)
    assert model.method_ == ("grid" if kind == "raster" else "neighbours")
