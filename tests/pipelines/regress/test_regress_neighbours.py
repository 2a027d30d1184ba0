"""Regression on nearest rows: what is learnt, and how many neighbours are taken."""

import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from pipelines.regress.methods import METHODS, Observed

NOISE = 0.1


def wave(count=2200, axes=2, seed=0, noise=NOISE):
    """Rows of a wave along the first input."""
    random = np.random.default_rng(seed)
    x = torch.as_tensor(random.uniform(-2, 2, (count, axes)))
    return x, torch.sin(3 * x[:, 0]) + noise * torch.as_tensor(
        random.normal(size=count)
    )


def fit(x, y, seed=0):
    data = Observed(PointValues(x), y)
    return METHODS["neighbours"](data, torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def smaller_searches(monkeypatch):
    """Tables here are easier than most."""
    fewer = {"_SCORED": 150, "_SEARCH_ROWS": 250, "_ROWS": 300, "_NOISES": (0.03, 0.3)}
    for name, value in fewer.items():
        monkeypatch.setattr(f"pipelines.regress.methods.{name}", value)


def test_noise_is_learnt_and_which_input_matters():
    model = fit(*wave())
    assert model.converged
    assert float(model.likelihood.variance) ** 0.5 == pytest.approx(NOISE, rel=0.15)
    scales = model.kernel.lengthscale.tolist()
    assert scales[1] > 5 * scales[0]
    x, _ = wave(seed=1)
    error = model.model.predict(PointValues(x)).mean - torch.sin(3 * x[:, 0])
    assert float(error.std()) < 0.3 * NOISE


def test_predictions_are_near_the_exact_posterior_of_these_hyperparameters():
    x, y = wave(300)
    model, there = fit(x, y), wave(50, seed=4)[0]
    exact = ExactGP(
        model.kernel,
        PointValues(x),
        y,
        noise=model.likelihood.variance,
        mean=model.model.mean,
    ).predict(PointValues(there))
    assert (
        float((model.model.predict(PointValues(there)).mean - exact.mean).abs().max())
        < 0.05
    )


def test_more_neighbours_are_taken_while_they_help_and_there_is_time(monkeypatch):
    model = fit(*wave(300, axes=1))
    scores = model.facts["log_score_by_neighbours"]
    *before, last = scores.values()
    assert len(before) >= 1 and last < max(before) + 5e-3
    assert scores[model.facts["neighbours"]] >= max(scores.values()) - 5e-3
    monkeypatch.setattr("pipelines.regress.methods._PREDICTION", 1e-9)
    hurried = fit(*wave(300, axes=1))
    assert list(hurried.facts["log_score_by_neighbours"]) == [32]


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_rows_without_noise_are_no_failure(noise):
    x, y = wave(50, axes=1, seed=1, noise=0.0)
    found = fit(*wave(300, axes=1, noise=noise)).model.predict(PointValues(x))
    assert float((found.mean - y).abs().max()) < 1e-3
    assert float(found.variance.min()) > -1e-6
