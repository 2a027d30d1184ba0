"""Laws of surveys: few rows, and errors that the rows of a survey share."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dustmap.residual import surveys
from dustmap.residual.surveys import (
    FEWEST,
    SurveyLaw,
    SurveyRows,
    learn_surveys,
    shared_errors,
)

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
        distance_std=torch.zeros(n).double(),
        survey=survey,
    )


@pytest.mark.slow
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


def test_errors_of_zero_points_and_slopes_move_the_calibrated_extinctions() -> None:
    rows = mock(40, torch.Generator().manual_seed(3))
    laws = [
        SurveyLaw(name="one", rows=40),
        SurveyLaw(
            name="two",
            rows=40,
            zero=0.1,
            zero_error=0.02,
            slope=1.1,
            slope_error=0.05,
            correlation=-0.7,
        ),
        SurveyLaw(name="three", rows=40, zero=0.2, zero_error=0.3, slope=0.8),
    ]
    calibrated = rows.calibrated(laws)[0]
    columns = shared_errors(laws, rows.survey, calibrated)
    assert columns.shape == (120, 3)
    step, exact = 1e-6, torch.zeros(120, 120, dtype=torch.float64)
    for number, law in enumerate(laws):
        changes = []
        for name in ("zero", "slope"):
            moved = replace(law, **{name: getattr(law, name) + step})
            others = [*laws[:number], moved, *laws[number + 1 :]]
            changes.append((rows.calibrated(others)[0] - calibrated) / step)
        jacobian = torch.stack(changes, dim=1)
        both = law.correlation * law.zero_error * law.slope_error
        covariance = [[law.zero_error**2, both], [both, law.slope_error**2]]
        exact += jacobian @ torch.tensor(covariance).double() @ jacobian.T
    torch.testing.assert_close(columns @ columns.T, exact, rtol=1e-5, atol=1e-9)


def test_rows_that_say_the_same_do_not_sharpen_a_law() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = mock(400, generator)
    white = torch.randn(1200, generator=generator, dtype=torch.float64)
    truth = (rows.extinction - torch.tensor(ZEROS).double()[rows.survey]) / (
        torch.tensor(SLOPES).double()[rows.survey]
    )
    laws = [SurveyLaw(name=name, rows=400, overlap=1.0) for name in NAMES]
    found = []
    for times in (1, 4):
        every = torch.arange(1200).repeat(times)
        rows_of = {n: getattr(rows, n)[every] for n in SurveyRows.__dataclass_fields__}
        points = rows.observed(rows.extinction).coordinates(20.0)
        predicted = (
            truth + 0.05 * white,
            torch.full((1200,), 0.05**2).double(),
            0 * white,
        )
        given = [part[every] for part in (*predicted, points)]
        found.append(
            surveys._fitted(
                SurveyRows(**rows_of), torch.arange(len(every)), given, laws, 0
            )[1]
        )
    assert found[1].zero_error == pytest.approx(found[0].zero_error, rel=0.25)
    assert found[1].slope_error == pytest.approx(found[0].slope_error, rel=0.25)


def test_errors_of_a_law_are_at_most_those_of_its_prior() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = mock(120, generator)
    # On the other side of the sky nothing tells the zero point of the third survey.
    far = (rows.survey == 2)[:, None]
    apart = replace(
        rows, directions=torch.where(far, -rows.directions, rows.directions)
    )
    second, third = learn_surveys(apart, NAMES, 0, generator)[1:]
    assert third.unconstrained and not second.unconstrained
    assert (third.zero, third.slope) == (0.0, 1.0)
    assert third.zero_error == pytest.approx(0.3)
    assert 0 < second.zero_error < 0.1
    assert -1 <= second.correlation < 0
