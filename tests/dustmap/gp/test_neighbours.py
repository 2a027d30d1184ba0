"""Regression from neighbours: dense where all rows are, and its derivatives."""

import pytest
import torch

from dustmap.functionals import GaussLegendre, LineIntegrals, PointValues
from dustmap.gp.exact import ExactGP
from dustmap.gp.fitting import maximise
from dustmap.gp.neighbours import NeighbourGP
from dustmap.kernels import Matern32

KERNEL = Matern32(lengthscale=[0.7, 1.3], variance=1.7)
CONSTANTS = {"noise": 0.08, "mean": 0.9}


def rows(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(count, 2, generator=generator, dtype=torch.float64)
    return x, torch.randn(count, generator=generator, dtype=torch.float64)


def test_two_rows_given_all_earlier_ones_are_as_likely_as_in_dense_algebra():
    x, y = rows(40)
    near = torch.arange(38).expand(2, -1)
    # Row 39 is given 38 of its 39 earlier rows: the dense density of two such parts.
    found = NeighbourGP(KERNEL, PointValues(x), y, near=near, **CONSTANTS)
    parts = [
        ExactGP(KERNEL, PointValues(x[some]), y[some], **CONSTANTS).log_marginal()
        for some in (list(range(39)), [*range(38), 39], list(range(38)))
    ]
    assert found.log_marginal() == pytest.approx(
        parts[0] + parts[1] - parts[2], rel=1e-8
    )


def test_with_all_earlier_rows_for_neighbours_the_evidence_is_exact():
    x, y = rows(41)
    found = NeighbourGP.among(KERNEL, x, y, neighbours=40, **CONSTANTS)
    exact = ExactGP(KERNEL, PointValues(x), y, **CONSTANTS)
    assert found.near.shape == (1, 40)
    assert found.log_marginal() == pytest.approx(exact.log_marginal(), rel=1e-8)
    value, gradient = found.value_and_gradient()
    expected, exact_gradient = exact.value_and_gradient()
    assert value == pytest.approx(expected, rel=1e-8)
    assert set(gradient) == set(exact_gradient)
    for name, slope in exact_gradient.items():
        torch.testing.assert_close(gradient[name], slope, rtol=1e-7, atol=1e-9)


def test_predictions_from_all_rows_are_exact():
    x, y = rows(31)
    places = PointValues(rows(5, seed=1)[0])
    near = torch.arange(30)[None]
    found = NeighbourGP(KERNEL, PointValues(x), y, near=near, **CONSTANTS)
    # The 30 nearest of 31 rows: the furthest tells nothing that the others do not.
    few = found.predict(places)
    exact = ExactGP(KERNEL, PointValues(x), y, **CONSTANTS).predict(places)
    torch.testing.assert_close(few.mean, exact.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(few.variance, exact.variance, rtol=0.02, atol=0)
    assert bool((few.variance >= exact.variance * (1 - 1e-9)).all())


def test_many_rows_find_the_scales_they_were_drawn_with():
    x, white = rows(600)
    truth = Matern32(lengthscale=[0.3, 0.6], variance=1.0)
    lags = x[:, None] - x[None]
    covariance = truth(lags) + 0.01 * torch.eye(600, dtype=torch.float64)
    y = 2.0 + torch.linalg.cholesky(covariance) @ white
    start = Matern32(lengthscale=[0.6, 0.6], variance=2.0)
    model = NeighbourGP.among(start, x, y, neighbours=15, noise=0.1, mean=1.0)
    found = maximise(model)
    assert found.converged
    values = found.model.parameters()
    torch.testing.assert_close(
        values["lengthscale"], truth.lengthscale, rtol=0.3, atol=0
    )
    assert float(values["noise"]) == pytest.approx(0.01, rel=0.5)


def test_what_is_no_point_value_is_refused():
    x, y = rows(5)
    rays = LineIntegrals(x, GaussLegendre(count=3))
    with pytest.raises(ValueError, match="neighbours are found for point values"):
        NeighbourGP(KERNEL, rays, y, near=torch.zeros(1, 4).long(), **CONSTANTS)
