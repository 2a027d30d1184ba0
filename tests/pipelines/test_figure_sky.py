"""The sky shows the median and how far stars look; rays are informed ones."""

from dataclasses import replace

import healpy
import numpy as np
import pytest

from pipelines.cubes.sky import Integrated, SkyMaps
from pipelines.figures.sky import healpix_sky, sky

NSIDE = 8
PIXELS = np.arange(12 * NSIDE**2)
L, B = healpy.pix2ang(NSIDE, PIXELS, nest=True, lonlat=True)


def make_maps():
    distances = np.array([100.0, 200.0])
    mean = np.outer(distances, np.ones(len(PIXELS))) * 1e-3
    last = np.where(B > 0, 150.0, 50.0)
    return SkyMaps(
        distances=distances,
        mean=mean,
        std=mean,
        quantiles={"p50": mean / 2},
        last_star=last,
    )


def paled(axes):
    return np.asarray(axes.images[1].get_array())[..., 3] > 0


def test_the_sky_is_pale_where_stars_do_not_look_so_far():
    figure = sky(make_maps(), dpi=40)
    near, far = figure.axes[0], figure.axes[2]
    half = len(paled(near)) // 2
    assert not paled(near)[half + 8 :].any()
    assert paled(near)[: half - 8].any()
    assert paled(far)[half + 8 :].any()
    assert "no sight line reaches that far" in figure.texts[0].get_text()
    plain = sky(replace(make_maps(), last_star=None), dpi=40)
    assert all(len(axes.images) < 2 for axes in plain.axes)


def test_the_median_is_drawn_where_there_is_one():
    value = sky(make_maps(), dpi=40).axes[0].images[0]
    assert np.nanmedian(np.asarray(value.get_array())) == pytest.approx(0.05)
    assert value.colorbar.ax.get_xlabel().startswith("median")


def test_grey_is_explained_where_there_is_some():
    maps = replace(make_maps(), last_star=None)
    assert not sky(maps, dpi=40).texts
    for array in maps.arrays.values():
        array[1, :5] = np.nan
    note = sky(maps, dpi=40).texts[0].get_text()
    assert "grey" in note and "0.65% of the sky at 200 pc" in note


def test_a_smooth_map_is_bilinear_but_beside_pixels_without_value():
    rise = np.sin(np.radians(B))
    fine = np.linspace(-60.0, 60.0, 500)
    shown = healpix_sky(rise, smooth=True)(np.full(500, 33.0), fine)
    assert np.abs(shown - np.sin(np.radians(fine))).max() < 0.02
    rise[B > 30] = np.nan
    nearest = healpix_sky(rise)(np.full(500, 33.0), fine)
    shown = healpix_sky(rise, smooth=True)(np.full(500, 33.0), fine)
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(nearest))


def test_rays_are_chosen_where_stars_look_far_through_dust():
    distance = np.array([100.0, 200.0, 400.0])
    mean = np.outer(np.ones(len(PIXELS)), distance) * 1e-3
    last = np.zeros(len(PIXELS))
    wanted = healpy.ang2pix(NSIDE, [10, 200], [20, 20], lonlat=True, nest=True)
    last[wanted] = 300.0
    last[healpy.ang2pix(NSIDE, 40.0, -10.0, lonlat=True, nest=True)] = 120.0
    stored = Integrated(
        distance=distance, arrays={"mean": mean, "std": mean}, last_star=last
    )
    chosen = SkyMaps.of(stored, {}).informed_directions()
    expected = [(L[p], B[p]) for p in wanted]
    np.testing.assert_allclose([chosen[0], chosen[3]], expected)
    assert 60.0 <= chosen[1][0] < 120.0 and abs(chosen[1][1]) < 5.0
