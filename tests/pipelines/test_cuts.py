"""A cut shows the number that belongs to its direction and distance."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.figures.cuts import density_panels, density_sky
from pipelines.maps.answers import MissingError
from pipelines.maps.opening import open_run
from pipelines.maps.stored import of_cube

L, B = np.array([90.0, 270.0, 30.0, 0.0]), np.array([0.0, 0.0, 60.0, 90.0])


def make_cube(**arrays):
    axis = np.linspace(-300.0, 300.0, 13)
    Y = np.meshgrid(axis, axis, axis, indexing="ij")[1]
    slopes = {name: slope * np.maximum(Y, 0) for name, slope in arrays.items()}
    return Cube(x=axis, y=axis, z=axis, arrays=slopes)


def make_maps():
    nside, distance = 8, np.array([50.0, 100.0, 300.0])
    pixels = np.arange(12 * nside**2)
    rise = np.outer(distance, 1.0 + pixels / len(pixels)) * 1e-3
    arrays = {"mean": rise, "std": 0.1 * rise}
    arrays |= {"p16": 0.8 * rise, "p50": 0.9 * rise, "p84": 1.2 * rise}
    last = 200.0 + 0 * pixels
    return SkyMaps(distances=distance, arrays=arrays, last_star=last)


def test_extinction_is_interpolated_from_zero_at_the_sun():
    mean = np.array([np.full(12, 0.2), np.linspace(0.2, 1.0, 12)])
    mean[:, 5] = np.nan
    distances = np.array([100.0, 300.0])
    maps = SkyMaps(distances=distances, arrays={"mean": mean, "std": mean})
    found = maps.at("mean", np.array([50.0, 100.0, 150.0]))
    np.testing.assert_allclose(found[0], mean[0] / 2)
    np.testing.assert_array_equal(found[1], mean[0])
    np.testing.assert_allclose(found[2], 0.75 * mean[0] + 0.25 * mean[1])


def test_a_cube_shows_its_density():
    source = of_cube(Path("c"), make_cube(mean=1e-5))
    density = density_sky(source, 200.0, "value")(L, B)
    np.testing.assert_allclose(density, [2e-3, 0, 200 * 0.25 * 1e-5, 0], atol=1e-15)
    assert np.isnan(density_sky(source, 601.0, "value")(L, B)).all()


def test_relative_errors_are_those_of_the_logarithm_where_there_are_quantiles():
    normal = of_cube(Path("c"), make_cube(mean=1e-5, std=3e-6))
    cut = (200.0, "relative-error")
    assert density_sky(normal, *cut)(L, B)[0] == pytest.approx(0.3)
    cube = make_cube(mean=2e-5, std=3e-5, p16=5e-6, p50=1e-5, p84=2e-5)
    positive = of_cube(Path("c"), cube)
    assert density_sky(positive, *cut)(L, B)[0] == pytest.approx(np.log(4) / 2)


def test_a_run_shows_its_own_samples(cloud_run):
    source = open_run(cloud_run.path)
    l, b = np.array([18.4, 60.0]), np.array([-9.0, 5.0])  # noqa: E741
    mean, std, sample = (
        density_sky(source, 150.0, show)(l, b) for show in ("value", "std", "sample")
    )
    assert (np.abs(sample - mean) < 6 * std).all() and (sample != mean).all()
    assert np.isnan(density_sky(source, 5000.0, "value")(l, b)).all()
    with pytest.raises(InputError, match="24 samples"):
        density_sky(source, 9.0, "sample", 24)


def test_panels_of_a_distance_have_its_density_per_kiloparsec():
    known = of_cube(Path("c"), make_cube(mean=1e-5, p50=2e-6, std=1e-6))
    panels = density_panels(known, (100.0, 200.0))
    assert [panel.kind for panel in panels] == ["value"] * 2
    # Shown in mag/kpc, and the labels say so.
    assert panels[1].values(L, B)[0] == pytest.approx(2.0)
    assert all("mean" in panel.label and "kpc" in panel.label for panel in panels)
    _, std = density_panels(known, (100.0, 200.0), ["std"])
    assert std.values(L, B)[0] == pytest.approx(0.2)


@pytest.mark.parametrize("show", ["std", "sample"])
def test_what_a_map_lacks_is_refused(show):
    with pytest.raises(MissingError, match="open a run"):
        density_sky(of_cube(Path("c"), make_cube(mean=1e-5)), 100.0, show)
