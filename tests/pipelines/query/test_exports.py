"""Exported files give the answers that their run gives, as far as they know."""

import healpy
import numpy as np
import pytest
import ray_field
from scipy.stats import uniform

from pipelines.base.errors import InputError
from pipelines.cubes.sky import SkyMaps
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions
from pipelines.formats.healpix import read_healpix
from pipelines.maps.stored import of_sky_maps
from pipelines.query import open_map
from pipelines.query.map import DustMap

DISTANCES, NSIDE = (50.0, 100.0, 150.0), 16


@pytest.fixture(scope="module")
def exported(positive_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    targets = {
        "zarr": [folder / "map.zarr"],
        "fits": [folder / "map.fits"],
        "healpix": [folder / "sky.fits"],
    }
    options = ExportOptions(distances=DISTANCES, nside=NSIDE, ordering="ring")
    export(positive_run.path, targets, options)
    return folder


def pixels(distance):
    lon, lat = healpy.pix2ang(NSIDE, np.arange(12 * NSIDE**2), nest=True, lonlat=True)
    return ray_field.at(lon, lat, distance)


def test_a_cube_has_the_densities_of_the_store(exported, coords):
    cube, store = (open_map(exported / one) for one in ("map.fits", "map.zarr"))
    assert cube.band == store.band
    for mode in ("mean", "std", "median"):
        ours, theirs = (
            dust.query(coords, integrated=False, mode=mode, return_flags=True)
            for dust in (cube, store)
        )
        np.testing.assert_allclose(ours[0].value, theirs[0].value, rtol=1e-5)
        for flag in ("inside", "unseen", "no_distance"):
            np.testing.assert_array_equal(ours[1][flag], theirs[1][flag])
        assert (ours[1]["extrapolated"] == theirs[1]["extrapolated"]).mean() > 0.9


def test_a_fits_cube_integrates_its_mean_and_knows_no_error(
    positive_run, exported, coords
):
    cube, run = open_map(exported / "map.fits"), open_map(positive_run.path)
    ours, theirs = (d.query(coords, integrated=True).value for d in (cube, run))
    inside = np.isfinite(ours)
    assert inside.mean() > 0.7
    # The run knows, beyond its grid, what the stars near a place share.
    assert abs(np.median(ours[inside] / theirs[inside]) - 1) < 0.05
    with pytest.raises(InputError, match="std"):
        cube.query(coords, integrated=True, mode="std")
    with pytest.raises(InputError, match="zarr"):
        cube.distance_at(coords, 0.1)


def test_maps_of_the_sky_have_their_extinctions_and_no_density(positive_run, exported):
    maps, store = (open_map(exported / name) for name in ("sky.fits", "map.zarr"))
    held = read_healpix(exported / "sky.fits")
    for row, distance in enumerate(DISTANCES):
        for mode, expected in (("std", held.arrays["std"]), ("median", held.median)):
            found = maps.query(pixels(distance), integrated=True, mode=mode).value
            np.testing.assert_allclose(found, expected[row], rtol=1e-5)
    _, flags = maps.query(pixels(150.0), integrated=True, return_flags=True)
    _, known = store.query(pixels(150.0), integrated=True, return_flags=True)
    both = flags["inside"] & known["inside"]
    np.testing.assert_array_equal(
        flags["extrapolated"][both & known["unseen"]],
        known["extrapolated"][both & known["unseen"]],
    )
    with pytest.raises(InputError, match="density"):
        maps.query(pixels(100.0), integrated=False)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_between_distances_the_std_holds_every_curve_that_rises(tmp_path, share):
    """The extinction between two distances is a uniform number that one cloud gives."""
    mean = np.outer([0.06, 0.22], np.ones(48))
    arrays = {"mean": mean, "std": 0.1 * mean}
    quantiles = zip(("p16", "p50", "p84"), (0.9, 1.0, 1.1), strict=True)
    curves = {"skew": arrays | {n: q * mean for n, q in quantiles}, "normal": arrays}
    coords = ray_field.at([40.0], [20.0], [250.0 + 250.0 * share])
    for maps in curves.values():
        maps = SkyMaps(distances=np.array([250.0, 500.0]), arrays=maps)
        dust = DustMap(answers=of_sky_maps(tmp_path / "sky.fits", maps))
        found = dust.extinction(coords)
        linear = 0.06 + share * 0.16
        between = share * (1 - share) / 0.25 * uniform(0.06, 0.16).var()
        std = np.sqrt((0.1 * linear) ** 2 + between)
        np.testing.assert_allclose(found.mean.value, linear)
        np.testing.assert_allclose(found.std.value, std, rtol=1e-6)
        low, high = (found.quantiles[name].value for name in ("p16", "p84"))
        assert low < linear < high and (high - low) / 2 == pytest.approx(std, rel=0.3)


def test_a_file_of_two_distances_and_its_run_agree_within_their_errors(
    positive_run, tmp_path
):
    options = ExportOptions(distances=(250.0, 500.0), nside=NSIDE)
    export(positive_run.path, {"healpix": [tmp_path / "sky.fits"]}, options)
    maps, run = open_map(tmp_path / "sky.fits"), open_map(positive_run.path)
    places = pixels(400.0)
    found = maps.extinction(places)
    z = (found.mean - run.query(places, integrated=True)) / found.std
    z = z[np.isfinite(z)]
    assert len(z) > 100 and np.mean(np.abs(z) < 1) > 0.68


def test_maps_of_the_sky_end_where_their_pixels_do(tmp_path):
    """Beyond the last finite distance nothing is known, in no mode and no direction."""
    distances, rng = np.array([100.0, 200.0, 300.0]), np.random.default_rng(2)
    count = rng.integers(0, 4, 12 * 4**2)
    values = np.broadcast_to(distances[:, None] / 1e3, (3, len(count)))
    mean = np.where(np.arange(3)[:, None] < count, values, np.nan)
    arrays = {"mean": mean, "std": 0.1 * mean, "p16": 0.9 * mean, "p50": mean}
    maps = SkyMaps(distances=distances, arrays={**arrays, "p84": 1.1 * mean})
    dust = DustMap(answers=of_sky_maps(tmp_path / "sky.fits", maps))
    lon, lat = (
        rng.uniform(0, 360, 3000),
        np.degrees(np.arcsin(rng.uniform(-1, 1, 3000))),
    )
    near, weights = healpy.get_interp_weights(4, lon, lat, nest=True, lonlat=True)
    ends = 100.0 * np.where(weights > 0, count[near], 0).max(axis=0)
    distance = rng.uniform(1, 350, 3000)
    coords = ray_field.at(lon, lat, distance)
    for mode in ("mean", "std", "median"):
        asked = {"integrated": True, "mode": mode, "return_flags": True}
        found, flags = dust.query(coords, **asked)
        np.testing.assert_array_equal(np.isfinite(found), distance <= ends)
        np.testing.assert_array_equal(flags["inside"], distance <= ends)
        total, flags = dust.query(coords, **asked, total=True)
        np.testing.assert_array_equal(flags["inside"], ends > 0)
        if mode == "mean":
            np.testing.assert_allclose(total.value[ends > 0], ends[ends > 0] / 1e3)
    answer = dust.extinction(coords)
    np.testing.assert_array_equal(
        np.isfinite(answer.quantiles["p84"]), distance <= ends
    )
    reached, flags = dust.distance_at(coords, 0.15, return_flags=True)
    np.testing.assert_array_equal(np.isfinite(reached.distance), ends > 150)
    np.testing.assert_array_equal(flags["inside"], ends > 0)


def test_what_they_hold_is_shown(exported):
    assert "mean" in repr(open_map(exported / "map.fits"))
    assert "150" in repr(open_map(exported / "sky.fits"))
    (exported / "notes.txt").write_text("no map")
    with pytest.raises(InputError, match="FITS"):
        open_map(exported / "notes.txt")
