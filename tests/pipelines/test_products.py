"""Cube, sky maps and lines of sight: places, axes, integrals and their errors."""

from dataclasses import replace

import healpy
import numpy as np
import one_cloud
import pytest
import torch
from ray_moments import cumulative

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import KINDS
from pipelines.catalog.schema import read_stars
from pipelines.figures.registry import PlotOptions, draw
from pipelines.maps.density import map_cube
from pipelines.maps.run_map import RunMap
from pipelines.maps.sky import (
    default_directions,
    default_distances,
    default_nside,
    lines_of_sight,
)
from pipelines.model.engine import rays

SPACING = 70.0
CLOUD_L = np.degrees(np.arctan2(one_cloud.CENTRE[1], one_cloud.CENTRE[0]))
CLOUD_B = np.degrees(np.arcsin(one_cloud.CENTRE[2] / np.linalg.norm(one_cloud.CENTRE)))


@pytest.fixture(scope="module")
def cube(cloud_run):
    return map_cube(cloud_run)


def trilinear(cube, points):
    """The cube between its points, by the eight corners of every cell."""
    low = np.array([cube.x[0], cube.y[0], cube.z[0]])
    index = (points - low) / np.array(cube.spacing)
    base = np.floor(index).astype(int)
    base = np.minimum(base, np.array([len(cube.x), len(cube.y), len(cube.z)]) - 2)
    part = index - base
    total = np.zeros(len(points))
    for corner in np.ndindex(2, 2, 2):
        x, y, z = (base + corner).T
        weight = np.where(corner, part, 1 - part).prod(axis=1)
        total += weight * cube.arrays["mean"][z, y, x]
    return total


def test_the_cube_is_ordered_z_y_x_and_peaks_where_the_cloud_is(cube):
    assert list(cube.arrays) == ["mean", "std", "support"]
    assert cube.arrays["mean"].shape == (7, 10, 16)
    assert all(array.dtype == np.float32 for array in cube.arrays.values())
    assert (cube.arrays["std"] > 0).all()
    z, y, x = np.unravel_index(cube.arrays["mean"].argmax(), cube.arrays["mean"].shape)
    place = np.array([cube.x[x], cube.y[y], cube.z[z]])
    assert np.abs(place - one_cloud.CENTRE).max() < 0.75 * SPACING
    grid = np.stack(np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")[::-1], axis=-1)
    true = one_cloud.density(grid)
    assert np.corrcoef(cube.arrays["mean"].ravel(), true.ravel())[0, 1] > 0.95


def test_support_counts_the_sight_lines_and_their_length(cloud_run, cube):
    stars = one_cloud.catalogue(2000)
    support = cube.arrays["support"]
    # Each cell holds the length of sight lines in it, in cells; together all of it,
    # the faces' half cells and corners included.
    fitted = 0.95 * stars.distance.sum() / SPACING
    assert support.sum() == pytest.approx(fitted, rel=0.02)
    near = np.unravel_index(support.argmax(), support.shape)
    assert (cube.x[near[2]], cube.y[near[1]], cube.z[near[0]]) == (0, 0, 0)


def test_cumulative_extinction_is_the_line_integral_of_the_cube(cloud_run, cube):
    around = one_cloud.CENTRE / np.linalg.norm(one_cloud.CENTRE)
    directions = around + 0.2 * one_cloud.directions(12)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    edges = np.array([280.0, 420.0, 560.0])
    fractions = (np.arange(4000) + 0.5) / 4000
    expected = np.empty((3, 12))
    for row, column in np.ndindex(3, 12):
        steps = fractions[:, None] * edges[row] * directions[column]
        expected[row, column] = trilinear(cube, steps).mean() * edges[row]
    # Steps of half a cell, as the stars' own integrals have them.
    mean, _ = cumulative(cloud_run, directions, edges)
    assert (np.abs(mean - expected) < 0.01 * expected[-1]).all()
    fine = replace(cloud_run, plan=replace(cloud_run.plan, ray_step=0.02))
    mean, _ = cumulative(fine, directions, edges)
    np.testing.assert_allclose(mean, expected, rtol=1e-3)


def test_the_error_is_that_of_the_integral_as_posterior_draws_have_it(cloud_run):
    # Many directions and draws, since 24 samples and 16 residuals are few.
    directions = one_cloud.directions(200)
    edges = np.linspace(0.0, 205.0, 9)[1:]
    mean, std = cumulative(cloud_run, directions, edges)
    ends = torch.as_tensor(edges[-1] * directions)
    generator = torch.Generator().manual_seed(3)
    through = rays(cloud_run.plan, ends)
    draws = [cloud_run.posterior.draws(through, generator) for _ in range(4)]
    expected = np.sqrt(((torch.cat(draws).numpy() - mean[-1]) ** 2).mean(axis=0))
    # Sixteen residuals, common to all directions, know their variance to a third.
    assert np.median(std[-1] / expected) == pytest.approx(1.0, abs=0.08)
    # Errors of the segments added as if independent are another thing.
    ends = torch.as_tensor(edges[:, None, None] * directions)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]]).reshape(-1, 3)
    pieces = rays(cloud_run.plan, ends.reshape(-1, 3), starts)
    apart = cloud_run.posterior.moments(pieces).std.reshape(8, -1)
    naive = apart.square().sum(dim=0).sqrt().numpy()
    assert np.median(naive / expected) < 0.8


def test_distances_and_resolution_follow_from_the_box(cloud_run):
    edges = default_distances(cloud_run)
    np.testing.assert_allclose(np.diff(edges), edges[0])
    assert edges[-1] <= 700.0 < edges[-1] + edges[0]
    assert healpy.isnsideok(default_nside(cloud_run), nest=True)


@pytest.mark.parametrize("outlier", [0.0, 50.0])
def test_directions_are_towards_extinction_and_apart(outlier):
    stars = one_cloud.catalogue(500)
    extinction = stars.extinction.copy()
    extinction[::50] += outlier
    stars = replace(stars, extinction=extinction)
    chosen = np.array(default_directions(stars))
    first = unit_vectors(*chosen[:1].T)[0]
    assert first @ unit_vectors(CLOUD_L, CLOUD_B) > np.cos(np.radians(20))
    vectors = unit_vectors(*chosen.T)
    cosines = vectors @ vectors.T - 2 * np.eye(len(vectors))
    assert len(chosen) == 6 and cosines.max() < np.cos(np.radians(29))


def test_lines_of_sight_end_at_the_box_and_show_the_stars_near_them(cloud_run):
    chosen = [(CLOUD_L, CLOUD_B), (180.0, 0.0)]
    cloud, empty = lines_of_sight(cloud_run, chosen, points=20)
    assert empty.distance[-1] == pytest.approx(350.0)
    true = one_cloud.extinction(
        cloud.distance[:, None] * unit_vectors(CLOUD_L, CLOUD_B)
    )
    mean = cloud.arrays["mean"]
    assert np.abs(mean - true).max() < 0.1 * true.max()
    assert (np.diff(mean)[5:15] > 0).all() and mean[-1] > 10 * empty.arrays["mean"][-1]
    assert (cloud.arrays["std"] > 0).all() and 0 < cloud.radius <= 1
    stars = read_stars(cloud_run.path / "stars.parquet")
    (seen,) = lines_of_sight(cloud_run, [(stars.l[5], stars.b[5])], points=20)
    assert stars.distance[5] in seen.star_distance
    assert len(seen.star_distance) == len(seen.star_extinction) <= 60


def test_many_lines_of_sight_in_batches_are_those_of_one(cloud_run, monkeypatch):
    rng = np.random.default_rng(1)
    chosen = list(zip(rng.uniform(0, 360, 9), rng.uniform(-90, 90, 9), strict=True))
    together = lines_of_sight(cloud_run, chosen)
    # As of 9,000 lines of 60 points.
    monkeypatch.setattr("pipelines.maps.integrals._SEGMENTS", 150)
    for one, whole in zip(lines_of_sight(cloud_run, chosen), together, strict=True):
        assert (one.l, one.b) == (whole.l, whole.b)
        for name, values in whole.arrays.items():
            np.testing.assert_allclose(one.arrays[name], values, rtol=1e-5)
        np.testing.assert_array_equal(one.star_distance, whole.star_distance)


def test_a_figure_of_too_many_lines_is_refused_before_they_are_found(cloud_run):
    with pytest.raises(InputError, match="sight lines"):
        draw(RunMap.of(cloud_run), "los", PlotOptions(directions=[(0.0, 0.0)] * 9000))


def test_a_lognormal_cube_has_quantiles_between_positive_and_above(positive_run):
    cube = map_cube(positive_run)
    assert list(cube.arrays) == [*KINDS, "support"]
    mean, _, _, p16, p50, p84, _, _ = cube.arrays.values()
    assert (p16 > 0).all() and (p16 < p50).all() and (p50 < p84).all()
    assert (mean > p50).mean() > 0.95
    z, y, x = np.unravel_index(p50.argmax(), p50.shape)
    place = np.array([cube.x[x], cube.y[y], cube.z[z]])
    assert np.abs(place - one_cloud.CENTRE).max() < SPACING


def test_the_engine_svi_makes_the_same_cube(svi_run):
    cube = map_cube(svi_run)
    grid = np.stack(np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")[::-1], axis=-1)
    peak = grid.reshape(-1, 3)[cube.arrays["mean"].argmax()]
    assert np.abs(peak - one_cloud.CENTRE).max() < cube.spacing[0]
