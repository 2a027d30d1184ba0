"""A climb that was cut short is told from one that had ended."""

from dataclasses import replace

import pytest
import torch
from svgp_cases import POINTS, START, bound_of, curve, fit, normal

from dustmap.functionals import PointValues
from dustmap.inference.svi import SvgpSettings
from dustmap.inference.svi.bound import Observations
from dustmap.inference.svi.fit import late_rise, level
from dustmap.likelihoods import Gaussian

CLIMB = SvgpSettings(batch_size=10**6, natural_rate=0.3, learn=(), watch_rows=1000)


@pytest.fixture
def data(generator):
    x, f = curve(generator, 200)
    return PointValues(x), f + 0.2 * normal(generator, 200)


def noise():
    """Known row by row, so that each must be taken with its own."""
    known = torch.linspace(0.02, 0.2, 200, dtype=torch.float64)
    return Gaussian(variance=1e-3, known=known)


def climbed(data, steps, likelihood=None, **keys):
    settings = replace(CLIMB, steps=steps, **keys)
    likelihood = noise() if likelihood is None else likelihood
    return fit(*data, POINTS, likelihood, settings, kernel=START)


def rise_between(data, early, late, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(200, generator=generator)[:rows]
    levels = []
    for model in (early, late):
        offset, noise = model.forward.offset, model.likelihood
        observed = Observations(values=data[1], likelihood=noise, offset=offset)
        levels.append(level(model, observed, index))
    return late_rise(*levels, 200, 4)


def test_a_rise_is_the_difference_of_two_bounds(data):
    early, late = (climbed(data, steps).model for steps in (4, 12))
    both = [bound_of(model, *data) for model in (early, late)]
    rise = rise_between(data, early, late, 1000)
    assert rise.value == pytest.approx((both[1] - both[0]) / 200, rel=1e-9)
    assert (rise.steps, rise.rows, rise.error) == (4, 200, 0.0)


def test_few_rows_tell_it_within_their_error(data):
    early, late = (climbed(data, steps).model for steps in (4, 12))
    whole = (bound_of(late, *data) - bound_of(early, *data)) / 200
    off = []
    for seed in range(40):
        rise = rise_between(data, early, late, 50, seed)
        off.append((rise.value - whole) / rise.error)
    # A quarter of all rows: drawn without replacement they scatter by √¾ of the error.
    assert 0.5 < float(torch.tensor(off).square().mean().sqrt()) < 1.4


def test_a_climb_cut_short_still_rises_and_a_long_one_does_not(data):
    short, long = (climbed(data, steps).rise for steps in (2, 100))
    assert short.value > 1e-3 and short.steps == 1
    assert abs(long.value) < 1e-6 and long.steps == 10
    assert "the last 10 steps" in climbed(data, 100).message


def test_watching_changes_no_fit(data):
    seen, unseen = (climbed(data, 8, batch_size=50, watch_rows=n) for n in (30, 0))
    assert unseen.rise is None and seen.rise.rows == 30
    assert torch.equal(seen.model.q.mean, unseen.model.q.mean)
    assert seen.bound == unseen.bound
