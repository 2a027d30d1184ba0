"""Calibration of errors by rows that were held out."""

import math

import pytest
import torch
from scipy import stats

from dustmap.residual.corrections import central_factor
from dustmap.residual.scoring import tail_degrees


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
    variance = torch.full_like(errors, 1 / central_factor(degrees))
    found = tail_degrees(errors, variance, 0 * errors)
    assert low <= found <= high


def test_noise_hides_tails() -> None:
    errors = 100 * student(500, math.inf)
    little, noise = torch.full_like(errors, 0.01), torch.full_like(errors, 1e4)
    assert tail_degrees(errors, little, noise) == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("degrees", [25.0, 1e3, math.inf])
def test_the_factor_leaves_68_percent_of_a_student_t_of_unit_variance(
    degrees: float,
) -> None:
    law = stats.norm() if math.isinf(degrees) else stats.t(degrees)
    half = (central_factor(degrees) * law.var()) ** 0.5
    assert law.cdf(half) - law.cdf(-half) == pytest.approx(0.6827, abs=1e-4)
    # Tails that heavy may be those of noise.
    assert central_factor(3.0) == central_factor(20.0)
