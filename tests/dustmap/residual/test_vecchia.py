"""The precision of neighbouring stars' residuals against dense covariances."""

from __future__ import annotations

from dataclasses import replace

import dense_kriging
import dense_torus
import pytest
import torch
from residual_fields import field_of

from dustmap.functionals import GaussLegendre, LineIntegrals
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.linalg.cg import ConjugateGradients
from dustmap.linalg.operator import LinearOperator
from dustmap.residual.covariance import Rays
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import TABLE_ERROR
from dustmap.residual.vecchia import Vecchia

WEIGHTS = torch.tensor([0.2, 0.5, 1.0, 0.1], dtype=torch.float64)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def field(count: int, generator: torch.Generator) -> ResidualField:
    """Rays in a field of some degrees, with noise and a nugget."""
    directions = torch.tensor([1.0, 0, 0], dtype=torch.float64) + 0.05 * torch.randn(
        count, 3, generator=generator, dtype=torch.float64
    )
    uniform = torch.rand(3, count, generator=generator, dtype=torch.float64)
    rows = Rays(
        directions=torch.nn.functional.normalize(directions, dim=-1),
        lengths=100 + 900 * uniform[0],
        density=1e-3 * (1 + uniform[1]),
    )
    noise = 0.05 * (1 + uniform[2])
    found = field_of(rows, torch.zeros(2, count).double(), noise, WEIGHTS)
    return replace(found, nugget=0.01)


def dense(of: ResidualField, rows: torch.Tensor) -> torch.Tensor:
    """The covariance of these rows with their noise."""
    rays = of.rays[rows]
    among = dense_kriging.dense(of.covariance, rays, rays)
    own = TABLE_ERROR * torch.diagonal(among) + (of.noise + of.nugget)[rows]
    return among + torch.diag(own)


def test_with_all_earlier_rows_it_is_the_exact_precision(
    generator: torch.Generator,
) -> None:
    of, rows = field(60, generator), torch.arange(10, 60)
    found = Vecchia.of(of, rows, generator, count=49)
    exact = dense(of, rows)
    products = found.apply_precision(torch.eye(50, dtype=torch.float64))
    torch.testing.assert_close(
        products @ exact, torch.eye(50).double(), atol=2e-6, rtol=0
    )
    without = (
        TABLE_ERROR
        * (exact.diagonal() - (of.noise + of.nugget)[rows])
        / (1 + TABLE_ERROR)
    )
    torch.testing.assert_close(found.variance, exact.diagonal() - without)


def test_roots_belong_to_the_precision(generator: torch.Generator) -> None:
    found = Vecchia.of(field(200, generator), torch.arange(200), generator, 12)
    white = torch.randn(200, generator=generator, dtype=torch.float64)
    coloured = found.coloured(white)
    norm = found.whitened(coloured).square().sum()
    torch.testing.assert_close(norm, white.square().sum())
    torch.testing.assert_close(norm, coloured @ found.apply_precision(coloured))
    # In the order of the rows' walk the root's inverse gives the white noise back.
    torch.testing.assert_close(found.whitened(coloured), white)


def test_draws_have_the_covariance_of_the_dense_process(
    generator: torch.Generator,
) -> None:
    of = field(30, generator)
    found = Vecchia.of(of, torch.arange(30), generator, count=29)
    white = torch.randn(20_000, 30, generator=generator, dtype=torch.float64)
    drawn = found.coloured(white)
    # A vector's values do not depend on those beside it.
    torch.testing.assert_close(found.coloured(white[7]), drawn[7], rtol=0, atol=0)
    exact = dense(of, torch.arange(30))
    error = (torch.cov(drawn.mT) - exact).abs().max() / exact.abs().max()
    assert float(error) < 0.05


def test_more_neighbours_come_closer(generator: torch.Generator) -> None:
    of, rows = field(300, generator), torch.arange(300)
    exact = torch.linalg.inv(dense(of, rows))

    def error(count: int) -> float:
        found = Vecchia.of(of, rows, torch.Generator().manual_seed(1), count)
        return float((found.apply_precision(torch.eye(300).double()) - exact).norm())

    errors = [error(count) for count in (3, 10, 30, 100)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


def test_single_precision_stays_single(generator: torch.Generator) -> None:
    found = Vecchia.of(field(40, generator), torch.arange(40), generator, 8)
    x = torch.randn(3, 40, generator=generator)
    exact = found.apply_precision(x.double())
    assert found.apply_precision(x).dtype == torch.float32
    torch.testing.assert_close(
        found.apply_precision(x).double(), exact, rtol=1e-5, atol=1e-5
    )


class Dense(LinearOperator):
    """A matrix."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(matrix.shape), matrix.dtype
        self.device, self._matrix = matrix.device, matrix

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self._matrix.mT

    def rmatvec(self, y: torch.Tensor) -> torch.Tensor:
        return y @ self._matrix


def test_the_gram_is_that_of_dense_algebra(generator: torch.Generator) -> None:
    of, rows = field(40, generator), torch.arange(40)
    found = Vecchia.of(of, rows, generator, count=39)
    features = torch.randn(40, 7, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    expected = x @ (features.mT @ torch.linalg.solve(dense(of, rows), features))
    torch.testing.assert_close(
        found.gram(Dense(features), x), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("samples", "error"),
    [(1500, 0.13), pytest.param(4000, 0.08, marks=pytest.mark.slow)],
)
def test_map_and_residual_are_those_of_the_dense_joint_process(
    generator: torch.Generator, samples: int, error: float
) -> None:
    count, rule = 40, GaussLegendre(count=6)
    ends = dense_torus.inside(2, count + 3, 3)
    everyone = dense_torus.model("matern52", 2, LineIntegrals(ends, rule))
    model = everyone.at(LineIntegrals(ends[:count], rule))
    start = torch.zeros(model.latent_size, dtype=torch.float64)
    features = everyone.linearise(start).operator.to_dense()
    offset = everyone.apply(start)
    of, rows = field(count + 3, generator), torch.arange(count + 3)
    residual = dense(of, rows)
    whole = features @ features.mT + residual
    y = offset[:count] + torch.randn(count, generator=generator, dtype=torch.float64)

    correlation = Vecchia.of(of, rows[:count], generator, count=count - 1)
    found = infer(
        model,
        y,
        correlation,
        settings=FullBatch(
            solver=ConjugateGradients(rtol=1e-8),
            samples=samples,
            block=samples,
            subgrid_noise=False,
        ),
        generator=generator,
    )
    known = replace(
        of,
        rays=of.rays[:count],
        residuals=y - model.apply(found.samples),
        stated=of.stated[:count],
        noise=of.noise[:count],
    )
    near = torch.arange(count).expand(3, count)
    kriged = known.krige(of.rays[count:], near)
    drawn = everyone.apply(found.samples)[:, count:] + kriged.mean(known.residuals)
    variance = drawn.var(dim=0) + kriged.variance

    own = torch.diagonal(residual)[count:] - (of.noise + of.nugget)[count:]
    prior = torch.diagonal(features @ features.mT)[count:] + own / (1 + TABLE_ERROR)
    across = whole[count:, :count]
    solved = torch.linalg.solve(whole[:count, :count], across.mT)
    mean = offset[count:] + (y - offset[:count]) @ solved
    exact = prior - (across.mT * solved).sum(dim=0)
    at_mean = everyone.apply(found.mean)[count:]
    at_mean = at_mean + kriged.mean((y - model.apply(found.mean))[None])[0]
    torch.testing.assert_close(at_mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, exact, rtol=error, atol=0)


def test_nothing_of_correlated_noise_is_learnt(generator: torch.Generator) -> None:
    found = Vecchia.of(field(20, generator), torch.arange(20), generator, 5)
    residual = torch.full((20,), 50.0, dtype=torch.float64)
    assert found.fixed and not found.depends_on_field
    assert found.updated(residual, 1.0, residual) is found
    assert found.given_unresolved(residual) is found
