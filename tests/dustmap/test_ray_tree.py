"""W as a tree of rays, against W by rows and its own adjoint."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from stand_in_device import STAND_IN, stand_in_device

from dustmap.functionals import (
    DistanceMarginalizedIntegrals,
    FixedStep,
    LineIntegrals,
    PointValues,
    StepsOutwards,
)
from dustmap.grid import Grid
from dustmap.inference.full_batch import FullBatch, infer
from dustmap.kernels import KERNELS
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.models.means import ConstantMean
from dustmap.nested_grids import NestedGrids
from dustmap.projection import matrix, projection
from dustmap.projection.ray_tree import Ends, RayTree
from dustmap.whitening import TorusWhitening, nested_tori
from pipelines.base.geometry import Box, spherical, unit_vectors
from pipelines.model.observations import exit_distances

COARSE = Grid(shape=(31, 35, 17), spacing=(20.0,) * 3, origin=(-300.0, -340.0, -160.0))
FINE = Grid(shape=(17, 17, 17), spacing=(10.0,) * 3, origin=(-80.0,) * 3)
GRIDS = {"one grid": (COARSE,), "nested grids": (COARSE, FINE)}
KINDS = ("exact", "uncertain", "differences")


def sight_lines(grids, kind, generator, count=400):
    unit = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    lower, upper = torch.tensor(COARSE.lower), torch.tensor(COARSE.upper)
    ends = lower + unit * (upper - lower).double()
    # A star at the observer, and one in a corner of the box.
    ends[0], ends[1] = 0.0, lower
    rule = FixedStep(step=5.0, grids=NestedGrids(grids=grids))
    if kind == "exact":
        return LineIntegrals(ends, rule)
    if kind == "differences":
        return LineIntegrals(ends, rule, start=0.7 * ends)
    distance = ends.norm(dim=1)
    room = torch.where(ends > 0, upper / ends, lower / ends).amin(dim=1)
    reach = distance * room.clamp(1.0, 1.1).nan_to_num(1.0)
    return DistanceMarginalizedIntegrals(ends, 0.05 * distance, reach, rule)


def tree(tori, lines, dtype=torch.float64, device="cpu"):
    found = projection(tori, lines, dtype=dtype, device=device, tree=True)
    assert isinstance(found, RayTree)
    return found


@pytest.fixture(params=GRIDS)
def tori(request):
    kernel = KERNELS["matern12"](lengthscale=[60.0] * 3, variance=1.0)
    return nested_tori(GRIDS[request.param], kernel, 0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_adjoint(tori, kind, generator) -> None:
    W = tree(tori, sight_lines(tori.grids.grids, kind, generator))
    x = torch.randn(3, W.shape[1], generator=generator, dtype=torch.float64)
    y = torch.randn(3, W.shape[0], generator=generator, dtype=torch.float64)
    forward, backward = (W.matvec(x) * y).sum(1), (x * W.rmatvec(y)).sum(1)
    scale = W.matvec(x).norm(dim=1) * y.norm(dim=1)
    assert float(((forward - backward) / scale).abs().max()) < 1e-12
    weights = y[0] ** 2
    gram = W.rmatvec(weights * W.matvec(x))
    torch.testing.assert_close(W.gram(x, weights), gram, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_has_the_length_of_the_sight_line(tori, kind, generator) -> None:
    lines = sight_lines(tori.grids.grids, kind, generator)
    one = torch.ones(tori.size, dtype=torch.float64)
    off = tree(tori, lines).matvec(one) - projection(tori, lines).matvec(one)
    assert float(off.abs().max()) < 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_a_smooth_field_has_the_integrals_of_rows(tori, kind, generator) -> None:
    lines = sight_lines(tori.grids.grids, kind, generator)
    x, y, z = tori.positions().T
    field = torch.exp(torch.sin(x / 90) + torch.cos(y / 70) + z / 200)
    rows, found = projection(tori, lines).matvec(field), tree(tori, lines).matvec(field)
    assert float((found - rows).norm() / rows.norm()) < 5e-3
    assert float(((found - rows).sum() / rows.sum()).abs()) < 1e-3


@pytest.mark.parametrize("kind", ["exact", "uncertain"])
def test_another_device_adds_up_the_same(tori, kind, generator) -> None:
    lines = sight_lines(tori.grids.grids, kind, generator)
    here = tree(tori, lines)
    x = torch.randn(2, here.shape[1], generator=generator, dtype=torch.float64)
    y = torch.randn(2, here.shape[0], generator=generator, dtype=torch.float64)
    with stand_in_device():
        there = tree(tori, lines, device=STAND_IN)
        forward = there.matvec(x.to(STAND_IN)).cpu()
        backward = there.rmatvec(y.to(STAND_IN)).cpu()
    torch.testing.assert_close(forward, here.matvec(x), rtol=1e-9, atol=1e-7)
    torch.testing.assert_close(backward, here.rmatvec(y), rtol=1e-9, atol=1e-7)


def test_threads_and_precision_change_rounding_alone(tori, generator) -> None:
    lines = sight_lines(tori.grids.grids, "exact", generator)
    single, double = tree(tori, lines, torch.float32), tree(tori, lines)
    x = torch.rand(double.shape[1], generator=generator, dtype=torch.float64)
    before, threads = double.matvec(x), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(double.matvec(x), before)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(
        single.matvec(x.float()).double(), before, rtol=1e-5, atol=0
    )


def test_sums_of_what_is_positive_stay_positive(tori, generator) -> None:
    lines = sight_lines(tori.grids.grids, "exact", generator, count=4000)
    W, rows = tree(tori, lines), projection(tori, lines)
    # A few compact clouds in the dark: cubic weights undershoot zero behind them.
    field = torch.full((tori.size,), 1e-6, dtype=torch.float64)
    field[torch.randperm(tori.size, generator=generator)[:200]] = 1.0
    assert float(W.matvec(field).min()) < 0
    found, exact = W.nonnegative(field), rows.matvec(field)
    assert float(found.min()) >= 0
    assert float(found.sum() / exact.sum()) == pytest.approx(1, abs=0.1)


def test_other_functionals_have_no_tree(generator) -> None:
    points = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    assert Ends.of(PointValues(points)) is None
    away = LineIntegrals(points, FixedStep(step=1.0), start=points + 1.0)
    assert Ends.of(away) is None
    outwards = LineIntegrals(points, StepsOutwards(step=1.0))
    assert Ends.of(outwards) is None


@pytest.mark.parametrize("kind", ["exact", "uncertain"])
@pytest.mark.parametrize("face", GRIDS["nested grids"], ids=["box", "finer box"])
def test_rounding_moves_no_star_across_a_face(tori, kind, face) -> None:
    """Stars on every face, edge and corner, from l, b and distance, in both forms."""
    corners = zip(face.lower, face.upper, strict=True)
    sides = [(low, 0.1 * low + 0.2 * high, high) for low, high in corners]
    exact = np.array([*itertools.product(*sides)])
    l, b, distance = spherical(exact)  # noqa: E741
    ends = distance[:, None] * unit_vectors(l, b)
    outwards = (ends - exact) * np.sign(exact)
    assert outwards[np.isin(exact, [face.lower, face.upper])].max() > 0
    np.testing.assert_allclose(ends, exact, atol=1e-12)
    assert COARSE.contains(torch.from_numpy(ends)).all()
    assert Box.of(COARSE).contains(ends).all()
    grids = tori.grids
    np.testing.assert_array_equal(grids.level_of(ends), grids.level_of(exact))
    values = [np.full(grid.shape, float(n)) for n, grid in enumerate(grids)]
    np.testing.assert_array_equal(grids.sample(values, ends), grids.level_of(exact))
    given = torch.from_numpy(ends)
    lines = LineIntegrals(given, FixedStep(step=5.0, grids=grids))
    if kind == "uncertain":
        reach = exit_distances(COARSE, given)
        spread = 0.05 * given.norm(dim=1)
        lines = DistanceMarginalizedIntegrals(given, spread, reach, lines.rule)
    places = projection(tori, PointValues(given))
    one = torch.ones(tori.size, dtype=torch.float64)
    assert float((places.matvec(one) - 1).abs().max()) < 1e-12
    rows, found = projection(tori, lines).matvec(one), tree(tori, lines).matvec(one)
    torch.testing.assert_close(found, rows, rtol=1e-9, atol=0)
    if kind == "exact":
        torch.testing.assert_close(rows, given.norm(dim=1), rtol=1e-9, atol=0)


def test_a_star_outside_the_box_is_refused(tori) -> None:
    far = torch.tensor([[0.0, 0.0, 170.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="outside the box"):
        tree(tori, LineIntegrals(far, FixedStep(step=1.0)))


def fitted(density, tori, lines, truth, generator, monkeypatch, *, tree):
    """The mode, its predictions, and the model, by a tree or by rows."""
    monkeypatch.setattr(matrix, "_MANY", 0)
    monkeypatch.setattr(matrix, "FEWER", 1e-9 if tree else math.inf)
    variance = 0.5 if density == "lognormal" else 1e-4
    kernel = KERNELS["matern12"](lengthscale=[60.0] * 3, variance=variance)
    whitening = TorusWhitening(kernel, tori[0], dtype=torch.float64)
    if density == "lognormal":
        model = LogNormal(whitening, lines, mean=ConstantMean(value=0.01))
    else:
        model = TorusGaussian(whitening, lines, generator=generator)
    assert (model.weights.excess > 1) == tree
    settings = FullBatch(
        samples=0,
        subgrid_noise=False,
        newton_steps=100,
        newton_tolerance=1e-5,
        solver=ConjugateGradients(rtol=1e-8, max_steps=2000),
    )
    noise = torch.full((len(lines),), 0.05**2, dtype=torch.float64)
    result = infer(model, truth, noise, settings=settings, generator=generator)
    assert result.converged, result.mean_solution
    return result, model


@pytest.fixture
def small():
    grid = Grid(shape=(9, 9, 7), spacing=(20.0,) * 3, origin=(-80.0, -80.0, -60.0))
    kernel = KERNELS["matern12"](lengthscale=[60.0] * 3, variance=0.5)
    unit = torch.rand(150, 3, generator=torch.Generator().manual_seed(1)).double()
    ends = torch.tensor(grid.lower) + unit * (2 * torch.tensor(grid.upper))
    lines = LineIntegrals(ends.double(), FixedStep(step=5.0))
    return nested_tori((grid,), kernel, 0.05), lines


def test_a_gaussian_posterior_is_that_of_the_dense_tree(small, generator, monkeypatch):
    tori, lines = small
    y = torch.rand(len(lines), generator=generator, dtype=torch.float64)
    result, model = fitted(
        "gaussian", tori, lines, y, generator, monkeypatch, tree=True
    )
    features = model.linearise(result.mean).operator.to_dense()
    noisy = features @ features.T + 0.05**2 * torch.eye(len(y), dtype=torch.float64)
    exact = features.T @ torch.linalg.solve(noisy, y)
    assert float((result.mean - exact).norm() / exact.norm()) < 1e-5


def test_a_lognormal_mode_is_near_that_by_rows(small, generator, monkeypatch) -> None:
    tori, lines = small
    place = lines.end / lines.end.norm(dim=1, keepdim=True)
    y = 0.01 * lines.lengths * (1 + 0.5 * torch.sin(3 * place[:, 0]))
    found = [
        fitted("lognormal", tori, lines, y, generator, monkeypatch, tree=tree)[0]
        for tree in (True, False)
    ]
    one, other = (result.prediction for result in found)
    assert float((one - other).norm() / other.norm()) < 0.01
