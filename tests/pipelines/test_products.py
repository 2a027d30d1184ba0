"""Cube, sky maps and lines of sight: places, axes, integrals and their errors."""

from dataclasses import replace

import numpy as np
import one_cloud
import pytest
from ray_moments import cumulative

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.base.quantiles import KINDS
from pipelines.catalog.schema import read_stars
from pipelines.cubes.sky import even_distances
from pipelines.figures.registry import PlotOptions, draw
from pipelines.maps.lines import informed_directions
from pipelines.maps.opening import open_run

SPACING = 70.0
CLOUD_L = np.degrees(np.arctan2(one_cloud.CENTRE[1], one_cloud.CENTRE[0]))
CLOUD_B = np.degrees(np.arcsin(one_cloud.CENTRE[2] / np.linalg.norm(one_cloud.CENTRE)))


@pytest.fixture(scope="module")
def cube(cloud_store):
    return cloud_store.cube()


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


def test_distances_of_sky_maps_follow_from_the_box(cloud_store):
    edges = even_distances(cloud_store.box)
    np.testing.assert_allclose(np.diff(edges), edges[0])
    assert edges[-1] <= 700.0 < edges[-1] + edges[0]


def test_directions_are_towards_extinction_and_apart(cloud_store):
    chosen = np.array(informed_directions(cloud_store.rays))
    assert len(chosen) <= 6 and len({*(chosen[:, 0] // 60)}) == len(chosen)
    towards = unit_vectors(*chosen.T) @ unit_vectors(CLOUD_L, CLOUD_B)
    assert towards.max() > np.cos(np.radians(20))


def test_lines_of_sight_end_at_the_box_and_show_the_stars_near_them(
    cloud_run, cloud_store
):
    chosen = [(CLOUD_L, CLOUD_B), (180.0, 0.0)]
    cloud, empty = cloud_store.lines(chosen)
    assert empty.distance[-1] == pytest.approx(350.0)
    true = one_cloud.extinction(
        cloud.distance[:, None] * unit_vectors(CLOUD_L, CLOUD_B)
    )
    mean = cloud.arrays["mean"]
    assert np.abs(mean - true).max() < 0.1 * true.max()
    assert (np.diff(mean)[5:10] > 0).all() and mean[-1] > 10 * empty.arrays["mean"][-1]
    assert (cloud.arrays["std"] > 0).all() and 0 < cloud.radius <= 1
    stars = read_stars(cloud_run.path / "stars.parquet")
    (seen,) = cloud_store.lines([(stars.l[5], stars.b[5])])
    assert stars.distance[5] in seen.star_distance
    assert len(seen.star_distance) == len(seen.star_extinction) <= 60


def test_a_figure_of_too_many_lines_is_refused_before_they_are_found(cloud_store):
    with pytest.raises(InputError, match="sight lines"):
        draw(cloud_store, "los", PlotOptions(directions=[(0.0, 0.0)] * 9000))


def test_a_lognormal_cube_has_quantiles_between_positive_and_above(positive_store):
    cube = positive_store.cube()
    assert list(cube.arrays) == [*KINDS, "support"]
    mean, _, _, p16, p50, p84, _, _ = cube.arrays.values()
    assert (p16 > 0).all() and (p16 < p50).all() and (p50 < p84).all()
    assert (mean > p50).mean() > 0.95
    z, y, x = np.unravel_index(p50.argmax(), p50.shape)
    place = np.array([cube.x[x], cube.y[y], cube.z[z]])
    assert np.abs(place - one_cloud.CENTRE).max() < SPACING


def test_the_engine_svi_makes_the_same_cube(svi_run):
    cube = open_run(svi_run.path).cube()
    grid = np.stack(np.meshgrid(cube.z, cube.y, cube.x, indexing="ij")[::-1], axis=-1)
    peak = grid.reshape(-1, 3)[cube.arrays["mean"].argmax()]
    assert np.abs(peak - one_cloud.CENTRE).max() < cube.spacing[0]
