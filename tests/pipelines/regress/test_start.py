"""Where regressions begin, and what more rows make of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dustmap.gp.exact import ExactGP
from dustmap.kernels import Matern52
from dustmap.likelihoods import Gaussian
from pipelines.regress import dense
from pipelines.regress.fitted import Problem
from pipelines.regress.start import (
    Start,
    earlier_neighbours,
    find_start,
    ranges_of,
)


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


def good_start(x):
    """Near the scales of largest evidence of `ages`."""
    return Start(
        kernel=Matern52(lengthscale=[2.5, 30.0], variance=40.0),
        noise=0.016,
        mean=0.0,
        why="",
        converged=True,
        ranges=ranges_of(x),
    )


@pytest.mark.parametrize("most_exact", [2_000, 300])
def test_more_rows_raise_the_evidence_of_all(monkeypatch, generator, most_exact):
    monkeypatch.setattr("pipelines.regress.start._EXACT", most_exact)
    x, y = ages(700)
    start = good_start(x)
    # From another noise, which rows see at once, and from scales that are too short.
    off = replace(start, noise=0.1, kernel=Matern52(lengthscale=[1.0, 5.0]))
    found = off.refined(x, y, generator)
    assert found.converged
    evidence = [each.exact(x, y).log_marginal() for each in (off, start, found)]
    assert evidence[2] > evidence[0] + 100 and evidence[2] > evidence[1] - 5
    assert found.noise == pytest.approx(0.016, rel=0.15)
    assert float(found.kernel.lengthscale[0]) == pytest.approx(2.5, rel=0.5)


def test_scales_do_not_run_away_where_nothing_holds_them(monkeypatch, generator):
    monkeypatch.setattr("pipelines.regress.start._EXACT", 300)
    x, y = ages(400, seed=1)
    kernel = Matern52(lengthscale=[5.0, 150.0], variance=1000.0)
    start = replace(good_start(x), kernel=kernel, ranges={})
    found = start.refined(x, y, generator)
    before, after = (each.exact(x, y).log_marginal() for each in (start, found))
    assert after > before - 15


def test_a_second_search_that_lowers_the_evidence_is_not_taken(monkeypatch, generator):
    monkeypatch.setattr(dense, "ROWS", 50)
    x, y = ages(200)
    runaway = replace(good_start(x), kernel=Matern52(lengthscale=[900.0, 2000.0]))
    monkeypatch.setattr(Start, "refined", lambda *_: runaway)
    problem = Problem(x=x, y=y, everywhere=x, likelihood=Gaussian, generator=generator)
    found = dense.fit_exact(problem)
    assert float(found.kernel.lengthscale[0]) < 10
    kept = ExactGP.log_marginal(replace(good_start(x), kernel=found.kernel).exact(x, y))
    assert found.facts["log_evidence"] > kept - 50


def test_neighbours_are_the_nearest_of_the_rows_before(generator):
    x = torch.randn(1_300, 2, generator=generator, dtype=torch.float64)
    near = earlier_neighbours(x, 5)
    assert near.shape == (1_295, 5)
    for row in (5, 6, 1_003, 1_299):
        apart = (x[:row] - x[row]).norm(dim=1)
        assert set(near[row - 5].tolist()) == set(apart.argsort()[:5].tolist())


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
    start = find_start(x, y, generator)
    fast, slow = start.kernel.lengthscale.tolist()
    assert start.noise < 0.06 and fast < 1 < slow
    assert start.converged


def test_rows_without_noise_end_at_a_variance_that_has_a_factor(generator):
    x = torch.linspace(-2, 2, 400, dtype=torch.float64)[:, None]
    start = find_start(x, torch.sinc(x[:, 0]), generator)
    assert 1e-8 <= start.noise < 1e-6 and start.converged
