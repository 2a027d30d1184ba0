"""The covariance along rays against sums and integrals, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_kriging import components, dense, kriged, line, relative
from residual_fields import field_of
from scipy.integrate import quad
from torch import Tensor

from dustmap.grid import Grid
from dustmap.kernels import KERNELS
from dustmap.residual.corrections import central_factor
from dustmap.residual.covariance import (
    GRID_CUT,
    RayCovariance,
    Rays,
    SubgridCovariance,
    rays_to,
)
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import (
    TABLE_ERROR,
    Neighbourhoods,
    krige_rays,
    predict_rays,
)
from dustmap.residual.learning import calibrated_on, learn_residual, relearnt_on
from dustmap.residual.neighbours import nearest
from dustmap.whitening.bands import band_covariance

WEIGHTS = torch.tensor([1.3], dtype=torch.float64)
NESTED = torch.tensor([1.3, 0.6], dtype=torch.float64)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def cube(generator: torch.Generator, contrast: float = 1.0) -> DensityCube:
    """A lognormal cube, independent from point to point, 400 pc to every side."""
    white = torch.randn(17, 17, 17, generator=generator, dtype=torch.float64)
    return cube_of(1e-3 * (contrast * white).exp())


def cube_of(
    values: Tensor,
    origin: tuple[float, ...] = (-400.0,) * 3,
    spacing: tuple[float, ...] = (50.0,) * 3,
) -> DensityCube:
    """Densities on one grid."""
    grid = Grid(shape=tuple(values.shape), origin=origin, spacing=spacing)
    return DensityCube(values=values.reshape(-1), grids=(grid,))


def subgrid_of(density: DensityCube) -> SubgridCovariance:
    """What grids leave of a prior that varies over 120 pc."""
    prior = KERNELS["matern12"](lengthscale=120.0, variance=1.2)
    return SubgridCovariance.of("matern12", prior, density.grids)


def form_of(density: DensityCube) -> RayCovariance:
    """The covariance of these tests."""
    return RayCovariance(weights=WEIGHTS, subgrid=subgrid_of(density), cube=density)


def rays(count: int, generator: torch.Generator, spread: float = 0.05) -> Rays:
    """Rays about one direction, as far apart as ``spread`` [rad]."""
    about = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    white = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    directions = torch.nn.functional.normalize(about + spread * white, dim=-1)
    lengths = 60 + 320 * torch.rand(count, generator=generator, dtype=torch.float64)
    ends = directions * lengths[:, None]
    return rays_to(ends, torch.ones(count, dtype=torch.float64), 0.0)


def test_the_cube_is_interpolated_in_the_middle_of_shells() -> None:
    x, y, z = torch.meshgrid(*(torch.arange(n) for n in (9, 7, 5)), indexing="ij")
    linear = cube_of(
        (2.0 * x + 3.0 * y - z + 20).double(),
        origin=(-80.0, -30.0, -20.0),
        spacing=(20.0, 10.0, 10.0),
    )
    edges = linear.edges()
    assert float(edges[-1]) >= np.linalg.norm([80, 30, 20])
    steps = edges.diff()
    assert float(steps[0]) == pytest.approx(40 / 3)
    assert bool((steps.diff() > -1e-9).all())
    directions = torch.tensor([[0.0, 0, 1], [0.6, 0.0, 0.8]], dtype=torch.float64)
    found = linear.in_shells(directions, edges[-1].expand(2))
    middles = (edges[1:] + edges[:-1]) / 2
    for row, direction in zip(found, directions):
        x, y, z = (direction * middles[:, None]).clamp(-20, 20).T
        expected = 2 * (x + 80) / 20 + 3 * (y + 30) / 10 - (z + 20) / 10 + 20
        inside = middles * direction.max() < 20
        torch.testing.assert_close(row[inside], expected[inside])
    # Beyond the grid the nearest of its points counts.
    assert float(found[0, -1]) == pytest.approx(8 + 9 - 4 + 20)


def test_the_covariance_is_the_integral_along_the_shorter_ray(
    generator: torch.Generator,
) -> None:
    smooth = cube_of(torch.full((17, 17, 17), 2e-3, dtype=torch.float64))
    some, form = rays(2, generator), form_of(smooth)
    near = torch.zeros(1, 1, dtype=torch.int64)
    found = Neighbourhoods.of(form, some, some[1:], near).across[0, 0, 0]
    chord = float((some.directions[0] - some.directions[1]).norm())
    assert form.subgrid is not None

    s = np.linspace(0.0, float(some.lengths.min()), 2001)
    integral = np.trapezoid(line(form.subgrid, 0, chord * s), s)
    # α is no part of a neighbourhood.
    assert float(found) == pytest.approx(4e-6 * integral, rel=0.03)


def test_what_is_left_integrates_the_prior_below_the_cut() -> None:
    """The whole prior is a grid's band and the subgrid."""
    prior = KERNELS["matern12"](lengthscale=120.0, variance=1.2)
    grid = Grid(shape=(3, 3, 3), origin=(0.0,) * 3, spacing=(50.0,) * 3)
    found = SubgridCovariance.of("matern12", prior, [grid])
    assert found.cuts == (GRID_CUT * 50.0,)
    apart = torch.tensor([0.0, 0.3, 1.0, 3.0], dtype=torch.float64)
    band = band_covariance(
        prior, (GRID_CUT * 50 / 120) ** 2, math.inf, apart * 30 / 120
    )
    whole = 1.2 * torch.exp(-apart * 30 / 120)
    torch.testing.assert_close(found.relative(0, apart).log1p() + band, whole)
    exact = torch.from_numpy(relative(found, 0, 30 * apart.numpy()))
    torch.testing.assert_close(found.relative(0, apart), exact)
    length = line(found, 0, np.array(0.0)) / found.variances[0]
    assert found.lengths[0] == pytest.approx(float(length), rel=1e-4)


@pytest.mark.parametrize(("cell", "off"), [(10.0, 0.01), (50.0, 0.05)])
def test_in_a_cell_what_is_left_is_that_of_pairs_of_places(
    generator: torch.Generator, cell: float, off: float
) -> None:
    prior = KERNELS["matern12"](lengthscale=120.0, variance=1.2)
    grid = Grid(shape=(3, 3, 3), origin=(0.0,) * 3, spacing=(50.0,) * 3)
    at_points = SubgridCovariance.of("matern12", prior, [grid])
    in_cells = replace(at_points, cell=cell)
    pairs = torch.rand(2, 400_000, 3, generator=generator, dtype=torch.float64)
    apart = cell / at_points.cuts[0] * (pairs[0] - pairs[1]).norm(dim=1)
    expected = float(at_points.relative(0, apart).mean())
    assert in_cells.variances[0] == pytest.approx(expected, rel=off)
    assert in_cells.variances[0] < 0.85 * at_points.variances[0]
    # Averages change variances, and not what adds up over all directions.
    distance = torch.linspace(0.0, 12.0, 4001, dtype=torch.float64)
    integral = torch.trapezoid(distance**2 * at_points.relative(0, distance), distance)
    expected = 4 * math.pi * at_points.cuts[0] ** 3 * float(integral)
    smooth = replace(at_points, cell=20 * at_points.cuts[0])
    # A Gaussian of the difference of two places in a cell that is much wider.
    wide = (2 * math.pi * 2 * smooth.cell**2 / 12) ** 1.5
    assert smooth.variances[0] == pytest.approx(expected / wide, rel=0.1)


def test_covariances_are_positive_definite_all_around(
    generator: torch.Generator,
) -> None:
    density = cube(generator)
    some = rays(300, generator, spread=5.0)
    everyone = torch.arange(300)[None]
    hoods = Neighbourhoods.of(form_of(density), some, some[:1], everyone)
    among = (hoods.among * WEIGHTS[:, None, None]).sum(1)[0]
    eigenvalues = torch.linalg.eigvalsh(among)
    assert float(eigenvalues.min()) > -TABLE_ERROR * float(among.diagonal().min())


def test_compiled_loops_find_the_same(generator: torch.Generator) -> None:
    density = cube(generator)
    rows, places = (rays(n, generator) for n in (300, 40))
    form = form_of(density)
    noise = 1e-4 + 1e-3 * torch.rand(300, generator=generator, dtype=torch.float64)
    near = nearest(rows.coordinates(10.0), places.coordinates(10.0), 12)
    expected, left = kriged(form, rows, noise, places, near)
    found = krige_rays(form, rows, noise, places, near)
    torch.testing.assert_close(found.weights, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.variance, left, rtol=1e-3, atol=0)
    hoods = Neighbourhoods.of(form, rows, places, near)
    some = rows[near]
    for value, one, other in (
        (hoods.among.movedim(1, -1), some[:, :, None], some[:, None]),
        (hoods.across.mT, places[:, None], some),
        (hoods.prior, places, places),
    ):
        exact = components(form, one, other)
        torch.testing.assert_close(value, exact, rtol=1e-3, atol=1e-12)


def test_gradients_are_those_of_the_prediction(generator: torch.Generator) -> None:
    density = cube(generator)
    rows, places = (rays(n, generator) for n in (60, 5))
    near = nearest(rows.coordinates(10.0), places.coordinates(10.0), 8)
    form = form_of(density)
    hoods = Neighbourhoods.of(form, rows, places, near)
    residuals = torch.randn(60, generator=generator, dtype=torch.float64)

    def predict(weights: torch.Tensor, noise: torch.Tensor) -> tuple:
        return hoods.predict(weights, noise, residuals)

    mean, variance = predict(WEIGHTS, torch.full((60,), 0.1, dtype=torch.float64))
    among = hoods.among.movedim(1, -1) @ WEIGHTS
    across = hoods.across.mT @ WEIGHTS
    own = TABLE_ERROR * torch.diagonal(among, dim1=1, dim2=2) + 0.1
    solved = torch.linalg.solve(among + torch.diag_embed(own), across)
    torch.testing.assert_close(mean, (solved * residuals[near]).sum(1))
    left = hoods.prior @ WEIGHTS - (solved * across).sum(1)
    torch.testing.assert_close(variance, left)
    noise = 0.1 + torch.rand(60, generator=generator, dtype=torch.float64)
    at = (WEIGHTS.clone().requires_grad_(), noise.requires_grad_())
    assert torch.autograd.gradcheck(predict, at)


def test_the_density_at_points_has_the_integrals_of_the_kernel(
    generator: torch.Generator,
) -> None:
    density = cube(generator)
    rows, places = (rays(n, generator) for n in (12, 3))
    form = form_of(density)
    noise = torch.full((12,), 1e-3, dtype=torch.float64)
    # A single block; residuals of one row each tell the weights.
    one = torch.eye(12).double(), places, 3, torch.arange(12)[None]
    block = torch.zeros(3, dtype=torch.int64)
    found, _ = predict_rays(form, rows, noise, *one, block)
    edges, profiles = (
        density.edges().tolist(),
        density.in_shells(rows.directions, rows.lengths),
    )
    assert form.subgrid is not None

    def across(point: np.ndarray, row: int) -> float:
        end, profile = rows.directions[row].numpy(), profiles[row].tolist()
        foot, length = float(point @ end), float(rows.lengths[row])

        def kernel(s: float) -> float:
            away = np.array(np.linalg.norm(point - s * end))
            return float(WEIGHTS) * float(relative(form.subgrid, 0, away))

        total = 0.0
        for start, stop, value in zip(edges, edges[1:], profile):
            if start < length:
                inside = [foot] if start < foot < min(stop, length) else None
                ends = start, min(stop, length)
                total += value * quad(kernel, *ends, points=inside, limit=200)[0]
        return total

    points = (places.directions * places.lengths[:, None]).numpy()
    covariances = torch.tensor([[across(x, n) for n in range(12)] for x in points])
    among = dense(form, rows, rows)
    among += torch.diag(noise + TABLE_ERROR * torch.diagonal(among))
    solved = torch.linalg.solve(among, covariances.double().T).T
    torch.testing.assert_close(
        found.T, solved, rtol=0, atol=5e-3 * float(solved.abs().max())
    )


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_the_factor_that_made_the_residuals_is_learnt(
    generator: torch.Generator, alpha: float
) -> None:
    density = cube(generator, contrast=1.5)
    some = rays(900, generator, spread=0.15)
    weights = torch.tensor([alpha], dtype=torch.float64)
    among = dense(replace(form_of(density), weights=weights), some, some)
    root = torch.linalg.cholesky(
        among + TABLE_ERROR * torch.diag(torch.diagonal(among))
    )
    white = torch.randn(2, 900, generator=generator, dtype=torch.float64)
    noise = torch.full((900,), 0.01**2, dtype=torch.float64)
    residual = root @ white[0] + 0.01 * white[1]
    given = some, residual.expand(2, -1), noise
    about = {"cube": density, "subgrid": subgrid_of(density)}
    found = learn_residual(*given, torch.arange(600, 900), **about)
    assert float(found.weights) == pytest.approx(alpha, rel=0.4)
    found = calibrated_on(found, torch.arange(600, 900))
    assert central_factor(found.tails) == pytest.approx(1.0, rel=0.1)
    # About another map α is learnt again; variances of densities stay as they were.
    known = replace(found, weights=3 * found.weights)
    again = relearnt_on(known, torch.arange(600, 900))
    assert float(again.weights) == pytest.approx(alpha, rel=0.4)
    asked = some.directions[:9] * some.lengths[:9, None], torch.ones(2, 9).double()
    for points, factor in ((0, 1.0), (9, float(known.weights / again.weights))):
        values, left = again.correct(*asked, points)
        own = replace(again, density_weights=None).correct(*asked, points)
        torch.testing.assert_close((values, left), (own[0], factor * own[1]))
    # Of many rows only those around the held-out ones are learnt from.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dustmap.residual.learning._MANY", 899)
        near = learn_residual(*given, torch.arange(600, 780), **about)
    assert len(near.rays) == 900
    assert float(near.weights) == pytest.approx(alpha, rel=0.6)
    # Without stars that the map has not seen it is the prior's.
    alone = learn_residual(*given, torch.arange(0), **about)
    assert float(alone.weights) == 1.0
    assert relearnt_on(alone, torch.arange(0)).tails == 20.0
    assert alone.nugget == 0.0


def zeros_about(density: DensityCube, generator: torch.Generator) -> ResidualField:
    """Residuals of zero: corrections change nothing."""
    rows = rays(50, generator)
    noise = torch.full((50,), 1e-3, dtype=torch.float64)
    none = torch.zeros(2, 50, dtype=torch.float64)
    of_grid = {"cube": density, "subgrid": subgrid_of(density)}
    return field_of(rows, none, noise, WEIGHTS, **of_grid, tails=3.0)


def test_far_from_stars_the_density_varies_as_the_prior_below_the_cut(
    generator: torch.Generator,
) -> None:
    field = zeros_about(cube(generator), generator)
    assert field.subgrid is not None
    points = torch.tensor([[-300.0, 20, 10], [-90.0, -200, 50]], dtype=torch.float64)
    densities = torch.tensor([[1e-3, 2e-3], [3e-3, 1e-3]], dtype=torch.float64)
    corrected, variance = field.correct(points, densities, 2)
    torch.testing.assert_close(corrected, densities)
    expected = corrected**2 * WEIGHTS * field.subgrid.variances[0]
    torch.testing.assert_close(variance, expected, rtol=2e-2, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shares", [(1.0, 1.0), (0.4, 0.8)])
def test_corrected_densities_integrate_to_the_corrected_extinctions(
    generator: torch.Generator, shares: tuple[float, ...], sign: float
) -> None:
    """Also where the samples' densities are not those of the covariance."""
    density = cube(generator, contrast=0.5)
    field, ends = zeros_about(density, generator), rays(30, generator)
    share = torch.tensor(shares, dtype=torch.float64)[:, None]
    residuals = sign * 2e-4 * share * field.rays.lengths
    field = replace(field, residuals=residuals)
    count, length = 100, 150 + ends.lengths / 2
    at = length[:, None] * (torch.arange(count) + 0.5) / count
    points = (ends.directions[:, None] * at[..., None]).flatten(0, 1)
    densities = share * density.at(points)
    step = (length / count).repeat_interleave(count)

    def integral(values: Tensor) -> Tensor:
        return (values * step).unflatten(1, (30, count)).sum(2)

    places = ends.directions * length[:, None]
    extinctions, _ = field.correct(places, integral(densities))
    corrected, _ = field.correct(points, densities, len(points))
    told = (extinctions - integral(densities)).mean(1) * sign
    assert bool((told > 0.1 * share[:, 0] * integral(densities).mean()).all())
    found = integral(corrected).mean(1) / extinctions.mean(1)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=0.03)


def test_a_correction_never_makes_a_density_negative(
    generator: torch.Generator,
) -> None:
    field = zeros_about(cube(generator), generator)
    field = replace(field, residuals=field.residuals - 5.0)
    ends = field.rays.directions * field.rays.lengths[:, None] / 2
    density, _ = field.correct(ends, torch.full((2, 50), 1e-3), 50)
    assert bool((density >= 0).all()) and float(density.median()) < 1e-3


def nested_cube(generator: torch.Generator) -> DensityCube:
    """Two grids: cells of 50 pc out to 400 pc, of 25 pc within 150 pc."""
    coarse = cube(generator)
    fine = Grid(shape=(13, 13, 13), origin=(-150.0,) * 3, spacing=(25.0,) * 3)
    inner = torch.randn(fine.size, generator=generator, dtype=torch.float64)
    values = torch.cat([coarse.values, 2e-3 * (0.5 * inner).exp()])
    return DensityCube(values=values, grids=(*coarse.grids, fine))


def test_shells_densities_and_scales_follow_the_finest_grid(
    generator: torch.Generator,
) -> None:
    density = nested_cube(generator)
    edges, levels = density.edges(), density.levels()
    assert float(edges[1]) == 25.0
    assert torch.equal(levels, (edges[:-1] < 150.0).long())
    assert density.level_at(torch.tensor([10.0, 149.0, 151.0])).tolist() == [1, 1, 0]
    form = form_of(density)
    assert form.subgrid is not None
    assert form.subgrid.cuts == (GRID_CUT * 50, GRID_CUT * 25)


def test_compiled_covariances_of_nested_grids_are_those_of_their_scales(
    generator: torch.Generator,
) -> None:
    density = nested_cube(generator)
    some = rays(30, generator)
    form = replace(form_of(density), weights=NESTED)
    near = torch.arange(20).expand(10, 20)
    noise = torch.full((30,), 1e-2, dtype=torch.float64)
    places = some[torch.arange(20, 30)]
    found = krige_rays(form, some, noise, places, near)
    whole = dense(form, some, some)
    own = TABLE_ERROR * whole.diagonal()[:20] + 1e-2
    among = whole[:20, :20] + own.diag()
    across = whole[20:, :20]
    weights = torch.linalg.solve(among, across.mT).mT
    torch.testing.assert_close(found.weights, weights, rtol=2e-2, atol=2e-3)
    left = whole.diagonal()[20:] - (weights * across).sum(1)
    torch.testing.assert_close(found.variance, left, rtol=2e-2, atol=1e-6)


def test_every_grid_has_the_factor_that_made_its_residuals(
    generator: torch.Generator,
) -> None:
    density, weights = nested_cube(generator), torch.tensor([0.4, 2.0]).double()
    some = rays(1500, generator, spread=0.15)
    among = dense(replace(form_of(density), weights=weights), some, some)
    root = torch.linalg.cholesky(
        among + TABLE_ERROR * torch.diag(torch.diagonal(among))
    )
    white = torch.randn(2, 1500, generator=generator, dtype=torch.float64)
    noise = torch.full((1500,), 0.01**2, dtype=torch.float64)
    residual = root @ white[0] + 0.01 * white[1]
    about = {"cube": density, "subgrid": subgrid_of(density)}
    given = some, residual.expand(2, -1), noise, torch.arange(1000, 1500)
    found = learn_residual(*given, **about)
    torch.testing.assert_close(found.weights, weights, rtol=0.4, atol=0)


def test_a_density_near_a_seam_has_the_scales_of_its_own_grid(
    generator: torch.Generator,
) -> None:
    # The same covariance as on one grid of these cells, where no shell is of another.
    density = nested_cube(generator)
    alone = DensityCube(
        values=density.values[density.grids[0].size :], grids=density.grids[1:]
    )
    about = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    ends = 40.0 * about
    one = torch.ones(1, dtype=torch.float64)
    found = []
    for each, weights in ((density, NESTED), (alone, NESTED[1:])):
        ray = rays_to(100 * about, 0.1 * one, 0.0)
        place = rays_to(ends, one, 0.0)
        form = replace(form_of(each), weights=weights)
        residuals = torch.ones(1, 1, dtype=torch.float64)
        near = torch.zeros(1, 1, dtype=torch.int64)
        given = (form, ray, 1e-3 * one, residuals, place, 1, near)
        mean, _ = predict_rays(*given, torch.zeros(1, dtype=torch.int64))
        found.append(float(mean[0, 0]))
    assert found[0] == pytest.approx(found[1], rel=2e-2)
