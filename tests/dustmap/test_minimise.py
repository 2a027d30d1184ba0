"""Searches: known minima, bounds, and values that are not finite."""

import itertools
import math

import numpy as np
import pytest
import torch

from dustmap.minimise import minimise, minimise_by_scores

CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
STIFF = torch.tensor([1.0, 100.0, 1e4], dtype=torch.float64)
ORIGIN = torch.zeros(3, dtype=torch.float64)


def bowl(place):
    return (STIFF * (place - CENTRE).square()).sum() / 2 + 7


def test_the_minimum_of_a_bowl_is_found():
    found = minimise(bowl, ORIGIN, slope=1e-3)
    assert found.converged and found.finite and not found.at_bound.any()
    assert found.value == pytest.approx(7, abs=1e-5)
    np.testing.assert_allclose(found.place, CENTRE, atol=2e-3)


def test_bounds_hold_and_are_told():
    lower = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    found = minimise(bowl, ORIGIN, slope=1e-3, lower=lower, upper=0.75)
    assert found.converged and found.at_bound.tolist() == [True, True, False]
    np.testing.assert_allclose(found.place, [0.75, -1.0, 0.5], atol=1e-4)


def test_a_search_out_of_steps_has_not_converged():
    found = minimise(bowl, ORIGIN, max_steps=2)
    assert not found.converged and found.steps == 2
    assert found.value < bowl(ORIGIN)


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("last", [0, 1, 5])
def test_a_value_that_is_not_finite_ends_the_search(fault, last):
    calls = []

    def loss(place):
        calls.append(place)
        return bowl(place) * (1.0 if len(calls) <= last else fault)

    found = minimise(loss, ORIGIN)
    assert not found.finite and not found.converged and len(calls) < last + 50
    assert bool(found.place.isfinite().all())
    assert found.value == (pytest.approx(bowl(found.place)) if last else math.inf)


def test_a_derivative_that_is_not_finite_ends_the_search():
    found = minimise(lambda place: place.abs().sqrt().sum(), ORIGIN)
    assert not found.finite and not found.converged


def test_missing_factors_are_counted_but_at_the_start():
    def loss(place):
        if float(place.detach()[0]) > 0.5:
            raise FloatingPointError("no factor")
        return bowl(place)

    found = minimise(loss, ORIGIN)
    assert found.failures > 0 and found.place[0] <= 0.5
    with pytest.raises(FloatingPointError, match="no factor"):
        minimise(loss, ORIGIN + 1)


def by_scores(log_density, start=(0.0, 0.0), lower=-math.inf, **options):
    """With a prior of std 10, and what it reports."""
    reports = []
    start = torch.tensor(start, dtype=torch.float64)
    settings = {"gain": 1e-4, "longest": 0.7, "max_steps": 30, **options}
    found = minimise_by_scores(
        log_density,
        start,
        precision=torch.full_like(start, 0.01),
        lower=torch.full_like(start, lower),
        on_step=lambda *report: reports.append(report),
        **settings,
    )
    return found, reports


def normals(seed=0):
    """Log densities of 4,000 normals of mean 2 and std e."""
    white = torch.Generator().manual_seed(seed)
    y = 2 + math.e * torch.randn(4000, generator=white, dtype=torch.float64)

    def log_density(place):
        return -(((y - place[0]) / place[1].exp()) ** 2) / 2 - place[1]

    return y, log_density


def test_scores_lead_to_the_likeliest_mean_and_deviation():
    y, log_density = normals()
    found, reports = by_scores(log_density)
    assert found.converged and found.finite
    np.testing.assert_allclose(
        found.place, [y.mean(), y.std(correction=0).log()], atol=2e-3
    )
    assert [step for step, _ in reports] == list(range(1, found.steps + 1))
    assert reports[-1][1] < 1e-4
    # With the information of a normal.
    information = (found.scores.T @ found.scores).diagonal() / len(y)
    np.testing.assert_allclose(information, [math.exp(-2), 2], rtol=0.1)


def test_steps_by_scores_are_no_longer_than_allowed_and_stay_above_the_bound():
    _, log_density = normals()
    places = []

    def watched(place):
        places.append(place)
        return log_density(place)

    found, _ = by_scores(watched, start=(2.0, 3.0), lower=1.5, longest=0.1, max_steps=4)
    assert not found.converged and found.steps == 4
    moved = max(float((b - a).abs().max()) for a, b in itertools.pairwise(places))
    # Damping is doubled, and differences take steps of 0.002.
    assert 0.04 < moved < 0.103
    found, _ = by_scores(log_density, start=(2.0, 3.0), lower=1.5)
    assert found.at_bound.tolist() == [False, True] and found.place[1] == 1.5


@pytest.mark.parametrize("fault", [math.nan, math.inf, 1e200])
def test_scores_that_are_not_finite_end_the_search(fault):
    def log_density(place):
        return torch.stack([-place.square().sum(), fault * (1 + place[0])])

    found, reports = by_scores(log_density)
    assert not found.finite and not found.converged and len(reports) == 1
    assert bool(found.scores.isfinite().all())
