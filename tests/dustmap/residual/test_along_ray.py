"""The covariance along rays against sums and integrals, and what it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_kriging import components, dense, kriged
from residual_fields import field_of
from scipy.integrate import quad
from scipy.interpolate import RegularGridInterpolator
from scipy.special import k1
from torch import Tensor

from dustmap.grid import Grid
from dustmap.residual.corrections import calibrated
from dustmap.residual.covariance import RayCovariance, Rays, rays_to
from dustmap.residual.cube import DensityCube
from dustmap.residual.field import ResidualField
from dustmap.residual.kriging import JITTER, Neighbourhoods, krige_rays, predict_rays
from dustmap.residual.learning import learn_residual
from dustmap.residual.neighbours import nearest

WEIGHTS = torch.tensor([0.5, 1.0, 0.1], dtype=torch.float64)
SCALES = (5.0, 20.0, 60.0)


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


def form_of(density: DensityCube, scales=SCALES) -> RayCovariance:
    """The covariance with the scales of these tests."""
    edges, cells = density.edges(), density.cells()
    return RayCovariance(weights=WEIGHTS, lengthscales=scales, edges=edges, cells=cells)


def rays(
    count: int, density: DensityCube, generator: torch.Generator, spread: float = 0.05
) -> Rays:
    """Rays about one direction, as far apart as ``spread`` [rad]."""
    about = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    white = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    directions = torch.nn.functional.normalize(about + spread * white, dim=-1)
    lengths = 60 + 320 * torch.rand(count, generator=generator, dtype=torch.float64)
    ends = directions * lengths[:, None]
    return density.along(rays_to(ends, torch.ones(count, dtype=torch.float64), 0.0))


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
    found = linear.along(rays_to(100 * directions, torch.ones(2), 0.0)).profile
    assert found is not None
    middles = (edges[1:] + edges[:-1]) / 2
    for row, direction in zip(found, directions):
        x, y, z = (direction * middles[:, None]).clamp(-20, 20).T
        expected = 2 * (x + 80) / 20 + 3 * (y + 30) / 10 - (z + 20) / 10 + 20
        inside = middles * direction.max() < 20
        torch.testing.assert_close(row[inside], expected[inside])
    # Beyond the grid the nearest of its points counts.
    assert float(found[0, -1]) == pytest.approx(8 + 9 - 4 + 20)


def test_the_amplitude_lies_between_density_and_mean(
    generator: torch.Generator,
) -> None:
    density = cube(generator)
    some = rays(5, density, generator)
    root = replace(density, power=0.5)
    found = root.along(some).profile
    assert found is not None
    assert some.profile is not None
    edges = density.edges()
    for row, profile in zip(found, some.profile):
        before = torch.cumsum(profile * edges.diff(), 0) - profile * edges.diff() / 2
        middle = (edges[1:] + edges[:-1]) / 2
        torch.testing.assert_close(row**2, profile * before / middle)
    # At a ray's end the mean is that up to there.
    within = (some.lengths[:, None] - edges[:-1]).clamp_min(0).minimum(edges.diff())
    mean = (some.profile * within).sum(1) / some.lengths
    axes = [np.linspace(-400, 400, 17)] * 3
    tips = (some.directions * some.lengths[:, None]).numpy()
    tip = torch.from_numpy(
        RegularGridInterpolator(axes, density.values.reshape((17,) * 3).numpy())(tips)
    )
    torch.testing.assert_close(root.relative_amplitude(some) ** 2, mean / tip)
    assert bool((density.relative_amplitude(some) == 1).all())


def test_components_are_the_integral_along_the_shorter_ray(
    generator: torch.Generator,
) -> None:
    smooth = cube_of(torch.full((17, 17, 17), 2e-3, dtype=torch.float64))
    some = rays(2, smooth, generator)
    form = form_of(smooth)
    near = torch.zeros(1, 1, dtype=torch.int64)
    found = Neighbourhoods.of(form, some, some[1:], near).across[0, :, 0]
    chord = float((some.directions[0] - some.directions[1]).norm())
    for value, scale in zip(found.tolist(), form.lengthscales):

        def kernel(x: float) -> float:
            return x * k1(x) if x > 0 else 1.0

        # From distances to distances in scales of the chord.
        unit = scale / chord
        integral = quad(kernel, 0, float(some.lengths.min()) / unit)[0]
        expected = 4e-6 * 2 * scale * unit * integral
        assert value == pytest.approx(expected, rel=0.03)


def test_the_kernel_is_the_exponential_integrated_along_a_line() -> None:
    one = torch.ones(1, dtype=torch.float64)
    edges = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = RayCovariance(weights=one, lengthscales=(7.0,), edges=edges, cells=one)
    ray = Rays(
        directions=torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64),
        lengths=torch.ones(2, dtype=torch.float64),
        density=torch.ones(2, dtype=torch.float64),
        profile=torch.ones(2, 1, dtype=torch.float64),
    )
    apart = 0.5 * np.sqrt(2)
    expected = 2 * quad(lambda t: np.exp(-np.hypot(apart, t) / 7), 0, 200)[0]
    assert float(dense(found, ray, ray)[0, 1]) == pytest.approx(expected, rel=1e-8)
    near = torch.zeros(1, 1, dtype=torch.int64)
    value = float(Neighbourhoods.of(found, ray, ray[1:], near).across)
    assert value == pytest.approx(expected, rel=1e-3)


def test_covariances_are_positive_definite_all_around(
    generator: torch.Generator,
) -> None:
    density = cube(generator)
    some = rays(300, density, generator, spread=5.0)
    everyone = torch.arange(300)[None]
    hoods = Neighbourhoods.of(form_of(density), some, some[:1], everyone)
    among = (hoods.among * WEIGHTS[:, None, None]).sum(1)[0]
    eigenvalues = torch.linalg.eigvalsh(among)
    assert float(eigenvalues.min()) > -JITTER * float(among.diagonal().min())


def test_compiled_loops_find_the_same(generator: torch.Generator) -> None:
    density = cube(generator)
    rows, places = (rays(n, density, generator) for n in (300, 40))
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
    rows, places = (rays(n, density, generator) for n in (60, 5))
    near = nearest(rows.coordinates(10.0), places.coordinates(10.0), 8)
    form = form_of(density)
    hoods = Neighbourhoods.of(form, rows, places, near)
    residuals = torch.randn(60, generator=generator, dtype=torch.float64)

    def predict(weights: torch.Tensor, noise: torch.Tensor) -> tuple:
        return hoods.predict(weights, noise, residuals)

    mean, variance = predict(WEIGHTS, torch.full((60,), 0.1, dtype=torch.float64))
    among = hoods.among.movedim(1, -1) @ WEIGHTS
    across = hoods.across.mT @ WEIGHTS
    own = JITTER * torch.diagonal(among, dim1=1, dim2=2) + 0.1
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
    rows, places = (rays(n, density, generator) for n in (12, 3))
    form = form_of(density)
    noise = torch.full((12,), 1e-3, dtype=torch.float64)
    # A single block; residuals of one row each tell the weights.
    one = torch.eye(12, dtype=torch.float64), places, torch.arange(12)[None]
    block = torch.zeros(3, dtype=torch.int64)
    found, _ = predict_rays(form, rows, noise, *one, block, points=True)
    edges = form.edges.tolist()
    assert rows.profile is not None

    def across(point: np.ndarray, row: int) -> float:
        end, profile = rows.directions[row].numpy(), rows.profile[row].tolist()
        foot, length = float(point @ end), float(rows.lengths[row])

        def relative(s: float) -> float:
            away = np.linalg.norm(point - s * end)
            scales = np.array(form.lengthscales)
            return float(WEIGHTS.numpy() @ np.exp(-away / scales))

        total = 0.0
        for start, stop, value in zip(edges, edges[1:], profile):
            if start < length:
                inside = [foot] if start < foot < min(stop, length) else None
                ends = start, min(stop, length)
                total += value * quad(relative, *ends, points=inside, limit=200)[0]
        return total

    points = (places.directions * places.lengths[:, None]).numpy()
    covariances = torch.tensor([[across(x, n) for n in range(12)] for x in points])
    among = dense(form, rows, rows)
    among += torch.diag(noise + JITTER * torch.diagonal(among))
    solved = torch.linalg.solve(among, covariances.double().T).T
    torch.testing.assert_close(
        found.T, solved, rtol=0, atol=5e-3 * float(solved.abs().max())
    )


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_amplitude_that_made_the_residuals_is_learnt(
    generator: torch.Generator, power: float
) -> None:
    density = replace(cube(generator, contrast=1.5), power=power)
    some = rays(1500, density, generator, spread=0.15)
    weights = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    among = dense(replace(form_of(density), weights=weights), some, some)
    root = torch.linalg.cholesky(among + JITTER * torch.diag(torch.diagonal(among)))
    white = torch.randn(2, 1500, generator=generator, dtype=torch.float64)
    noise = torch.full((1500,), 0.01**2, dtype=torch.float64)
    residual = root @ white[0] + 0.01 * white[1]
    held = torch.arange(1000, 1500)
    found = learn_residual(some, residual.expand(2, -1), noise, held, cube=density)
    assert found.cube is not None
    assert found.cube.power == power
    assert float(found.weights[1]) == pytest.approx(0.5, rel=0.6)
    assert found.gain > 100


def test_scales_that_the_map_resolves_have_no_weight(
    generator: torch.Generator,
) -> None:
    density = cube(generator)
    some = rays(600, density, generator, spread=0.15)
    residual = 0.01 * torch.randn(600, generator=generator, dtype=torch.float64)
    noise = torch.full((600,), 0.01**2, dtype=torch.float64)
    held = torch.arange(400, 600)
    found = learn_residual(some, residual.expand(2, -1), noise, held, cube=density)
    scales = torch.tensor(found.covariance.lengthscales)
    assert bool((found.weights[scales > min(density.grids[0].spacing)] == 0).all())
    # Noise alone: neighbours tell nothing of one another.
    assert found.gain < 5


def zeros_about(density: DensityCube, generator: torch.Generator) -> ResidualField:
    """Residuals of zero: corrections change nothing."""
    rows = density.along(rays(50, density, generator))
    noise = torch.full((50,), 1e-3, dtype=torch.float64)
    none = torch.zeros(2, 50, dtype=torch.float64)
    return field_of(rows, none, noise, WEIGHTS, cube=density, scale=0.5)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_far_from_stars_the_density_varies_by_its_amplitude(
    generator: torch.Generator, power: float
) -> None:
    field = zeros_about(replace(cube(generator), power=power), generator)
    assert field.cube is not None
    points = torch.tensor([[-300.0, 20, 10], [-90.0, -200, 50]], dtype=torch.float64)
    densities = torch.tensor([[1e-3, 2e-3], [3e-3, 1e-3]], dtype=torch.float64)
    corrected, variance = field.correct_density(points, densities)
    torch.testing.assert_close(corrected, calibrated(densities, field.scales**0.5))
    relative = field.cube.relative_amplitude(field.places(points, torch.ones(2)))
    expected = field.scales**0.5 * (corrected * relative) ** 2 * WEIGHTS.sum()
    torch.testing.assert_close(variance, expected, rtol=2e-2, atol=0)
    assert bool((relative == 1).all()) == (power == 1)


def test_a_correction_never_makes_a_density_negative(
    generator: torch.Generator,
) -> None:
    field = zeros_about(cube(generator), generator)
    field = replace(field, residuals=field.residuals - 5.0)
    ends = field.rays.directions * field.rays.lengths[:, None] / 2
    density, _ = field.correct_density(ends, torch.full((2, 50), 1e-3))
    assert bool((density >= 0).all()) and float(density.median()) < 1e-3


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_nothing_lies_between_the_observer_and_itself(
    generator: torch.Generator, power: float
) -> None:
    field = zeros_about(replace(cube(generator), power=power), generator)
    ends = torch.tensor([[0.0, 0, 0], [200.0, 3, 5]], dtype=torch.float64)
    extinctions = torch.tensor([[0.0, 0.3], [0.0, 0.3]], dtype=torch.float64)
    white = torch.ones(2, 2, dtype=torch.float64)
    found = field.draw(ends, extinctions, white)
    assert float(found[:, 0].abs().max()) < 1e-5
    assert bool(found.isfinite().all())
    assert field.cube is not None
    here = field.places(ends[:1], torch.zeros(1))
    assert float(field.cube.relative_amplitude(here)) == pytest.approx(1.0, rel=0.5)


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
    edges, cells = density.edges(), density.cells()
    assert float(edges[1]) == 25.0
    assert torch.equal(cells, torch.where(edges[:-1] < 150.0, 0.5, 1.0).double())
    assert density.level_at(torch.tensor([10.0, 149.0, 151.0])).tolist() == [1, 1, 0]
    # In the finer box its own values, interpolated.
    points = 100 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    fine = density.values[density.grids[0].size :].reshape(13, 13, 13).numpy()
    axes = [np.linspace(-150, 150, 13)] * 3
    near = points[(points.abs() <= 150).all(dim=1)]
    lengths = near.norm(dim=1)
    some = rays_to(near, torch.ones(len(near), dtype=torch.float64), 0.0)
    half = replace(density, power=0.5)
    mean = half.relative_amplitude(some) ** 2
    along = density.along(some).profile
    assert along is not None
    within = (lengths[:, None] - edges[:-1]).clamp_min(0).minimum(edges.diff())
    tips = torch.from_numpy(RegularGridInterpolator(axes, fine)(near.numpy()))
    torch.testing.assert_close(mean, (along * within).sum(1) / lengths / tips)


@pytest.mark.parametrize("points", [False, True])
def test_compiled_covariances_of_nested_grids_are_those_of_their_scales(
    generator: torch.Generator, points: bool
) -> None:
    density = nested_cube(generator)
    some = rays(30, density, generator)
    form = form_of(density)
    near = torch.arange(20).expand(10, 20)
    noise = torch.full((30,), 1e-2, dtype=torch.float64)
    places = some[torch.arange(20, 30)]
    if points:
        residuals = torch.randn(2, 30, generator=generator, dtype=torch.float64)
        blocks = torch.arange(10)
        given = (form, some, noise, residuals, places, near, blocks)
        mean, variance = predict_rays(*given, points=True)
        assert bool((variance < WEIGHTS.sum()).all()) and bool((variance > 0).all())
        assert bool(torch.isfinite(mean).all())
        return
    found = krige_rays(form, some, noise, places, near)
    whole = dense(form, some, some)
    own = JITTER * whole.diagonal()[:20] + 1e-2
    among = whole[:20, :20] + own.diag()
    across = whole[20:, :20]
    weights = torch.linalg.solve(among, across.mT).mT
    torch.testing.assert_close(found.weights, weights, rtol=2e-2, atol=2e-3)
    left = whole.diagonal()[20:] - (weights * across).sum(1)
    torch.testing.assert_close(found.variance, left, rtol=2e-2, atol=1e-6)


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
    for each in (density, alone):
        ray = each.along(rays_to(100 * about, 0.1 * one, 0.0))
        place = rays_to(ends, one, 0.0)
        form = form_of(each, each.scales)
        residuals = torch.ones(1, 1, dtype=torch.float64)
        given = (form, ray, 1e-3 * one, residuals, each.along(place))
        near = torch.zeros(1, 1, dtype=torch.int64)
        mean, _ = predict_rays(
            *given, near, torch.zeros(1, dtype=torch.int64), points=True
        )
        found.append(float(mean[0, 0]))
    assert found[0] == pytest.approx(found[1], rel=2e-2)
