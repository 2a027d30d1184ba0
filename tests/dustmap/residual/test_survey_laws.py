"""Laws of surveys with too few rows."""

from __future__ import annotations

import pytest
import torch

from dustmap.residual.surveys import FEWEST, SurveyRows, learn_surveys

ZEROS, SLOPES, FACTORS = (0.0, 0.1, -0.2), (1.0, 1.1, 0.85), (1.0, 1.0, 2.0)
NAMES = ("one", "two", "three")


def mock(count: int, generator: torch.Generator) -> SurveyRows:
    """Three surveys of as many stars each, in a field of smooth clouds."""
    n = 3 * count
    white = torch.randn(n, generator=generator, dtype=torch.float64)
    uniform = torch.rand(4, n, generator=generator, dtype=torch.float64)
    directions = torch.stack(
        [torch.ones(n), 0.4 * (uniform[0] - 0.5), 0.4 * (uniform[1] - 0.5)], dim=1
    )
    directions = torch.nn.functional.normalize(directions.double(), dim=1)
    lengths = 200 + 1800 * uniform[2]
    clouds = 1 + 0.8 * torch.sin(40 * directions[:, 1]) * torch.cos(
        30 * directions[:, 2]
    )
    extinction = 1.5e-3 * lengths * clouds
    survey = torch.arange(n) % 3
    stated = 0.03 + 0.04 * uniform[3]
    c, g, f = (torch.tensor(x).double()[survey] for x in (ZEROS, SLOPES, FACTORS))
    return SurveyRows(
        directions=directions,
        lengths=lengths,
        extinction=c + g * extinction + f * stated * white,
        error=stated,
        placing=torch.zeros(n).double(),
        survey=survey,
    )


def test_few_rows_stay_as_they_are() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = mock(300, generator)
    some = torch.cat(
        [torch.nonzero(rows.survey < 2)[:, 0], torch.nonzero(rows.survey == 2)[:30, 0]]
    )
    few = SurveyRows(
        **{n: getattr(rows, n)[some] for n in SurveyRows.__dataclass_fields__}
    )
    law = learn_surveys(few, NAMES, 0, generator)[2]
    assert law.rows == 30 < FEWEST
    assert (law.zero, law.slope, law.factor) == pytest.approx((0.0, 1.0, 1.0))
    own = few.survey == 2
    extinction, error = few.calibrated([law] * 3)
    torch.testing.assert_close(extinction[own], few.extinction[own])
    torch.testing.assert_close(error[own], few.error[own])
