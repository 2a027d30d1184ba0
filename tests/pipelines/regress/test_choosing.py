"""Which methods are tried on a table, and which of them is taken."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues
from dustmap.gp.exact import ExactGP
from dustmap.inference.svi.bound import LatentMoments
from dustmap.kernels import Matern52
from dustmap.likelihoods import Gaussian
from pipelines.regress import Options, choosing
from pipelines.regress.choosing import choose, seconds
from pipelines.regress.fitted import FittedModel, Problem
from pipelines.regress.neighbours import fit_neighbours, prediction_seconds

NOISE = 0.1


def problem(count=2200, axes=2, seed=0, noise=NOISE):
    """Rows of a wave along the first input."""
    random = np.random.default_rng(seed)
    x = torch.as_tensor(random.uniform(-2, 2, (count, axes)))
    y = torch.sin(3 * x[:, 0]) + noise * torch.as_tensor(random.normal(size=count))
    generator = torch.Generator().manual_seed(seed)
    return Problem(x=x, y=y, everywhere=x, likelihood=Gaussian, generator=generator)


@pytest.fixture(autouse=True)
def smaller_searches(monkeypatch):
    """Tables here are easier than most."""
    small = {"_KERNELS": ("matern32",), "_SCORED": 150, "_MORE_SCORED": 250}
    for name, value in small.items():
        monkeypatch.setattr(f"pipelines.regress.neighbours.{name}", value)


def constant(value, fits, *, refits=False):
    """A method that predicts one value, and notes how many rows it was given."""

    def fit(part):
        fits.append(len(part.x))

        def refit(x, y):
            fits.append((len(x), "again"))
            return model

        model = FittedModel(
            latent=lambda x: LatentMoments(
                torch.full((len(x),), value, dtype=torch.float64),
                torch.zeros(len(x), dtype=torch.float64),
            ),
            likelihood=Gaussian(variance=1.0),
            kernel=Matern52(lengthscale=1.0),
            mean=value,
            why="",
            converged=True,
            refit=refit if refits else None,
        )
        return model

    return fit


@pytest.fixture
def methods(monkeypatch):
    """Stand-ins: neighbours predict 9, hip 0, exact 3; who was fitted to what."""
    fits = {name: [] for name in ("neighbours", "hip", "exact")}
    values = {"neighbours": 9.0, "hip": 0.0, "exact": 3.0}
    made = {n: constant(values[n], fits[n], refits=n == "neighbours") for n in fits}
    monkeypatch.setattr("pipelines.regress.choosing._METHODS", made)
    return fits


def test_the_best_on_held_out_rows_is_fitted_to_all_of_them(methods):
    budget = sum(seconds(name, 2200, 2) for name in methods) + 1
    choice = choose(problem(), Options(target="y", time_budget=budget))
    assert choice.method == "hip" and choice.model.mean == 0
    assert choice.why == "the best on held-out rows"
    assert set(choice.tried) == set(methods)
    assert choice.tried["hip"] > choice.tried["exact"] > choice.tried["neighbours"]
    assert list(choice.untried) == ["svgp"]
    assert methods == {"neighbours": [1980], "hip": [1980, 2200], "exact": [1980]}


def test_slow_methods_are_not_tried_and_their_times_are_known(methods):
    choice = choose(problem(), Options(target="y"))
    assert choice.method == "neighbours" and list(choice.tried) == ["neighbours"]
    assert choice.untried == {n: seconds(n, 2200, 2) for n in ("hip", "exact", "svgp")}
    assert min(choice.untried.values()) > 30 - seconds("neighbours", 2200, 2)
    assert methods["neighbours"] == [1980, (2200, "again")] and not methods["hip"]


def test_the_score_is_the_mean_log_density_of_rows_that_were_not_fitted(
    methods, monkeypatch
):
    data, parts = problem(), []
    flat = constant(0.0, [])
    monkeypatch.setitem(
        choosing._METHODS, "neighbours", lambda part: parts.append(part) or flat(part)
    )
    choice = choose(data, Options(target="y", time_budget=1.0))
    fitted = set(parts[0].y.tolist())
    held = torch.tensor([v for v in data.y.tolist() if v not in fitted])
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(held).mean()
    assert len(held) == 220
    assert choice.tried["neighbours"] == pytest.approx(float(expected), rel=1e-6)


def test_neighbours_learn_noise_and_which_input_matters():
    data = problem()
    model = fit_neighbours(data)
    assert model.converged
    assert float(model.likelihood.variance) ** 0.5 == pytest.approx(NOISE, rel=0.15)
    scales = model.kernel.lengthscale.tolist()
    assert scales[1] > 5 * scales[0]
    there = problem(seed=1)
    found = model.latent(there.x)
    error = found.mean - torch.sin(3 * there.x[:, 0])
    assert float(error.std()) < 0.3 * NOISE


def test_a_refit_keeps_what_was_learnt_and_predicts_from_the_new_rows():
    few, data = problem(300), problem(300, seed=4)
    model = fit_neighbours(few)
    again = model.refit(data.x, data.y)
    assert torch.equal(again.kernel.lengthscale, model.kernel.lengthscale)
    exact = ExactGP(
        model.kernel,
        PointValues(data.x),
        data.y,
        noise=model.likelihood.variance,
        mean=model.mean,
    ).predict(PointValues(few.x[:50]))
    found = again.latent(few.x[:50]).mean
    assert float((found - exact.mean).abs().max()) < 0.05
    assert float((model.latent(few.x[:50]).mean - exact.mean).abs().max()) > 0.05


def test_more_neighbours_are_taken_while_they_help_and_there_is_time(monkeypatch):
    model = fit_neighbours(problem(300, axes=1))
    scores = model.facts["log_score_by_neighbours"]
    *before, last = scores.values()
    assert len(before) >= 1 and last < max(before) + 5e-3
    assert scores[model.facts["neighbours"]] >= max(scores.values()) - 5e-3
    assert prediction_seconds(1000, 400) > 10 * prediction_seconds(1000, 100)
    monkeypatch.setattr("pipelines.regress.neighbours._PREDICTION", 1e-9)
    data = problem(300, axes=1)
    more = torch.cat([data.x, data.x])
    hurried = fit_neighbours(replace(data, everywhere=more))
    assert list(hurried.facts["log_score_by_neighbours"]) == [32]


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_rows_without_noise_are_no_failure(noise):
    data = problem(300, axes=1, noise=noise)
    there = problem(50, axes=1, seed=1, noise=0.0)
    found = fit_neighbours(data).latent(there.x)
    assert float((found.mean - there.y).abs().max()) < 1e-3
    assert float(found.variance.min()) > -1e-6


def test_the_command_reports_the_choice(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipelines.regress.options.EXACT_ROWS", 100)
    data = problem(300, axes=4)
    table = np.column_stack([data.x.numpy(), 5 * data.y.numpy()])
    np.savetxt("t.csv", table, delimiter=",", header="a,b,c,d,y", comments="")
    done = command("regress t.csv -o run --target y --time-budget 21")
    assert done.exit_code == 0, done.output
    assert "method: neighbours (the only one tried)" in done.output
    assert "log density per row held out of the fit: neighbours " in done.output
    assert "not tried within --time-budget 21: exact (some " in done.output
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["method"] == "neighbours"
    assert str(summary["neighbours"]) in summary["log_score_by_neighbours"]
    assert set(summary["tried"]) == {"neighbours"}
    assert set(summary["not_tried"]) == {"exact", "svgp"}
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert summary["tried"]["neighbours"] == pytest.approx(-metrics["nll"], abs=0.5)
    assert metrics["rmse"] < 0.5 * metrics["std_of_truth"]
