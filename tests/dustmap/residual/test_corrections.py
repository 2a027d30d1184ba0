"""Values of samples corrected in a loop, against whole tensors."""

import pytest
import torch

from dustmap.residual.corrections import corrected

SAMPLES, PLACES = 6, 1000


def spread(values, factor):
    """The spread of samples about their mean, times √f."""
    mean = values.mean(dim=0)
    return mean + factor**0.5 * (values - mean)


def added(values, changes):
    """v + c, or (v/2)²/|c| where c takes more than half."""
    half = values / 2
    bounded = half**2 / changes.abs()
    return torch.where(changes >= -half, values + changes, bounded)


@pytest.fixture
def given(generator):
    kwargs = {"generator": generator, "dtype": torch.float64}
    values = torch.randn(SAMPLES, PLACES, **kwargs).exp()
    changes = torch.randn(SAMPLES, PLACES, **kwargs)
    return values, changes, 0.4, torch.rand(PLACES, **kwargs)


def test_values_and_changes_are_spread_and_added(given):
    values, changes, factor, amplitude = given
    own, told = spread(values, factor), spread(changes, factor)
    for options, change in (({}, told), ({"amplitude": amplitude}, amplitude * told)):
        found = corrected(values, changes, factor, **options)
        torch.testing.assert_close(found, added(own, change), rtol=1e-12, atol=0)
        assert bool((found > 0).all())
    # Some of each branch.
    assert 0.05 < float((told < -own / 2).double().mean()) < 0.95


def test_a_std_stays_in_proportion_to_what_a_change_leaves():
    values = torch.ones(1, 4, dtype=torch.float64)
    changes = torch.tensor([[0.5, -0.5, -1.0, -2.0]], dtype=torch.float64)
    shares = torch.empty_like(values)
    found = corrected(values, changes, 1.0, shares=shares)
    left = torch.tensor([[1.5, 0.5, 0.25, 0.125]], dtype=torch.float64)
    torch.testing.assert_close(found, left)
    # Half is left where the sum begins to bend.
    torch.testing.assert_close(shares, (2 * left).clamp(max=1) ** 2)


def test_a_value_of_zero_stays(given):
    _, changes, factor, _ = given
    dark = torch.zeros(SAMPLES, PLACES, dtype=torch.float64)
    found = corrected(dark, -changes.abs(), factor)
    assert bool((found == 0).all())
