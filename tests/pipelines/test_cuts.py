"""A cut shows the number that belongs to its direction and distance."""

from pathlib import Path

import healpy
import numpy as np
import one_cloud
import pytest
from ray_moments import cumulative

from pipelines.base.errors import InputError
from pipelines.base.geometry import unit_vectors
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import SkyMaps
from pipelines.figures.cuts import cut_panels, cut_sky
from pipelines.formats.zarr import write_zarr
from pipelines.maps.answers import MissingError
from pipelines.maps.opening import open_answers
from pipelines.maps.run_map import RunMap
from pipelines.maps.stored import of_cube, of_sky_maps

L, B = np.array([90.0, 270.0, 30.0, 0.0]), np.array([0.0, 0.0, 60.0, 90.0])


def make_cube(**arrays):
    axis = np.linspace(-300.0, 300.0, 13)
    Y = np.meshgrid(axis, axis, axis, indexing="ij")[1]
    slopes = {name: slope * np.maximum(Y, 0) for name, slope in arrays.items()}
    return Cube(x=axis, y=axis, z=axis, arrays=slopes)


def make_maps(positive):
    nside, distance = 8, np.array([50.0, 100.0, 300.0])
    pixels = np.arange(12 * nside**2)
    rise = np.outer(distance, 1.0 + pixels / len(pixels)) * 1e-3
    arrays = {"mean": rise, "std": 0.1 * rise}
    if positive:
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


def test_a_cube_shows_its_density_and_integrals_of_it():
    # The density rises linearly towards l = 90: the integral is that of the distance.
    source = of_cube(Path("c"), make_cube(mean=1e-5))
    density = cut_sky(source, "density", 200.0, "value")(L, B)
    np.testing.assert_allclose(density, [2e-3, 0, 200 * 0.25 * 1e-5, 0], atol=1e-15)
    found = cut_sky(source, "extinction", 250.0, "value")(L, B)
    assert found[0] == pytest.approx(1e-5 * 250.0**2 / 2, rel=1e-3)
    assert found[1] == pytest.approx(0.0, abs=1e-4)


def test_relative_errors_are_those_of_the_logarithm_where_there_are_quantiles():
    normal = of_cube(Path("c"), make_cube(mean=1e-5, std=3e-6))
    cut = ("density", 200.0, "relative-error")
    assert cut_sky(normal, *cut)(L, B)[0] == pytest.approx(0.3)
    cube = make_cube(mean=2e-5, std=3e-5, p16=5e-6, p50=1e-5, p84=2e-5)
    positive = of_cube(Path("c"), cube)
    assert cut_sky(positive, *cut)(L, B)[0] == pytest.approx(np.log(4) / 2)


@pytest.mark.parametrize("positive", [False, True])
def test_stored_integrals_are_read_along_their_pixels(positive, tmp_path):
    write_zarr(tmp_path / "m.zarr", make_cube(mean=1e-5), make_maps(positive))
    source = open_answers(tmp_path / "m.zarr")
    pixel = healpy.ang2pix(8, L, B, lonlat=True, nest=True)
    centres = healpy.pix2ang(8, pixel, lonlat=True, nest=True)
    rise = (1.0 + pixel / 768) * 0.075
    for show, expected in (
        ("value", 0.9 * rise if positive else rise),
        ("std", 0.1 * rise),
        ("relative-error", np.log(1.5) / 2 if positive else 0.1),
    ):
        found = cut_sky(source, "extinction", 75.0, show)(*centres)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isnan(cut_sky(source, "extinction", 601.0, "value")(L, B)).all()
    assert source.sky_maps([75.0], None).mean[0, pixel] == pytest.approx(rise)


def test_a_stored_ray_ends_where_the_map_does(tmp_path):
    stored = make_maps(True)
    stored.arrays["mean"][2] = np.nan
    write_zarr(tmp_path / "m.zarr", make_cube(mean=1e-5), stored)
    (line,) = open_answers(tmp_path / "m.zarr").lines([(90.0, 0.0)])
    assert line.distance.tolist() == [50.0, 100.0]
    assert line.last_star == 200.0
    found = line.arrays
    above = np.log(found["p84"] / found["p50"]) * 1.96
    np.testing.assert_allclose(np.log(found["p97_5"] / found["p50"]), above, rtol=1e-4)


def test_a_run_shows_its_own_moments_and_samples(cloud_run):
    source = RunMap.of(cloud_run)
    l, b = np.array([18.4, 60.0]), np.array([-9.0, 5.0])  # noqa: E741
    towards = unit_vectors(l, b)
    mean, std = cumulative(cloud_run, towards, np.array([150.0, 300.0]))
    value = cut_sky(source, "extinction", 300.0, "value")(l, b)
    assert value == pytest.approx(mean[1], rel=0.02)
    assert value == pytest.approx(one_cloud.extinction(300.0 * towards), abs=0.1)
    # What 16 draws below the grid scatter by, many directions average.
    wide = healpy.pix2ang(64, np.arange(0, 49152, 769), nest=True, lonlat=True)
    expected = cumulative(cloud_run, unit_vectors(*wide), np.array([150.0, 300.0]))[1]
    ratio = cut_sky(source, "extinction", 300.0, "std")(*wide) / expected[1]
    known = np.isfinite(ratio)
    assert known.sum() > 30 and np.log(ratio[known]).mean() == pytest.approx(0, abs=0.1)
    assert np.log(ratio[known]).std() < 0.35
    sample = cut_sky(source, "extinction", 300.0, "sample")(l, b) - mean[1]
    assert (np.abs(sample) < 6 * std[1]).all() and (sample != 0).all()
    assert np.isnan(cut_sky(source, "density", 5000.0, "value")(l, b)).all()
    with pytest.raises(InputError, match="24 samples"):
        cut_sky(source, "density", 9.0, "sample", 24)


def test_a_density_is_its_mean_and_an_extinction_has_its_std_beside_it():
    rows = (100.0, 200.0)
    known = of_cube(Path("c"), make_cube(mean=1e-5, p50=2e-6, std=1e-6))
    panels, count = cut_panels(known, "density", rows)
    assert ([panel.kind for panel in panels], count) == (["value"] * 2, 1)
    # Shown in mag/kpc, and the labels say so.
    assert panels[1].values(L, B)[0] == pytest.approx(2.0)
    assert all("mean" in panel.label and "kpc" in panel.label for panel in panels)
    panels, _ = cut_panels(known, "density", rows, ["std"])
    assert panels[1].values(L, B)[0] == pytest.approx(0.2)
    mean = np.full((2, 768), 0.5)
    maps = SkyMaps(distances=np.array(rows), arrays={"mean": mean, "std": mean / 10})
    panels, count = cut_panels(of_sky_maps(Path("m"), maps), "extinction", rows)
    assert ([panel.kind for panel in panels], count) == (["value", "error"] * 2, 2)


def test_what_a_map_lacks_is_refused():
    source = of_cube(Path("c"), make_cube(mean=1e-5, std=1e-6))
    for quantity, show in (("extinction", "std"), ("density", "sample")):
        with pytest.raises(MissingError, match="open a run"):
            cut_sky(source, quantity, 100.0, show)
