"""What figures show of a log-normal density integrates to the map's extinction."""

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from pipelines.cubes.cube import truth_extinction
from pipelines.cubes.thinned import thinned
from pipelines.figures.box import density_slice, face_on
from pipelines.maps.places import Places


@pytest.fixture(scope="module")
def cube(positive_store):
    return positive_store.cube()


def extinction(store, directions, distance):
    """Mean extinctions [mag] of the map itself, far along each direction."""
    places = Places.along(directions, np.full((len(directions), 1), distance))
    return store.moments(places, ("mean",), integrated=True)["mean"]


def image_of(page):
    return np.asarray(page.axes[0].images[0].get_array())


def along_rays(values, cube, directions, distance):
    """Integrate a plane of densities (y, x) [mag/pc], linear between its cells."""
    field = RegularGridInterpolator((cube.y, cube.x), values)
    reach = np.linspace(0, distance, 400)
    points = reach[:, None, None] * directions[:, 1::-1]
    return np.trapezoid(field(points), reach, axis=0)


@pytest.mark.parametrize("distance", [100.0, 150.0, 200.0])
def test_the_cube_integrates_to_the_curves(positive_store, cube, distance):
    rng = np.random.default_rng(5)
    l, b = rng.uniform(0, 360, 400), np.degrees(np.arcsin(rng.uniform(-1, 1, 400)))  # noqa: E741
    far = np.full(400, distance)
    places = Places(l=l, b=b, distance=far, shape=far.shape)
    curves = positive_store.moments(places, ("mean",), integrated=True)["mean"]
    through = truth_extinction(cube, l, b, far, name="mean")
    known = np.isfinite(curves) & np.isfinite(through)
    assert through[known].sum() == pytest.approx(curves[known].sum(), rel=0.04)


@pytest.mark.parametrize("distance", [150.0, 250.0])
def test_a_slice_integrates_to_the_extinction_along_rays(
    positive_store, cube, distance
):
    angle = np.linspace(0, 2 * np.pi, 36, endpoint=False)
    rays = np.stack([np.cos(angle), np.sin(angle), np.zeros(36)], axis=1)
    page = density_slice(cube, axis="z", at=0.0)
    shown = along_rays(image_of(page) * 1e-3, cube, rays, distance)
    assert "mean density" in page.axes[0].images[0].colorbar.ax.get_xlabel()
    expected = extinction(positive_store, rays, distance)
    assert shown.sum() == pytest.approx(expected.sum(), rel=0.03)
    np.testing.assert_allclose(shown, expected, rtol=0.12)
    middle = int(np.abs(cube.z).argmin())
    median = along_rays(cube.arrays["p50"][middle], cube, rays, distance)
    assert median.sum() < 0.95 * expected.sum()


def test_columns_and_the_view_add_up_to_the_same_dust(positive_store, cube):
    drawn = image_of(face_on(cube, positive_store.columns("z")))
    np.testing.assert_allclose(drawn, cube.integral("mean", "z"), rtol=0.05)
    at = np.abs(cube.y).argmin(), np.abs(cube.x).argmin()
    poles = extinction(positive_store, np.array([[0, 0, 1.0], [0, 0, -1.0]]), 209.9)
    assert drawn[at] == pytest.approx(poles.sum(), rel=0.03)
    blocks = thinned(cube, {"mean": cube.arrays["mean"]}).arrays["mean"].mean()
    assert blocks == pytest.approx(cube.arrays["mean"].mean(), rel=1e-5)
