"""Kriging from neighbours against dense Gaussian processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_kriging import dense, kriged
from residual_fields import field_of
from scipy.integrate import dblquad

from dustmap.residual.covariance import RayCovariance, Rays, rays_to
from dustmap.residual.field import least_density
from dustmap.residual.kriging import (
    TABLE_ERROR,
    Neighbourhoods,
    krige_rays,
    predict_rays,
    solve_neighbourhoods,
)
from dustmap.residual.learning import learn_residual
from dustmap.residual.neighbours import nearest, without_self
from dustmap.residual.scoring import learn_weights

WEIGHTS = torch.tensor([0.2, 0.5, 1.0, 0.1], dtype=torch.float64)
SPECTRUM = RayCovariance(weights=WEIGHTS)


def rays(count: int, generator: torch.Generator) -> Rays:
    """Rays in a field of some degrees."""
    directions = torch.tensor([1.0, 0, 0], dtype=torch.float64) + 0.05 * torch.randn(
        count, 3, generator=generator, dtype=torch.float64
    )
    uniform = torch.rand(2, count, generator=generator, dtype=torch.float64)
    return Rays(
        directions=torch.nn.functional.normalize(directions, dim=-1),
        lengths=100 + 900 * uniform[0],
        density=1e-3 * (1 + uniform[1]),
    )


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("angle", "u", "v"),
    [(0.0, 0.4, 2.0), (0.3, 1.0, 1.0), (1.2, 0.5, 3.0), (0.05, 4.0, 4.5), (3.0, 2, 2)],
)
def test_the_table_is_the_double_integral(angle: float, u: float, v: float) -> None:
    def decay(t: float, s: float) -> float:
        square = s * s + t * t - 2 * s * t * np.cos(angle)
        return float(np.exp(-np.sqrt(max(square, 0.0))))

    expected = dblquad(decay, 0, u, 0, v, epsabs=1e-6)[0]
    ends = [[1.0, 0.0, 0.0], [np.cos(angle), np.sin(angle), 0.0]]
    both = torch.tensor(ends) * torch.tensor([[u], [v]])
    some = rays_to(both.double(), torch.tensor([u, v]).double(), 0.0)
    one = RayCovariance(weights=torch.ones(1).double(), lengthscales=(1.0,))
    near = torch.zeros(1, 1, dtype=torch.int64)
    value = float(Neighbourhoods.of(one, some, some[1:], near).across)
    assert value == pytest.approx(expected, rel=5e-3)


def test_covariances_of_rays_are_positive_definite(generator: torch.Generator) -> None:
    some = rays(200, generator)
    eigenvalues = torch.linalg.eigvalsh(dense(SPECTRUM, some, some))
    assert float(eigenvalues.min()) > -2e-3 * float(eigenvalues.max())


def test_all_neighbours_make_the_exact_process(generator: torch.Generator) -> None:
    rows, places = rays(60, generator), rays(9, generator)
    noise = 1e-3 + torch.rand(60, generator=generator, dtype=torch.float64)
    residuals = torch.randn(2, 60, generator=generator, dtype=torch.float64)
    everyone = torch.arange(60).expand(9, 60)
    found = krige_rays(SPECTRUM, rows, noise, places, everyone)
    across = dense(SPECTRUM, places, rows)
    among = dense(SPECTRUM, rows, rows)
    own = noise + TABLE_ERROR * torch.diagonal(among)
    solved = torch.linalg.solve(among + torch.diag(own), across.T)
    torch.testing.assert_close(found.mean(residuals), residuals @ solved)
    prior = torch.diagonal(dense(SPECTRUM, places, places))
    torch.testing.assert_close(found.variance, prior - (across.T * solved).sum(0))


def test_compiled_loops_find_the_same(generator: torch.Generator) -> None:
    rows, places = rays(300, generator), rays(40, generator)
    noise = 1e-4 + 1e-3 * torch.rand(300, generator=generator, dtype=torch.float64)
    near = nearest(rows.coordinates(10.0), places.coordinates(10.0), 12)
    expected, left = kriged(SPECTRUM, rows, noise, places, near)
    found = krige_rays(SPECTRUM, rows, noise, places, near)
    torch.testing.assert_close(found.weights, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.variance, left, rtol=1e-8, atol=0)


def test_places_of_one_block_share_their_neighbours(generator: torch.Generator) -> None:
    # More places than are solved for at once, in no order.
    rows, places = rays(300, generator), rays(200, generator)
    noise = 1e-4 + 1e-3 * torch.rand(300, generator=generator, dtype=torch.float64)
    residuals = torch.randn(3, 300, generator=generator, dtype=torch.float64)
    near = nearest(rows.coordinates(10.0), places[:3].coordinates(10.0), 12)
    blocks = torch.randint(3, (200,), generator=generator)
    blocks[:100] = 1
    expected = krige_rays(SPECTRUM, rows, noise, places, near[blocks])
    mean, variance = predict_rays(
        SPECTRUM, rows, noise, residuals, places, 0, near, blocks
    )
    torch.testing.assert_close(mean, expected.mean(residuals), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(variance, expected.variance, rtol=1e-6, atol=0)


def test_a_covariance_that_is_not_positive_definite_is_an_error(
    generator: torch.Generator,
) -> None:
    rows = rays(10, generator)
    near = torch.arange(10).expand(10, 10)
    noise = torch.full((10,), -1e3, dtype=torch.float64)
    with pytest.raises(FloatingPointError, match="10 of 10"):
        krige_rays(SPECTRUM, rows, noise, rows, near)


def test_neighbourhoods_are_solved_as_by_dense_algebra(
    generator: torch.Generator,
) -> None:
    root = torch.randn(7, 5, 5, generator=generator, dtype=torch.float64)
    among, noise = root @ root.mT, torch.rand(7, 5, generator=generator).double()
    right = torch.randn(7, 2, 5, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(among + torch.diag_embed(noise), right.mT).mT
    torch.testing.assert_close(solve_neighbourhoods(among, noise, right), exact)
    with pytest.raises(FloatingPointError, match="7 of 7"):
        solve_neighbourhoods(among, noise - 1e3, right)


def test_more_neighbours_come_closer_to_the_exact_prediction(
    generator: torch.Generator,
) -> None:
    rows, places = rays(400, generator), rays(50, generator)
    noise = torch.full((400,), 1e-3, dtype=torch.float64)

    def variance(count: int) -> torch.Tensor:
        near = nearest(rows.coordinates(10.0), places.coordinates(10.0), count)
        return krige_rays(SPECTRUM, rows, noise, places, near).variance

    whole = variance(400)
    errors = [float((variance(count) / whole - 1).mean()) for count in (5, 20, 80)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.03


def test_no_row_is_its_own_neighbour(generator: torch.Generator) -> None:
    points = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    points[7] = points[3]
    near = without_self(nearest(points, points, 6))
    assert near.shape == (50, 5)
    assert not bool((near == torch.arange(50)[:, None]).any())


def drawn(
    count: int, generator: torch.Generator, outliers: int = 0
) -> tuple[Rays, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rays, residuals of a known covariance with noise, its variance, and the truth."""
    rows = rays(count, generator)
    among = dense(SPECTRUM, rows, rows)
    root = torch.linalg.cholesky(
        among + torch.diag(TABLE_ERROR * torch.diagonal(among))
    )
    truth = root @ torch.randn(count, generator=generator, dtype=torch.float64)
    noise = torch.full((count,), 0.02**2, dtype=torch.float64)
    observed = truth + 0.02 * torch.randn(count, generator=generator).double()
    observed[:outliers] += 3.0
    return rows, observed, noise, truth


def test_a_learnt_residual_predicts_unseen_places_and_their_errors(
    generator: torch.Generator,
) -> None:
    rows, observed, noise, truth = drawn(900, generator)
    known, unseen = slice(0, 700), slice(700, 900)
    given = rows[known], observed[known].expand(2, -1), noise[known]
    field = learn_residual(*given, torch.arange(500, 700))
    ends = rows.directions[unseen] * rows.lengths[unseen, None]
    map_extinction = (rows.density * rows.lengths)[unseen].expand(2, -1)
    corrected, variance = field.correct(ends, map_extinction)
    error = corrected.mean(0) - map_extinction[0] - truth[unseen]
    assert float(error.std()) < 0.5 * float(truth[unseen].std())
    assert 0.55 < float((error.abs() < variance.sqrt()).double().mean()) < 0.85
    assert field.outliers < 2e-3


@pytest.mark.slow
def test_outliers_count_less(generator: torch.Generator) -> None:
    rows, observed, noise, _ = drawn(1500, generator, outliers=45)
    order = torch.randperm(1500, generator=generator)
    field = learn_residual(
        rows[order],
        observed[order].expand(2, -1),
        noise[order],
        torch.arange(1000, 1500),
    )
    assert 0.01 < field.outliers < 0.08
    raised = field.noise > 10 * field.stated
    assert bool(raised[order < 45].double().mean() > 0.9)
    assert bool(raised[order >= 45].double().mean() < 0.05)


def test_of_two_maxima_the_higher_is_found() -> None:
    rows, observed, noise, _ = drawn(150, torch.Generator().manual_seed(23))
    held, others = torch.arange(25), torch.arange(25, 150)
    points = rows.coordinates(10.0)
    near = others[nearest(points[others], points[held], 8)]
    hoods = Neighbourhoods.of(SPECTRUM, rows, rows[held], near)
    given = (hoods, observed, noise, observed[held], noise[held])
    found = learn_weights(*given)
    starts = torch.eye(4, dtype=torch.float64) + 1e-3
    scores = [learn_weights(*given, known=start).score for start in starts]
    assert max(scores) - min(scores) > 0.25
    assert found.score == pytest.approx(max(scores), abs=0.025)
    again = learn_weights(*given, known=found.weights)
    assert again.score == pytest.approx(found.score, abs=0.0025)


def test_a_correction_never_makes_an_extinction_negative(
    generator: torch.Generator,
) -> None:
    rows, observed, noise, _ = drawn(200, generator)
    field = field_of(rows, -10 * observed.abs().expand(2, -1), noise, WEIGHTS)
    ends = rows.directions * rows.lengths[:, None]
    corrected, _ = field.correct(ends, torch.full((2, 200), 0.1, dtype=torch.float64))
    assert bool((corrected >= 0).all()) and float(corrected.median()) < 0.1


def test_the_density_of_dark_rays_has_a_floor() -> None:
    ends = torch.tensor([[100.0, 0, 0], [0, 100.0, 0]], dtype=torch.float64)
    extinction = torch.tensor([1.0, 0.0], dtype=torch.float64)
    least = least_density(extinction, ends.norm(dim=1))
    found = rays_to(ends, extinction, least)
    assert found.density.tolist() == pytest.approx([0.01, 0.02 * 0.005])


def test_a_correction_does_not_depend_on_what_else_is_asked(
    generator: torch.Generator,
) -> None:
    rows, observed, noise, _ = drawn(200, generator)
    field = field_of(rows, observed.expand(2, -1), noise, WEIGHTS)
    ends = rows.directions * rows.lengths[:, None]
    extinctions = torch.rand(2, 200, generator=generator, dtype=torch.float64)
    extinctions[:, 0] = 1e-9
    together, alone = (
        field.correct(ends[n], extinctions[:, n]) for n in (slice(None), slice(1))
    )
    torch.testing.assert_close(together[0][:, :1], alone[0])
    torch.testing.assert_close(together[1][:, :1], alone[1])
