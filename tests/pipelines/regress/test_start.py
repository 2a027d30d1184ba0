"""Where regressions begin, and what more rows make of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.functionals import PointValues
from dustmap.gp.evidence import maximise
from dustmap.gp.exact import ExactGP
from dustmap.kernels import Matern52
from pipelines.regress.methods import METHODS, Observed, find_start, ranges_of


def standardised(*columns):
    columns = [(column - column.mean()) / column.std() for column in columns]
    *x, y = (torch.as_tensor(column) for column in columns)
    return torch.stack(x, dim=1), y


def ages(count, seed=0):
    """A wave along the first input, a slope along the second, noise of 0.1."""
    random = np.random.default_rng(seed)
    age, feh = random.uniform(0, 10, count), random.uniform(0, 5, count)
    mass = np.sin(age) + 0.3 * feh + random.normal(0, 0.1, count)
    return standardised(age, feh, mass)


def test_more_rows_raise_the_evidence_of_all(monkeypatch, generator):
    x, y = ages(450)
    monkeypatch.setattr("pipelines.regress.methods._ROWS", 100)
    found = {}
    for more in (1, 450):
        monkeypatch.setattr("pipelines.regress.methods._MORE_ROWS", max(more, 101))
        found[more] = METHODS["exact"](Observed(PointValues(x), y), generator)
    assert found[450].converged
    assert found[450].facts["log_evidence"] >= found[1].facts["log_evidence"] - 1
    assert float(found[450].likelihood.variance) == pytest.approx(0.016, rel=0.15)
    assert float(found[450].kernel.lengthscale[0]) == pytest.approx(2.5, rel=0.5)


def test_a_second_search_that_lowers_the_evidence_is_not_taken(monkeypatch, generator):
    x, y = ages(200)
    monkeypatch.setattr("pipelines.regress.methods._ROWS", 50)
    kernel = Matern52(lengthscale=[2.5, 30.0], variance=40.0)

    def runaway(model, settings):
        found = maximise(model, settings)
        if len(model) < 200:
            return found
        far = model.with_parameters({"lengthscale": torch.tensor([30.0, 30.0])})
        return replace(found, model=far)

    monkeypatch.setattr("pipelines.regress.methods.maximise", runaway)
    found = METHODS["exact"](Observed(PointValues(x), y), generator)
    assert float(found.kernel.lengthscale[0]) < 10
    good = ExactGP(kernel, PointValues(x), y, noise=0.016).log_marginal()
    assert found.facts["log_evidence"] > good - 50


def test_ranges_are_those_of_the_inputs():
    steps = torch.tensor([0.0, 0.0, 2.0, 4.0, 6.0], dtype=torch.float64)
    x = torch.stack([steps, torch.ones(5, dtype=torch.float64)], dim=1)
    low, high = ranges_of(x)["lengthscale"]
    assert low.tolist() == pytest.approx([0.2, 0.1])
    assert high.tolist() == pytest.approx([60.0, 10.0])


@pytest.mark.parametrize("seed", range(3))
def test_a_fast_wave_is_found_beside_a_steep_slope(generator, seed):
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (500, 2))
    y = np.sin(60 * x[:, 0]) + 3 * x[:, 1] + random.normal(0, 0.2, 500)
    x, y = standardised(*x.T, y)
    start = find_start(Observed(PointValues(x), y), generator)
    fast, slow = start.kernel.lengthscale.tolist()
    assert start.noise < 0.06 and fast < 1 < slow


def test_rows_without_noise_end_at_a_variance_that_has_a_factor(generator):
    x = torch.linspace(-2, 2, 400, dtype=torch.float64)[:, None]
    start = find_start(Observed(PointValues(x), torch.sinc(x[:, 0])), generator)
    assert 1e-8 <= start.noise < 1e-6
