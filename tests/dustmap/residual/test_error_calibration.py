"""Calibration of errors by rows that were held out."""

import math
from dataclasses import replace

import pytest
import torch

from dustmap.moments import moments_over_samples
from dustmap.residual.scoring import tail_degrees, variance_scale


def student(count: int, degrees: float) -> torch.Tensor:
    """Student-T errors whose central 68.27% are within one."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(count, generator=generator, dtype=torch.float64)
    if math.isinf(degrees):
        return normal
    halves = torch.full((count,), degrees / 2, dtype=torch.float64)
    squares = 2 * torch._standard_gamma(halves, generator=generator)
    errors = normal * (degrees / squares).sqrt()
    return errors / errors.abs().quantile(0.6827)


@pytest.mark.parametrize(
    ("degrees", "low", "high"),
    [(3.0, 2.5, 4.0), (10.0, 6.0, 18.0), (math.inf, 20, 1e4)],
)
def test_tails_of_errors_are_found(degrees: float, low: float, high: float) -> None:
    errors = student(20_000, degrees)
    found = tail_degrees(errors, torch.ones_like(errors), 0 * errors)
    assert low <= found <= high


def test_noise_hides_tails_and_scale() -> None:
    errors = 100 * student(500, math.inf)
    little, noise = torch.full_like(errors, 0.01), torch.full_like(errors, 1e4)
    assert tail_degrees(errors, little, noise) == pytest.approx(10, rel=0.1)
    found = variance_scale(errors, little, noise, degrees=1e3)
    assert found == pytest.approx(1.0, rel=0.1)
    found = variance_scale(errors, little, noise, degrees=10)
    assert found == pytest.approx(0.886, rel=0.02)


def test_the_scale_is_that_of_the_core() -> None:
    errors = 2 * student(20_000, 3.0)
    ones = torch.ones_like(errors)
    found = variance_scale(errors, 3 * ones, 0 * ones, degrees=1e3)
    assert found == pytest.approx(4 / 3, rel=0.1)


def test_tails_widen_95_percent_and_leave_68() -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(40, 6, generator=generator, dtype=torch.float64).exp()
    plain = moments_over_samples(values, 0.1 * values, positive=True)
    tailed = replace(plain, tails=torch.full_like(plain.mean, 3.0))
    for p in (0.1586553, 0.5, 0.8413447):
        torch.testing.assert_close(
            tailed.quantile(p), plain.quantile(p), rtol=1e-5, atol=0
        )
    ratio = (tailed.quantile(0.975) / tailed.quantile(0.5)).log()
    ratio = ratio / (plain.quantile(0.975) / plain.quantile(0.5)).log()
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1.3566), rtol=1e-3, atol=0)
