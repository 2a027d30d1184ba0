"""Known densities, looked up and integrated, against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erf

from pipelines.base.geometry import unit_vectors
from pipelines.cubes.cube import Cube, truth_extinction

SIGMA = 40.0
CENTRE = np.array([60.0, -35.0, 20.0])


def make_cube(function, spacing=10.0, half=(200.0, 150.0, 100.0), shift=0.0):
    """Sample ``function(x, y, z)`` on a grid that is unlike along every axis."""
    x, y, z = (np.linspace(-h, h, round(2 * h / spacing) + 1) for h in half)
    Z, Y, X = np.meshgrid(z, y, x, indexing="ij")
    values = function(X + shift, Y + shift, Z + shift) + 0.0 * X
    return Cube(x=x, y=y, z=z, arrays={"density": values})


def draw_rays(count=300, seed=0):
    rng = np.random.default_rng(seed)
    ends = rng.uniform(-0.99, 0.99, (count, 3)) * [200.0, 150.0, 100.0]
    distance = np.linalg.norm(ends, axis=1)
    l = np.degrees(np.arctan2(ends[:, 1], ends[:, 0])) % 360  # noqa: E741
    b = np.degrees(np.arcsin(ends[:, 2] / distance))
    return ends, l, b, distance


def gaussian(x, y, z):
    dx, dy, dz = x - CENTRE[0], y - CENTRE[1], z - CENTRE[2]
    return 0.01 * np.exp(-0.5 * (dx**2 + dy**2 + dz**2) / SIGMA**2)


def gaussian_extinction(l, b, distance):  # noqa: E741
    along = unit_vectors(l, b) @ CENTRE
    across = CENTRE @ CENTRE - along**2
    root = np.sqrt(2) * SIGMA
    total = erf((distance - along) / root) + erf(along / root)
    return 0.01 * np.exp(-0.5 * across / SIGMA**2) * SIGMA * np.sqrt(np.pi / 2) * total


def test_a_trilinear_density_is_looked_up_and_integrated_exactly():
    cube = make_cube(lambda x, y, z: 3.0 + x - 2 * y + 5 * z + 1e-2 * x * y * z)
    ends, l, b, distance = draw_rays()  # noqa: E741
    x, y, z = ends.T
    np.testing.assert_allclose(
        cube.sample("density", ends), 3.0 + x - 2 * y + 5 * z + 1e-2 * x * y * z
    )
    mean = 3.0 + (x - 2 * y + 5 * z) / 2 + 1e-2 * x * y * z / 4
    np.testing.assert_allclose(
        truth_extinction(cube, l, b, distance), distance * mean, rtol=1e-10
    )


def test_rays_are_integrated_through_nested_grids_in_the_cells_of_each():
    wide = make_cube(gaussian, spacing=10.0)
    middle = make_cube(gaussian, spacing=5.0, half=(100.0, 100.0, 80.0))
    inner = make_cube(gaussian, spacing=2.5, half=(50.0, 50.0, 50.0))
    nested = replace(wide, finer=(middle, inner))
    ends, l, b, distance = draw_rays()  # noqa: E741
    found = truth_extinction(nested, l, b, distance)
    fine = truth_extinction(nested, l, b, distance, step=0.1)
    # Steps that cross a grid's face are off by the square of its cells.
    np.testing.assert_allclose(found, fine, rtol=2e-4, atol=1e-6)
    within = np.abs(ends).max(axis=1) < 50
    np.testing.assert_array_equal(
        nested.sample("density", ends[within]), inner.sample("density", ends[within])
    )
    near = distance < 50
    assert near.any()
    np.testing.assert_allclose(
        found[near],
        truth_extinction(inner, l[near], b[near], distance[near]),
        rtol=1e-5,
    )


def test_a_slab_dims_with_the_cosecant_of_latitude():
    cube = make_cube(lambda x, y, z: np.where(np.abs(z) <= 50, 2e-3, 0.0))
    b = np.array([90.0, -60.0, 50.0, 40.0])
    distance = 80 / np.abs(np.sin(np.radians(b)))
    # The interpolant falls to zero over one cell: half a cell more on each side.
    expected = 2e-3 * (50 + 5) / np.abs(np.sin(np.radians(b)))
    got = truth_extinction(cube, np.full(4, 33.0), b, distance, step=0.5)
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_a_sphere_dims_with_the_chord():
    radius = 60.0
    cube = make_cube(
        lambda x, y, z: np.where(x**2 + y**2 + z**2 <= radius**2, 1e-3, 0.0),
        spacing=2.5,
        half=(100.0, 80.0, 70.0),
    )
    rng = np.random.default_rng(1)
    l, b = rng.uniform(0, 360, 400), np.degrees(np.arcsin(rng.uniform(-1, 1, 400)))  # noqa: E741
    distance = np.where(np.arange(400) % 2, 69.0, 30.0)
    expected = 1e-3 * np.minimum(distance, radius)
    got = truth_extinction(cube, l, b, distance)
    assert np.abs(got.mean() / expected.mean() - 1) < 3e-3
    assert np.abs(got - expected).max() < 1e-3 * 2.5


def test_a_gaussian_cloud_is_met_to_second_order_in_the_cell_size():
    _, l, b, distance = draw_rays()  # noqa: E741
    expected = gaussian_extinction(l, b, distance)
    errors = [
        np.abs(
            truth_extinction(make_cube(gaussian, spacing), l, b, distance) - expected
        ).max()
        for spacing in (10.0, 5.0)
    ]
    # A linear interpolant errs by h²/12 of each second derivative on average.
    assert errors[0] < 3 / 12 * (10 / SIGMA) ** 2 * expected.max()
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_half_a_cell_is_noticed():
    _, l, b, distance = draw_rays()  # noqa: E741
    expected = gaussian_extinction(l, b, distance)
    shifted = truth_extinction(make_cube(gaussian, shift=5.0), l, b, distance)
    assert np.abs(shifted - expected).max() > 0.05 * expected.max()


def test_beyond_the_cube_there_is_no_truth():
    cube = make_cube(lambda x, y, z: 1.0)
    points = np.array([[200.0, 150.0, -100.0], [200.1, 0, 0], [0, 0, -100.1]])
    np.testing.assert_array_equal(cube.sample("density", points), [1, np.nan, np.nan])
    got = truth_extinction(
        cube, np.zeros(3), np.array([0.0, 0, 90]), np.array([200.0, 201, 101])
    )
    np.testing.assert_allclose(got, [200, np.nan, np.nan])


def test_rays_in_many_chunks_come_back_in_order():
    cube = make_cube(gaussian)
    _, l, b, distance = draw_rays(3000)  # noqa: E741
    whole = truth_extinction(cube, l, b, distance, step=0.05)
    few = truth_extinction(cube, l[:50], b[:50], distance[:50], step=0.05)
    np.testing.assert_allclose(whole[:50], few, rtol=1e-6)
    assert len(truth_extinction(cube, l[:0], b[:0], distance[:0])) == 0


def test_the_observer_may_lie_on_a_face_to_rounding():
    x, z = np.linspace(-100, 100, 11), np.linspace(-200, -1e-14, 11)
    cube = Cube(x=x, y=x, z=z, arrays={"density": np.ones((11, 11, 11))})
    found = truth_extinction(cube, [0.0, 0.0], [0.0, -90.0], [100.0, 200.0])
    np.testing.assert_allclose(found, [100.0, 200.0], rtol=1e-12)


def test_a_cube_without_the_observer_and_a_step_of_nothing_are_refused():
    x = np.linspace(10.0, 100.0, 10)
    cube = Cube(x=x, y=x - 50, z=x - 50, arrays={"density": np.ones((10, 10, 10))})
    with pytest.raises(ValueError, match="around the observer"):
        truth_extinction(cube, np.zeros(1), np.zeros(1), np.ones(1))
    with pytest.raises(ValueError, match="positive"):
        truth_extinction(make_cube(gaussian), *np.ones((3, 1)), step=0.0)
