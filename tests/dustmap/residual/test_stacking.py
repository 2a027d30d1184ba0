"""Map and kriging together predict stars better than either, where that can be told."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_grid_free import drawn, observed

from dustmap.residual.learning import LocalMeanKriging, learn_local_mean_kriging
from dustmap.residual.stacking import StackedKriging, learn_stack

KNOWN, UNSEEN = 700, 300
NOISE = 0.02


@pytest.fixture(scope="module")
def problem() -> tuple[LocalMeanKriging, np.ndarray, np.ndarray]:
    """Kriging of stars, the last of them unseen by a map, and their true extinction."""
    generator = torch.Generator().manual_seed(8)
    rays, extinction = drawn(KNOWN + UNSEEN, generator)
    noise = NOISE * torch.randn(len(rays), generator=generator, dtype=torch.float64)
    known = observed(rays, extinction + noise)
    variance = torch.full((len(rays),), NOISE**2, dtype=torch.float64)
    held = torch.arange(0, len(rays), 5)
    kriging = learn_local_mean_kriging(
        known, variance, torch.zeros_like(variance), held
    )
    measured = (extinction + noise)[-UNSEEN:]
    return kriging, extinction[-UNSEEN:].numpy(), measured.numpy()


def of_map(true: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """A map's predictions with errors that are not those of kriging."""
    return true + spread * np.random.default_rng(2).standard_normal(len(true))


def test_a_stack_gains_where_errors_are_independent(problem) -> None:
    kriging, true, measured = problem
    blind = kriging.without_last(UNSEEN)
    assert len(blind.observed) == KNOWN
    places = kriging.observed[-UNSEEN:]
    other, variance = (part.numpy() for part in blind.predict(places))
    # A good map of one half of the stars, and a bad one of the other.
    good = np.arange(UNSEEN) % 2 == 0
    std = np.sqrt(variance) * np.where(good, 0.5, 3.0)
    mean = of_map(true, std)
    stack = learn_stack(kriging, mean, std, measured)
    assert stack is not None
    ends = (places.directions * places.lengths[:, None])[:UNSEEN]
    found = mean * stack.without_last(UNSEEN).factor(ends, mean, std)
    share = (found - mean) / (other - mean)
    assert np.median(share[good]) < 0.35 < 0.65 < np.median(share[~good])
    errors = [np.abs(each - true).mean() for each in (found, mean, other)]
    assert errors[0] < min(errors[1:])
    told = [np.abs(each - measured).mean() for each in (found, mean)]
    assert stack.gain == pytest.approx(1 - told[0] / told[1], rel=1e-6)


def test_without_a_gain_or_enough_stars_there_is_no_stack(problem) -> None:
    kriging, true, measured = problem
    std = np.full(UNSEEN, 1e-3)
    assert learn_stack(kriging, of_map(true, std), std, measured) is None
    wide = np.full(100, 0.5)
    few = of_map(true[-100:], wide)
    assert learn_stack(kriging, few, wide, measured[-100:]) is None


def test_a_map_without_dust_is_no_division_by_zero(problem) -> None:
    kriging, *_ = problem
    stack = StackedKriging(kriging=kriging, coefficients=np.zeros(3), gain=0.1)
    ends = torch.tensor([[100.0, 0.0, 0.0]], dtype=torch.float64)
    nothing = np.zeros(1)
    assert np.isfinite(stack.factor(ends, nothing, np.ones(1))).all()
    again = replace(stack, coefficients=np.array([-50.0, 0, 0]))
    assert again.factor(ends, np.ones(1), np.ones(1)) == pytest.approx(1.0)
