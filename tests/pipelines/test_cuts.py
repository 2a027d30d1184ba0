"""What a cut shows is the number that belongs to its direction and distance."""

from dataclasses import replace
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
from pipelines.figures.cuts import Cut, compared_panels, cut_panels, cut_sky
from pipelines.formats.zarr import write_zarr
from pipelines.maps.answers import MissingError
from pipelines.maps.opening import open_answers
from pipelines.maps.run_map import RunMap
from pipelines.maps.stored import of_cube, of_sky_maps

L, B = np.array([90.0, 270.0, 30.0, 0.0]), np.array([0.0, 0.0, 60.0, 90.0])


def make_cube(**arrays):
    axis = np.linspace(-300.0, 300.0, 13)
    Y = np.meshgrid(axis, axis, axis, indexing="ij")[1]
    return Cube(
        x=axis,
        y=axis,
        z=axis,
        arrays={name: slope * np.maximum(Y, 0) for name, slope in arrays.items()},
    )


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
    source = of_sky_maps(Path("maps"), maps)
    found = maps.at("mean", np.array([50.0, 100.0, 150.0]))
    np.testing.assert_allclose(found[0], mean[0] / 2)
    np.testing.assert_array_equal(found[1], mean[0])
    np.testing.assert_allclose(found[2], 0.75 * mean[0] + 0.25 * mean[1])
    cut = Cut(quantity="extinction", show="value", distance=300.0, near=100.0)
    l, b = healpy.pix2ang(1, np.arange(12), nest=True, lonlat=True)  # noqa: E741
    np.testing.assert_allclose(cut_sky(source, cut)[0](l, b), mean[1] - mean[0])


def test_density_is_that_of_the_place_on_the_sphere():
    cut = Cut(quantity="density", distance=200.0)
    values, what = cut_sky(of_cube(Path("c"), make_cube(mean=1e-5)), cut)
    assert what == "mean"
    expected = [2e-3, 0, 200 * 0.25 * 1e-5, 0]
    np.testing.assert_allclose(values(L, B), expected, atol=1e-15)


@pytest.mark.parametrize("near", [0.0, 100.0])
@pytest.mark.parametrize("quantity", ["density", "extinction"])
def test_a_cube_is_integrated_between_two_distances(near, quantity):
    # Its density rises linearly towards l = 90: the integral is that of the distance.
    source = of_cube(Path("c"), make_cube(mean=1e-5))
    cut = Cut(quantity=quantity, distance=250.0, near=near, nside=128)
    seen = cut_sky(source, cut)[0](L, B)
    if quantity == "density" and not near:
        expected = 250.0 * 1e-5
    else:
        length = 250.0 - near if quantity == "density" else 1.0
        expected = 1e-5 * (250.0**2 - near**2) / 2 / length
    assert seen[0] == pytest.approx(expected, rel=1e-3)
    assert seen[1] == pytest.approx(0.0, abs=1e-4 * expected)


def test_relative_errors_are_those_of_the_logarithm_where_there_are_quantiles():
    cut = Cut(quantity="density", show="relative-error", distance=200.0)
    normal = of_cube(Path("c"), make_cube(mean=1e-5, std=3e-6))
    assert cut_sky(normal, cut)[0](L, B)[0] == pytest.approx(0.3)
    cube = make_cube(mean=2e-5, std=3e-5, p16=5e-6, p50=1e-5, p84=2e-5)
    positive = of_cube(Path("c"), cube)
    assert cut_sky(positive, cut)[0](L, B)[0] == pytest.approx(np.log(4) / 2)


@pytest.mark.parametrize("positive", [False, True])
def test_stored_integrals_are_read_along_their_pixels(positive, tmp_path):
    write_zarr(tmp_path / "m.zarr", make_cube(mean=1e-5), make_maps(positive))
    source = open_answers(tmp_path / "m.zarr")
    pixel = healpy.ang2pix(8, L, B, lonlat=True, nest=True)
    rise = (1.0 + pixel / 768) * 0.075
    shown = {
        show: cut_sky(source, Cut(quantity="extinction", show=show, distance=75.0))[0]
        for show in ("value", "std", "relative-error")
    }
    value = 0.9 * rise if positive else rise
    np.testing.assert_allclose(shown["value"](L, B), value, rtol=1e-6)
    np.testing.assert_allclose(shown["std"](L, B), 0.1 * rise, rtol=1e-6)
    relative = np.log(1.5) / 2 if positive else 0.1
    np.testing.assert_allclose(shown["relative-error"](L, B), relative, rtol=1e-6)
    far = Cut(quantity="extinction", show="value", distance=301.0)
    with pytest.raises(InputError, match="end at 300 pc"):
        cut_sky(source, far)
    assert source.sky_maps([75.0], None).mean[0, pixel] == pytest.approx(rise)


def test_a_stored_ray_ends_where_the_map_does(tmp_path):
    stored = make_maps(True)
    stored.arrays["mean"][2] = np.nan
    write_zarr(tmp_path / "m.zarr", make_cube(mean=1e-5), stored)
    source = open_answers(tmp_path / "m.zarr")
    (line,) = source.lines([(90.0, 0.0)])
    assert line.distance.tolist() == [50.0, 100.0]
    assert line.last_star == 200.0
    above = np.log(line.inner[1] / line.median) * 1.96
    np.testing.assert_allclose(np.log(line.outer[1] / line.median), above, rtol=1e-4)


def test_a_run_shows_its_own_moments_and_samples(cloud_run):
    source = RunMap.of(cloud_run)
    pixel = healpy.ang2pix(64, [18.4, 60.0], [-9.0, 5.0], lonlat=True, nest=True)
    l, b = healpy.pix2ang(64, pixel, lonlat=True, nest=True)  # noqa: E741
    towards = unit_vectors(l, b)
    mean, std = cumulative(cloud_run, towards, np.array([150.0, 300.0]))
    shown = {
        show: cut_sky(source, Cut(quantity="extinction", show=show, distance=300.0))[0]
        for show in ("value", "std", "sample")
    }
    assert shown["value"](l, b) == pytest.approx(mean[1], rel=0.02)
    # What 16 draws below the grid scatter by, many directions average.
    every = np.arange(0, 49152, 769)
    wide = healpy.pix2ang(64, every, nest=True, lonlat=True)
    expected = cumulative(cloud_run, unit_vectors(*wide), np.array([150.0, 300.0]))[1]
    ratio = shown["std"](*wide) / expected[1]
    known = np.isfinite(ratio)
    assert known.sum() > 30 and np.log(ratio[known]).mean() == pytest.approx(0, abs=0.1)
    assert np.log(ratio[known]).std() < 0.35
    assert shown["value"](l, b) == pytest.approx(
        one_cloud.extinction(300.0 * towards), abs=0.1
    )
    sample = shown["sample"](l, b) - mean[1]
    assert (np.abs(sample) < 6 * std[1]).all() and (sample != 0).all()
    part = Cut(quantity="extinction", show="value", distance=300.0, near=150.0)
    assert cut_sky(source, part)[0](l, b) == pytest.approx(mean[1] - mean[0], rel=0.02)
    beyond = Cut(quantity="density", show="value", distance=5000.0)
    assert np.isnan(cut_sky(source, beyond)[0](l, b)).all()
    with pytest.raises(InputError, match="24 samples"):
        cut_sky(
            source,
            Cut(quantity="density", show="sample", distance=9.0, sample=24),
        )


def test_a_density_is_its_mean_and_an_extinction_has_its_std_beside_it():
    cut, rows = Cut(quantity="density", distance=100.0), (100.0, 200.0)
    known = of_cube(Path("c"), make_cube(mean=1e-5, p50=2e-6, std=1e-6))
    panels, count = cut_panels(known, cut, rows)
    assert ([panel.kind for panel in panels], count) == (["value"] * 2, 1)
    # Shown in mag/kpc, and the labels say so.
    assert panels[1].values(L, B)[0] == pytest.approx(2.0)
    assert all("mean" in panel.label and "kpc" in panel.label for panel in panels)
    asked, _ = cut_panels(known, cut, rows, ["std"])
    assert asked[1].values(L, B)[0] == pytest.approx(0.2)
    mean = np.full((2, 768), 0.5)
    maps = SkyMaps(distances=np.array(rows), arrays={"mean": mean, "std": mean / 10})
    integrated = of_sky_maps(Path("m"), maps)
    panels, count = cut_panels(integrated, replace(cut, quantity="extinction"), rows)
    assert ([panel.kind for panel in panels], count) == (["value", "error"] * 2, 2)


def test_a_second_map_is_brought_to_the_first_ones_unit_and_band():
    cube = make_cube(mean=1e-5, std=1e-6)
    other = Cube(
        x=cube.x,
        y=cube.y,
        z=cube.z,
        arrays={"density": cube.arrays["mean"] * 1000 / 3.1},
        unit="mag kpc-1",
    )
    first = of_cube(Path("a"), cube)
    second = of_cube(Path("b"), other)
    cut = Cut(quantity="density", distance=200.0)
    panels, _ = compared_panels(first, second, cut, [200.0], factor=3.1)
    first, second, difference = (p.values(L, B)[0] for p in panels)
    assert first == pytest.approx(2.0)
    assert second == pytest.approx(2.0)
    assert difference == pytest.approx(0.0, abs=1e-9)
    assert panels[0].group == panels[1].group


def test_what_a_map_cannot_know_is_said():
    source = of_cube(Path("c"), make_cube(mean=1e-5, std=1e-6))
    for quantity, show in (("extinction", "std"), ("density", "sample")):
        with pytest.raises(MissingError, match="name a run"):
            cut_sky(source, Cut(quantity=quantity, show=show, distance=100.0))
