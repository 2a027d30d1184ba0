"""Regression on a grid through its door: what it learns, and tables at its limits."""

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.regress import Regressor

NOISE = 0.1


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
    X, _, y = wave(800, inputs)
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
    x, y = np.meshgrid(np.arange(40.0), np.arange(30.0), indexing="ij")
    X = np.column_stack([x.ravel(), y.ravel()])
    lag = np.linalg.norm(X[:, None] - X, axis=2)
    field = np.linalg.cholesky(np.exp(-lag / 12) + 1e-9 * np.eye(len(X)))
    field = field @ rng.standard_normal(len(X))
    seen = field + NOISE * rng.standard_normal(len(X))
    hidden = (np.hypot(x - 14, y - 12) < 6).ravel()
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
    with pytest.raises(InputError):
        grid(np.column_stack([X[:, 0], np.ones(300)]), y)
    model = grid(X[:, :1], y)
    assert np.isfinite(model.predict([[3.0]])).all()
    assert model.samples(X[:5, :1], 2).shape == (2, 5)
    with pytest.raises(InputError):
        model.samples([[3.0]], 2)
