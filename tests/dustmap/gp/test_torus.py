"""All rows on a torus against dense algebra with the same matrices."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from dustmap.functionals import (
    Derivatives,
    GaussLegendre,
    LineIntegrals,
    PointValues,
    Stack,
)
from dustmap.gp.exact import ExactGP
from dustmap.gp.neighbours import NeighbourGP, scored_across_scales
from dustmap.gp.torus import (
    TorusGP,
    interpolation_variance,
    inverse_root,
    lattice_of,
    torus_for,
)
from dustmap.kernels import Matern12, Matern32, Matern52, Radial
from dustmap.linalg.cg import ConjugateGradients

NOISE, VARIANCE, SCALES = 0.05, 1.3, (0.8, 0.6)
KERNEL = Matern12(lengthscale=SCALES, variance=VARIANCE)
TIGHT = ConjugateGradients(rtol=1e-12, max_steps=500)
NONE = torch.empty(0, dtype=torch.int64)


def lattice(hole=True):
    """Points of a lattice with a hole, and values with a slope."""
    x, y = np.meshgrid(np.linspace(0, 3, 16), np.linspace(-1, 1, 11), indexing="ij")
    points = torch.from_numpy(np.column_stack([x.ravel(), y.ravel()]))
    seen = torch.linalg.vector_norm(points - torch.tensor([1.2, 0.0]), dim=1) > 0.5
    points = points[seen] if hole else points
    white = torch.from_numpy(np.random.default_rng(0).standard_normal(len(points)))
    return points, 2 + points[:, 0] + torch.sin(3 * points[:, 1]) + 0.2 * white


def scattered(count=150):
    rng = np.random.default_rng(1)
    points = torch.from_numpy(rng.uniform([0, -1], [3, 1], (count, 2)))
    white = torch.from_numpy(rng.standard_normal(count))
    return points, points[:, 0] + torch.sin(3 * points[:, 1]) + 0.2 * white


def mixed(count=40):
    """Values, derivatives along both axes and integrals of a wave, of little noise."""
    rng = np.random.default_rng(4)
    at, slopes, start, end = (
        torch.from_numpy(rng.uniform([0, -1], [3, 1], (count, 2))) for _ in range(4)
    )
    axes = torch.arange(count) % 2
    rays = LineIntegrals(end, GaussLegendre(count=12), start=start)
    values = torch.sin(at[:, 0]) + at[:, 1]
    derivatives = torch.where(axes == 0, slopes[:, 0].cos(), 1.0)
    nodes = rays.nodes()
    integrals = nodes.sum_rows(torch.sin(nodes.points[:, 0]) + nodes.points[:, 1])
    y = torch.cat([values, derivatives, integrals])
    y += 0.02 * torch.from_numpy(rng.standard_normal(len(y)))
    return Stack([PointValues(at), Derivatives(slopes, axes), rays]), y


def model(points, y, kernel: Radial = KERNEL, **changes):
    options = {"noise": NOISE, "count": 20, "solver": TIGHT}
    options |= {"torus": torus_for(PointValues(points), kernel), **changes}
    return TorusGP(kernel, PointValues(points), y, **options)


def dense(gp: TorusGP, there):
    """Mean and covariance at places by the matrices of `gp`, with a flat prior of β."""
    features = gp.model.operator.to_dense()
    other = gp.model.at(PointValues(there)).operator.to_dense()
    A = features @ features.T + torch.diag(gp.data.noise)
    H, G = gp.basis(gp.data.functionals), gp.basis(PointValues(there))
    inverse = torch.linalg.inv(A)
    V = torch.linalg.inv(H.T @ inverse @ H)
    beta = V @ H.T @ inverse @ gp.merged.observations
    cross = other @ features.T @ inverse
    mean = G @ beta + cross @ (gp.merged.observations - H @ beta)
    left = G - cross @ H
    covariance = other @ other.T - cross @ features @ other.T + left @ V @ left.T
    return mean, covariance


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("made", [lattice, scattered])
def test_means_are_those_of_dense_algebra(made, linear):
    points, y = made()
    known = torch.linspace(0, 0.1, len(points), dtype=torch.float64)
    gp = model(points, y, linear=linear, known_noise=known)
    rng = np.random.default_rng(2)
    there = torch.from_numpy(rng.uniform([0, -0.99], [2.9, 0.99], (30, 2)))
    mean, _ = dense(gp, there)
    assert_allclose(gp.predict(PointValues(there)).mean, mean, rtol=1e-8)
    assert bool(gp.solved.solution.converged.all())


def test_mixed_functionals_are_those_of_dense_algebra_and_near_the_exact_process():
    functionals, y = mixed()
    kernel = Matern52(lengthscale=1.0, variance=1.0)
    torus = torus_for(functionals, kernel, 0.01)
    options = {"noise": 0.01, "solver": TIGHT, "count": 20, "torus": torus}
    gp = TorusGP(kernel, functionals, y, **options)
    some = [0, 3, 41, 50, 85, 90, 100]
    there = functionals.select(torch.tensor(some))
    features = gp.model.operator.rmatvec(torch.eye(len(y), dtype=torch.float64))
    other = features[some]
    A = features @ features.T + torch.diag(gp.data.noise)
    H, inverse = gp.basis(functionals), torch.linalg.inv(A)
    beta = torch.linalg.inv(H.T @ inverse @ H) @ H.T @ inverse @ y
    expected = H[some] @ beta + other @ features.T @ inverse @ (y - H @ beta)
    found = gp.predict(there)
    assert_allclose(found.mean, expected, rtol=1e-6)
    exact = ExactGP(kernel, functionals, y, noise=0.01, mean=0.0).predict(there)
    assert_allclose(found.mean, exact.mean, atol=0.02)
    # Sixty-four samples give a std to 9%.
    ratio = (found.variance / exact.variance).sqrt()
    assert float(ratio.min()) > 0.7 and float(ratio.max()) < 1.35


def test_derivatives_alone_leave_the_level_undetermined():
    points, y = scattered(30)
    kernel = Matern32(lengthscale=1.0)
    torus = torus_for(PointValues(points), kernel)
    with pytest.raises(ValueError, match="level"):
        TorusGP(kernel, Derivatives(points, 0), y, noise=NOISE, torus=torus, count=9)


def test_an_integral_is_predicted_from_values():
    points, y = lattice(hole=False)
    gp = model(points, y)
    ray = LineIntegrals(
        torch.tensor([[2.5, 0.5]]).double(),
        GaussLegendre(count=40),
        start=torch.tensor([[0.5, -0.5]]).double(),
    )
    found = gp.predict(ray)
    exact = ExactGP(KERNEL, PointValues(points), y, noise=NOISE, mean=float(y.mean()))
    expected = exact.predict(ray)
    assert_allclose(found.mean, expected.mean, rtol=0.03)
    assert float((found.variance / expected.variance).sqrt()) == pytest.approx(
        1, abs=0.3
    )


def test_samples_have_the_posterior_mean_and_covariance():
    points, y = lattice()
    gp = model(points, y)
    there = torch.tensor([[1.2, 0.0], [1.3, 0.1], [0.2, 0.9], [2.7, -0.5]]).double()
    mean, covariance = dense(gp, there)
    drawn = gp.samples(PointValues(there), 2000, 3)
    std = covariance.diagonal().sqrt()
    assert float(((drawn.mean(dim=0) - mean) / std).abs().max()) < 4 / 2000**0.5
    found = torch.cov(drawn.T) / torch.outer(std, std)
    assert float((found - covariance / torch.outer(std, std)).abs().max()) < 0.13
    again = gp.samples(PointValues(there), 3, 3)
    assert_allclose(again, drawn[:3], rtol=1e-12)


def test_variances_are_near_the_dense_ones_in_a_hole_and_beside_it():
    points, y = lattice()
    gp = model(points, y)
    whole, _ = lattice(hole=False)
    _, covariance = dense(gp, whole)
    found = gp.predict(PointValues(whole)).variance
    ratio = found / (
        covariance.diagonal() + interpolation_variance(KERNEL, gp.torus.grid, whole)
    )
    # Factors are learnt from 16 samples, whose squares have errors of a third.
    assert 0.8 < float(ratio.median()) < 1.25
    assert float(ratio.log().abs().quantile(0.9)) < 0.45


def test_rows_of_one_place_count_as_their_mean():
    points, y = lattice()
    twice = torch.cat([points, points]), torch.cat([y + 0.1, y - 0.1])
    found = model(*twice, noise=2 * NOISE)
    there = PointValues(points[::7])
    assert len(found.merged) == len(points)
    assert_allclose(found.predict(there).mean, model(points, y).predict(there).mean)


def test_places_beyond_the_grid_are_predicted_from_their_nearest_rows():
    points, y = lattice()
    gp = model(points, y)
    there = torch.tensor([[4.0, 0.0], [1e6, 0.0]]).double()
    found = gp.predict(PointValues(there))
    trend = gp.basis(PointValues(there)) @ gp.trend
    assert float(found.mean[1] - trend[1]) == pytest.approx(0, abs=1e-6 * 1e6)
    assert float(found.variance[0]) < float(found.variance[1])
    # Far from all rows the slopes are as uncertain as ever (Rasmussen & Williams 2006,
    # eq. 2.42), near them the rows tell.
    H = gp.basis(PointValues(there))
    own = H[1] @ gp.trend_covariance @ H[1]
    assert float(found.variance[1]) == pytest.approx(VARIANCE + float(own), rel=1e-6)
    every = model(points, y, count=len(points))
    K = every.kernel(points[:, None] - points) + NOISE * torch.eye(len(points))
    across = every.kernel(there[:1, None] - points)[0]
    inverse, rows = torch.linalg.inv(K), every.basis(PointValues(points))
    left = H[0] - rows.T @ inverse @ across
    trend = left @ torch.linalg.inv(rows.T @ inverse @ rows) @ left
    expected = VARIANCE - across @ inverse @ across + trend
    beyond = every.predict(PointValues(there[:1])).variance[0]
    assert float(beyond) == pytest.approx(float(expected), rel=0.01)
    with pytest.raises(ValueError, match="outside"):
        gp.samples(PointValues(there), 2, 0)


def test_a_solve_that_is_stopped_says_so():
    points, y = lattice()
    short = ConjugateGradients(rtol=1e-12, max_steps=2, restarts=0)
    gp = model(points, y, solver=short)
    assert not gp.solved.solution.converged.all()
    with pytest.raises(FloatingPointError):
        gp.samples(PointValues(points[:2]), 2, 0)


def test_all_earlier_rows_give_the_exact_inverse():
    points, y = scattered(60)
    rows = NeighbourGP(
        KERNEL, PointValues(points), y, noise=NOISE, count=59, scored=NONE
    )
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    root = inverse_root(rows, order).to_dense()
    K = KERNEL(points[:, None] - points) + torch.diag(rows.noise_variance)
    assert_allclose(root.T @ root, torch.linalg.inv(K), rtol=1e-7, atol=1e-9)


def test_what_interpolation_leaves_is_zero_on_the_grid_and_positive_between():
    points, y = lattice()
    gp = model(points, y)
    assert float(interpolation_variance(KERNEL, gp.torus.grid, points).max()) < 1e-9
    (h, *_), (o, p) = gp.torus.grid.spacing, gp.torus.grid.origin
    middle = torch.tensor([[o + h / 2, p]]).double()
    half = KERNEL(torch.tensor([[h / 2, 0.0]]).double())
    whole = KERNEL(torch.tensor([[h, 0.0]]).double())
    expected = 1.5 * VARIANCE + 0.5 * whole - 2 * half
    assert_allclose(
        interpolation_variance(KERNEL, gp.torus.grid, middle), expected, rtol=1e-6
    )


def test_a_lattice_is_found_with_gaps_and_rounded_coordinates():
    points, _ = lattice()
    grid = lattice_of(points.round(decimals=4))
    assert grid is not None and grid.shape == (16, 11)
    assert grid.spacing == pytest.approx((0.2, 0.2), rel=1e-3)
    fine = torch.linspace(-95.9, -91.3, 100, dtype=torch.float64).round(decimals=3)
    grid = lattice_of(torch.cat([fine[:40], fine[55:]])[:, None])
    assert grid is not None and grid.shape == (100,)
    assert lattice_of(scattered()[0]) is None
    assert lattice_of(torch.ones(5, 2, dtype=torch.float64)) is None


def test_a_grid_that_does_not_resolve_the_kernel_is_refused():
    points, _ = scattered()
    with pytest.raises(ValueError, match="steps"):
        torus_for(PointValues(points), Matern52(lengthscale=1e-4))
    grid = torus_for(PointValues(points), Matern52(lengthscale=0.4)).grid
    assert grid.shape[0] == pytest.approx(8 * 3 / 0.4, abs=2)
    # Where the field is large beside the noise, it has more steps.
    large = Matern52(lengthscale=2.0, variance=1e4)
    grid = torus_for(PointValues(points), large, noise=0.01).grid
    middle = torch.tensor([grid.origin]) + torch.tensor([grid.spacing]) / 2
    assert float(interpolation_variance(large, grid, middle.double())) <= 0.001


def test_scored_rows_have_neighbours_at_all_distances():
    points = torch.rand(5000, 2, generator=torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    scored, near = scored_across_scales(points, 10, 800, generator)
    assert len(scored) == len(near) <= 800 and near.shape[1] == 10
    assert not bool((near == scored[:, None]).any())
    apart = torch.linalg.vector_norm(points[near[:, 0]] - points[scored], dim=1)
    first, last = apart[:50].median(), apart[-50:].median()
    assert float(first) > 5 * float(last)
