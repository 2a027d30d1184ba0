"""Nested grids: bands of scales, splines, the whitening against the kernel itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import torch
from scipy.interpolate import BSpline
from torch import Tensor

from dustmap.functionals import FixedStep, LineIntegrals, PointValues, StepsOutwards
from dustmap.grid import Grid, Torus
from dustmap.kernels import Matern12, Matern32, Matern52, Radial, SquaredExponential
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.models.subgrid import local_residual
from dustmap.nested_grids import NestedGrids
from dustmap.projection import projection
from dustmap.tori import Tori
from dustmap.whitening import LevelWhitening, TorusWhitening, nested_tori, splines
from dustmap.whitening import nested as nested_module
from dustmap.whitening.bands import (
    band_covariance,
    band_spectrum,
    correlated_to,
    shortest_time,
)

MATERN: list[type[Radial]] = [Matern12, Matern32, Matern52]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def nested(dimension: int, count: int, levels: int) -> list[Grid]:
    """Boxes of ``count`` cells, each half as wide as the one before."""
    grids, half, step = [], count / 2, 1.0
    for _ in range(levels):
        shape = (count + 1,) * dimension
        origin, spacing = (-half,) * dimension, (step,) * dimension
        grids.append(Grid(shape=shape, spacing=spacing, origin=origin))
        half, step = half / 2, step / 2
    return grids


def spread_points(levels: Tori, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, levels and places of random points that no finer level holds."""
    rng, found, first = np.random.default_rng(0), [], 0
    for number, torus in enumerate(levels):
        points = torus.grid.points()
        own = np.flatnonzero(levels.grids.level_of(points) == number)
        own = rng.choice(own, min(count, len(own)), replace=False)
        index = np.unravel_index(own, torus.grid.shape)
        at = torch.from_numpy(first + np.ravel_multi_index(index, torus.shape))
        found.append((at, torch.full_like(at, number), points[own]))
        first += torus.size
    numbers, level, places = (torch.cat(parts) for parts in zip(*found, strict=True))
    return numbers, level, places


def off_centre() -> list[Grid]:
    """Three boxes with sides of different lengths, not in each other's middle."""
    return [
        Grid(shape=(21, 21, 11), spacing=(40.0,) * 3, origin=(-400.0, -400.0, -200.0)),
        Grid(shape=(21, 21, 13), spacing=(20.0,) * 3, origin=(-200.0, -200.0, -120.0)),
        Grid(shape=(25, 21, 21), spacing=(10.0,) * 3, origin=(-120.0, -100.0, -100.0)),
    ]


def model_of(functionals: LineIntegrals | PointValues) -> LogNormal:
    kernel = Matern12(lengthscale=80.0, variance=0.8)
    whitening = LevelWhitening(kernel, nested_tori(off_centre(), kernel, 0.05))
    return LogNormal(whitening, functionals, mean=ConstantMean(value=1e-3))


def inner_ends(count: int, generator: torch.Generator) -> Tensor:
    """Places up to the faces of the second box, 8 pc from the Sun at least."""
    scale = torch.tensor([190.0, 190.0, 75.0], dtype=torch.float64)
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return (2 * unit - 1) * scale


# --- bands ---------------------------------------------------------------------------


@pytest.mark.parametrize("kernel_type", MATERN)
@pytest.mark.parametrize(
    ("shape", "spacing", "lengthscale"),
    [
        ((64,), (1.0,), [5.0]),
        ((24, 20), (1.0, 1.5), [4.0, 6.0]),
        ((16, 14, 12), (1.0, 1.0, 1.0), [3.0]),
        ((16, 14, 12), (1.0, 1.0, 1.0), [0.8]),
    ],
)
def test_bands_add_up_to_the_spectrum(kernel_type, shape, spacing, lengthscale):
    kernel = kernel_type(lengthscale=lengthscale, variance=2.0)
    half = tuple(n // 2 for n in shape)
    grid = Grid(shape=half, spacing=spacing, origin=(0.0,) * len(shape))
    torus = Torus(grid=grid, shape=shape)
    exact = TorusWhitening(kernel, torus).coarse.spectrum
    whole = band_spectrum(kernel, torus, 0.0, math.inf)
    torch.testing.assert_close(whole, exact, rtol=1e-9, atol=0.0)
    cell = max(spacing) / min(lengthscale)
    cuts = [0.0, 0.3 * cell**2, 2.5 * cell**2, math.inf]
    bands = [band_spectrum(kernel, torus, *ends) for ends in itertools.pairwise(cuts)]
    assert all(float(band.min()) >= 0.0 for band in bands)
    torch.testing.assert_close(sum(bands), exact, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("kernel_type", [Matern12, Matern32])
def test_a_bend_multiplies_the_mixture_by_octaves(kernel_type):
    bend = (0.7, -0.4, -1.2)
    kernel = kernel_type(lengthscale=3.0, variance=2.0, bend=bend)
    nodes = math.log(4.0) * np.arange(-3, 1)

    def integral(low: float, high: float, r: float) -> float:
        def integrand(x: float) -> float:
            tau, factor = math.exp(x), np.interp(x, nodes, [*bend[::-1], 0.0])
            nu = kernel.smoothness
            return math.exp(nu * x + factor - 2 * nu * tau - r**2 / (4 * tau))

        cuts = [low, *(x for x in nodes if low < x < high), high]
        parts = itertools.pairwise(cuts)
        return sum(scipy.integrate.quad(integrand, *part)[0] for part in parts)

    first, last = -40.0, math.log(60 / (2 * kernel.smoothness))
    whole = integral(first, last, 0.0)
    r = torch.tensor([0.0, 0.1, 1.0, 3.0], dtype=torch.float64)
    for low, high in ((0.02, math.inf), (0.02, 0.3), (0.0, 0.3)):
        ends = math.log(low) if low else first, min(math.log(high), last)
        found = band_covariance(kernel, low, high, r).numpy()
        expected = [2.0 * integral(*ends, x) / whole for x in r.tolist()]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
    at_zero = band_covariance(kernel, 0.0, math.inf, torch.zeros(1).double())
    assert float(at_zero) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="bands"):
        kernel(torch.zeros(1, 3))
    for tolerance in (0.5, 0.05, 1e-3):
        reach = torch.tensor([correlated_to(kernel, tolerance)], dtype=torch.float64)
        for factor, low, high in ((1.0, 0.98, 1.0), (0.99, 1.0, 1.08)):
            left = band_covariance(kernel, 0.0, math.inf, factor * reach) / 2.0
            assert low * tolerance <= float(left) <= high * tolerance


@pytest.mark.parametrize("bend", [(-1.09,), (-0.33, -2.48), (-1.3, -1.9, -4.2, -5.6)])
def test_a_kernel_with_less_small_scale_power_has_a_reach(bend):
    kernel = Matern12(lengthscale=1.0, variance=1.3, bend=bend)
    for tolerance in (0.05, 1e-3):
        reach = torch.tensor([correlated_to(kernel, tolerance)], dtype=torch.float64)
        left = band_covariance(kernel, 0.0, math.inf, reach) / 1.3
        assert float(left) == pytest.approx(tolerance, rel=0.08)


def test_a_kernel_without_a_mixture_has_no_bands():
    torus = nested_tori(nested(1, 8, 1), Matern12(lengthscale=2.0), 0.05)[0]
    with pytest.raises(ValueError, match="Matérn"):
        band_spectrum(SquaredExponential(lengthscale=2.0), torus, 0.0, math.inf)


# --- splines -------------------------------------------------------------------------


def spline_at(coefficients: np.ndarray, step: float, x: np.ndarray) -> np.ndarray:
    """The quintic spline of coefficients from ``-MARGIN`` points on, by SciPy."""
    first = (np.arange(len(coefficients)) - splines.MARGIN) * step
    element = BSpline.basis_element(np.arange(-3.0, 4.0), extrapolate=False)
    values = np.nan_to_num(element((x[:, None] - first) / step))
    return values @ coefficients


def test_splines_have_the_values_of_scipys_and_keep_them_when_refined(generator):
    size = 9
    c = torch.randn(size + 2 * splines.MARGIN, generator=generator).double()
    points = np.arange(size, dtype=float)
    found = splines.values(c, 1)
    np.testing.assert_allclose(found, spline_at(c.numpy(), 1.0, points), atol=1e-12)
    fine = splines.refine(c, (2 * size - 1,))
    assert len(fine) == 2 * size - 1 + 2 * splines.MARGIN
    x = np.linspace(0, size - 1, 50)
    np.testing.assert_allclose(
        spline_at(fine.numpy(), 0.5, x), spline_at(c.numpy(), 1.0, x), atol=1e-12
    )


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_transposes_of_splines(dimension, generator):
    size = (7, 5, 6)[:dimension]
    coarse = torch.randn(2, *(n + 6 for n in size), generator=generator).double()
    points = tuple(2 * n - 1 - number % 2 for number, n in enumerate(size))
    fine = torch.randn(2, *(n + 6 for n in points), generator=generator).double()
    box = torch.randn(2, *size, generator=generator).double()
    left = (splines.refine(coarse, points) * fine).sum()
    right = (coarse * splines.refine_transpose(fine, dimension)).sum()
    assert float(left) == pytest.approx(float(right), rel=1e-12)
    left = (splines.values(coarse, dimension) * box).sum()
    right = (coarse * splines.values_transpose(box, dimension)).sum()
    assert float(left) == pytest.approx(float(right), rel=1e-12)


# --- the whitening -------------------------------------------------------------------


def deviations(kernel: Radial, levels: Tori, cut: float = 0.0) -> dict[str, float]:
    """Largest deviations of coloured white noise from the kernel, in its variance.

    ``within`` a level and ``across`` the faces of finer boxes, of covariances;
    ``variance`` of points; ``lines`` of the variance of line integrals from the centre
    to the outermost box, relative to it.
    """
    whitening = LevelWhitening(kernel, levels, cut=cut)
    numbers, level, places = spread_points(levels, 24)
    unit = torch.zeros(len(numbers), levels.size, dtype=torch.float64)
    unit[torch.arange(len(numbers)), numbers] = 1.0
    rows = whitening.colour_transpose(unit)
    apart = places[:, None] - places[None]
    exact = kernel(apart)
    if cut:
        scaled = (apart / kernel.lengthscale).norm(dim=-1)
        for number, torus in enumerate(levels):
            time = shortest_time(kernel, torus.grid.spacing, cut)
            below = band_covariance(kernel, 0.0, time, scaled)
            # Of points on two grids the one with the shorter cut counts.
            finest = torch.minimum(level[:, None], level) == number
            exact -= torch.where(finest, below, 0.0)
    off = (rows @ rows.mT - exact).abs() / float(kernel.variance)
    same = level[:, None] == level
    direction = np.random.default_rng(0).normal(size=(8, levels.grids.dimension))
    direction /= np.abs(direction).max(axis=1, keepdims=True)
    ends = torch.from_numpy(direction * np.array(levels.grids.box.upper))
    rule = FixedStep(step=min(levels.grids.box.spacing) / 2, grids=levels.grids)
    W = projection(levels, LineIntegrals(ends, rule))
    weights = W.rmatvec(torch.eye(len(ends), dtype=torch.float64))
    found = whitening.colour_transpose(weights).square().sum(dim=1)
    positions, exact = levels.positions(), torch.empty_like(found)
    for number, row in enumerate(weights):
        seen = row.nonzero()[:, 0]
        at, w = positions[seen], row[seen]
        exact[number] = w @ kernel(at[:, None] - at[None]) @ w
    return {
        "within": float(off[same].max()),
        "across": float(off[~same].max()) if len(levels) > 1 else 0.0,
        "variance": float(off.diagonal().max()),
        "lines": float((found / exact - 1).abs().max()),
    }


@pytest.mark.parametrize(
    ("dimension", "count", "lengthscale", "kernel_type", "within", "seam"),
    [
        (1, 64, 8.0, Matern12, 1.5e-3, 2e-2),
        (1, 64, 8.0, Matern32, 1.5e-3, 1e-2),
        (2, 32, 8.0, Matern12, 1.5e-3, 3e-2),
        (2, 32, 8.0, Matern32, 1.5e-3, 1e-2),
        (3, 16, 4.0, Matern12, 1.5e-3, 4e-2),
        (3, 16, 4.0, Matern32, 1.5e-3, 2e-2),
    ],
)
def test_covariances_are_the_kernels(
    dimension, count, lengthscale, kernel_type, within, seam
):
    kernel = kernel_type(lengthscale=lengthscale, variance=1.0)
    levels = nested_tori(nested(dimension, count, 3), kernel, 0.05)
    off = deviations(kernel, levels)
    assert off["within"] < within and off["across"] < seam
    assert off["variance"] < 1.5e-3


@pytest.mark.parametrize("kernel_type", [Matern12, Matern32])
def test_every_grid_carries_its_band(kernel_type):
    kernel = kernel_type(lengthscale=4.0, variance=0.7)
    levels = nested_tori(nested(3, 16, 3), kernel, 0.05)
    off = deviations(kernel, levels, cut=0.6)
    assert off["within"] < 1.5e-3 and off["variance"] < 1.5e-3
    assert off["across"] < 4e-2
    found = LevelWhitening(kernel, levels, cut=0.6).unresolved
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_colouring_has_its_transpose(dtype, generator):
    kernel = Matern12(lengthscale=80.0)
    levels = nested_tori(off_centre(), kernel, 0.05)
    whitening = LevelWhitening(kernel, levels, dtype=dtype)
    eps = torch.randn(3, whitening.size, generator=generator).to(dtype)
    field = torch.randn(3, whitening.tori.size, generator=generator).to(dtype)
    left = (whitening.colour(eps) * field).double().sum(-1)
    right = (eps * whitening.colour_transpose(field)).double().sum(-1)
    scale = float(left.abs().max())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(left, right, rtol=0.0, atol=tolerance * scale)
    alone = whitening.colour(eps[1])
    torch.testing.assert_close(alone, whitening.colour(eps)[1])


def test_one_level_is_its_torus(generator, monkeypatch):
    monkeypatch.setattr(nested_module, "hidden_tori", lambda *_: [])
    kernel = Matern32(lengthscale=3.0)
    levels = nested_tori(nested(2, 12, 1), kernel, 0.05)
    torus = TorusWhitening(kernel, levels[0])
    eps = torch.randn(2, torus.size, generator=generator, dtype=torch.float64)
    found = LevelWhitening(kernel, levels).colour(eps)
    torch.testing.assert_close(found, torus.colour(eps), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel_type", [Matern12, Matern32])
def test_correlations_longer_than_a_torus_come_from_coarser_grids(
    kernel_type, monkeypatch
):
    # Sides of even and odd numbers of points; a lengthscale of ten cells.
    kernel = kernel_type(lengthscale=10.0, variance=1.0)
    grids = [Grid(shape=(16, 13), spacing=(1.0, 1.0), origin=(0.0, 0.0))]
    grids.append(Grid(shape=(9, 9), spacing=(0.5, 0.5), origin=(4.0, 4.0)))
    levels = nested_tori(grids, kernel, 0.05)
    whitening = LevelWhitening(kernel, levels)
    assert whitening.hidden >= 2 and whitening.size > levels.size
    off = {}
    for hidden in (whitening.hidden, 0):
        if not hidden:
            monkeypatch.setattr(nested_module, "hidden_tori", lambda *_: [])
        numbers, level, places = spread_points(levels, 60)
        unit = torch.zeros(len(numbers), levels.size, dtype=torch.float64)
        unit[torch.arange(len(numbers)), numbers] = 1.0
        rows = LevelWhitening(kernel, levels).colour_transpose(unit)
        deviation = (rows @ rows.mT - kernel(places[:, None] - places[None])).abs()
        off[hidden] = float(deviation[level[:, None] == level].max())
    assert off[0] > 0.1 and off[whitening.hidden] < 3e-3


@pytest.mark.parametrize("levels", [3, 6])
def test_the_covariance_of_levels_is_the_kernel_to_a_few_thousandths(levels):
    """The figures of scripts/docs/mathematics.md: four cells to a lengthscale."""
    kernel = Matern12(lengthscale=4.0, variance=0.7)
    # Boxes of twelve cells in each other's middle: what deviates depends on cells.
    spacings = [2.0**-level for level in range(levels)]
    grids = [
        Grid(shape=(13,) * 3, spacing=(h,) * 3, origin=(-6 * h,) * 3) for h in spacings
    ]
    off = deviations(kernel, nested_tori(grids, kernel, 0.05))
    assert off["within"] < 1.1e-3 and off["variance"] < 5e-4
    assert 1e-3 < off["across"] < 1.8e-2 and off["lines"] < 5.5e-3


def test_a_torus_without_room_for_splines_is_refused():
    grids = nested(1, 16, 2)
    tori = tuple(Torus(grid=grid, shape=(18,)) for grid in grids)
    with pytest.raises(ValueError, match="room"):
        LevelWhitening(Matern12(lengthscale=4.0), Tori(tori=tori))


# --- rays ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule_type", [FixedStep, StepsOutwards])
@pytest.mark.parametrize("from_the_sun", [True, False])
def test_steps_are_halved_from_box_to_box(rule_type, from_the_sun, generator):
    grids = off_centre()
    rule = rule_type(step=15.0, grids=NestedGrids(grids=tuple(grids)))
    ends = 1.9 * inner_ends(40, generator)
    start = None if from_the_sun else inner_ends(40, generator)
    ends[0], ends[1] = 0.0, torch.tensor([300.0, 0.0, 0.0])
    rays = LineIntegrals(ends, rule, start=start)
    nodes = rays.nodes()
    total = nodes.sum_rows(torch.ones(len(nodes.rows), dtype=torch.float64))
    torch.testing.assert_close(total, rays.lengths, rtol=1e-12, atol=1e-12)
    level = torch.zeros(len(nodes.rows), dtype=torch.int64)
    for number, grid in enumerate(grids):
        level[grid.contains(nodes.points)] = number
    assert set(level.tolist()) == {0, 1, 2}
    assert bool((nodes.weights <= 15.0 / 2 ** level.double() + 1e-9).all())
    # Nodes of a row are in order: averages over distances count on it.
    along = torch.linalg.vector_norm(nodes.points - rays.start[nodes.rows], dim=1)
    same = nodes.rows.diff() == 0
    assert bool((along.diff()[same] > 0).all())


def test_the_finest_level_carries_a_node(generator):
    kernel = Matern12(lengthscale=80.0)
    grids = off_centre()
    levels = nested_tori(grids, kernel, 0.05)
    slope = torch.tensor([1e-3, -2e-3, 3e-3], dtype=torch.float64)
    linear = 1 + levels.positions() @ slope
    ends, starts = 1.9 * inner_ends(60, generator), inner_ends(60, generator)
    rays = LineIntegrals(
        ends, FixedStep(step=20.0, grids=NestedGrids(grids=tuple(grids))), start=starts
    )
    W = projection(levels, rays)
    exact = rays.lengths * (1 + (ends + starts) @ slope / 2)
    torch.testing.assert_close(W.matvec(linear), exact, rtol=1e-12, atol=1e-12)
    points = PointValues(inner_ends(60, generator))
    found = projection(levels, points).matvec(linear)
    torch.testing.assert_close(found, 1 + points.points @ slope)
    # A value on one level is seen at points of that level alone.
    for number, part in enumerate(levels.split(torch.arange(levels.size))):
        on = torch.zeros(levels.size, dtype=torch.float64)
        on[part] = 1.0
        seen = projection(levels, points).matvec(on)
        own = levels.grids.level_of(points.points) == number
        expected = torch.from_numpy(own).double()
        torch.testing.assert_close(seen, expected)


# --- the density ---------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_unresolved_is_that_of_every_level(generator):
    grids = off_centre()
    points = inner_ends(40, generator)
    rule = FixedStep(step=20.0, grids=NestedGrids(grids=tuple(grids)))
    model = model_of(LineIntegrals(points, rule))
    eps = 0.3 * torch.randn(model.latent_size, generator=generator).double()
    kernel = model.whitening.kernel
    kappa = [local_residual(kernel, grid.spacing).line for grid in grids]
    assert kappa[0] > 3 * kappa[1] > 9 * kappa[2]
    squared = model.density(eps) ** 2 * model.whitening.tori.constants(kappa)
    expected = model.weights.matvec(squared)
    torch.testing.assert_close(model.linearise(eps).variance, expected)
    seen = model.at(PointValues(points)).linearise(eps)
    level = model.whitening.tori.grids.level_of(points)
    relative = seen.variance / seen.prediction**2
    for number, grid in enumerate(grids):
        own = points[level == number]
        c = local_residual(kernel, grid.spacing).at(own, grid)
        torch.testing.assert_close(relative[level == number], torch.expm1(c))


@pytest.mark.parametrize(("kernel_type", "near"), [(Matern12, 0.05), (Matern32, 0.3)])
def test_much_finer_cells_leave_the_tail_of_the_spectrum(
    kernel_type, near, monkeypatch
):
    kernel, spacing = kernel_type(lengthscale=8.0), (0.5, 0.5)
    scaled = local_residual(kernel, spacing)
    monkeypatch.setattr("dustmap.models.subgrid._MOST_CELLS", 100.0)
    # The function keeps its results.
    full = local_residual.__wrapped__(kernel, spacing)
    assert scaled.line != full.line
    assert scaled.line == pytest.approx(full.line, rel=near)
    torch.testing.assert_close(scaled.phases, full.phases, rtol=near, atol=1e-9)
