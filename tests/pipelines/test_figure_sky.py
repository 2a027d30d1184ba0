"""The sky shows the median and how far stars look; rays are informed ones."""

from dataclasses import replace

import healpy
import numpy as np
import pytest

from pipelines.base.geometry import Box
from pipelines.cubes.sky import Curves, SkyMaps
from pipelines.figures.sky import healpix_sky, sky
from pipelines.maps.lines import informed_directions
from pipelines.maps.rays import PixelRays

NSIDE = 8
PIXELS = np.arange(12 * NSIDE**2)
L, B = healpy.pix2ang(NSIDE, PIXELS, nest=True, lonlat=True)


def make_maps():
    distances = np.array([100.0, 200.0])
    mean = np.outer(distances, np.ones(len(PIXELS))) * 1e-3
    last = np.where(B > 0, 150.0, 50.0)
    return SkyMaps(
        distances=distances,
        arrays={"mean": mean, "std": mean, "p50": mean / 2},
        last_star=last,
    )


def image_of(figure, panel=0):
    return figure.axes[panel].collections[0]


def paled(axes):
    return ~np.ma.getmaskarray(axes.collections[1].get_array())


def test_the_sky_is_pale_where_stars_do_not_look_so_far():
    figure = sky(make_maps())
    near, far = paled(figure.axes[0]), paled(figure.axes[2])
    half = len(near) // 2
    assert near[: half - 15].all() and not near[half + 15 :].any()
    assert far.all()
    assert "no sight line reaches that far" in figure.texts[0].get_text()
    plain = sky(replace(make_maps(), last_star=None))
    assert all(len(axes.collections) < 2 for axes in plain.axes)


def test_the_median_is_drawn_where_there_is_one():
    value = image_of(sky(make_maps()))
    assert np.ma.median(value.get_array()) == pytest.approx(0.05)
    assert value.colorbar.ax.get_xlabel().startswith("median")


def test_grey_is_explained_where_there_is_some():
    maps = replace(make_maps(), last_star=None)
    assert not sky(maps).texts
    for array in maps.arrays.values():
        array[1, :5] = np.nan
    note = sky(maps).texts[0].get_text()
    assert "grey" in note and "0.65% of the sky at 200 pc" in note


def test_the_sky_is_pale_where_the_prior_holds_much_of_the_extinction():
    maps = make_maps()
    share = np.zeros(maps.mean.shape)
    share[1] = np.where(B > 0, 0.2, 0.01)
    # The last star is nearer everywhere, but little lies beyond it.
    beyond = {"prior_share": share, "beyond_box": share > 0}
    figure = sky(replace(maps, **beyond))
    far, half = paled(figure.axes[2]), 180
    assert len(figure.axes[0].collections) < 2
    assert far[half + 15 :].all() and not far[: half - 15].any()
    note = figure.texts[0].get_text().replace("\n", " ")
    assert "100% of the sky at 200 pc" in note and "over 10%" in note


def test_a_map_is_bilinear_but_beside_pixels_without_value():
    rise = np.sin(np.radians(B))
    fine = np.linspace(-60.0, 60.0, 500)
    shown = healpix_sky(rise)(np.full(500, 33.0), fine)
    assert np.abs(shown - np.sin(np.radians(fine))).max() < 0.02
    rise[B > 30] = np.nan
    nearest = rise[healpy.ang2pix(NSIDE, 33.0, fine, lonlat=True, nest=True)]
    shown = healpix_sky(rise)(np.full(500, 33.0), fine)
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(nearest))


def test_rays_are_chosen_where_stars_look_far_through_dust():
    distance = np.array([100.0, 200.0, 400.0])
    mean = np.outer(distance, np.ones(len(PIXELS))) * 1e-3
    last = np.zeros(len(PIXELS))
    wanted = healpy.ang2pix(NSIDE, [10, 200], [20, 20], lonlat=True, nest=True)
    last[wanted] = 300.0
    last[healpy.ang2pix(NSIDE, 40.0, -10.0, lonlat=True, nest=True)] = 120.0
    curves = Curves(
        distances=distance,
        nodes=np.arange(3),
        arrays={"mean": mean.T, "std": mean.T},
        last_star=last,
    )
    box = Box(lower=(-900.0,) * 3, upper=(900.0,) * 3)
    chosen = informed_directions(PixelRays.of(curves, box))
    expected = [(L[p], B[p]) for p in wanted]
    np.testing.assert_allclose([chosen[0], chosen[3]], expected, atol=5.0)
    assert 60.0 <= chosen[1][0] < 120.0 and abs(chosen[1][1]) < 5.0


def plain_maps(count):
    distances = 100.0 * np.arange(1, count + 1)
    mean = np.outer(distances, np.ones(48)) * 1e-3
    return SkyMaps(distances=distances, arrays={"mean": mean, "std": mean / 10})


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (9, 3)])
def test_the_sky_has_a_panel_for_a_few_distances_with_the_last(count, panels):
    titles = [axes.get_title() for axes in sky(plain_maps(count)).axes]
    assert len(titles) == 2 * panels
    assert titles[0] == "out to 100 pc"
    assert titles[-1] == f"out to {100 * count} pc"


def test_the_sky_has_its_std_beside_the_mean():
    figure = sky(plain_maps(9), distances=[200.0, 400.0])
    middles = [np.ma.median(image_of(figure, n).get_array()) for n in range(4)]
    assert middles == pytest.approx([0.2, 0.02, 0.4, 0.04])
    found = [image_of(figure, n).colorbar.ax.get_xlabel() for n in range(4)]
    assert found == ["mean extinction [mag]", "std of the extinction [mag]"] * 2
    with pytest.raises(ValueError, match="no map out to 250 pc"):
        sky(plain_maps(9), distances=[250.0])


def test_a_direction_is_drawn_at_its_longitude_to_the_left_and_its_latitude():
    maps = plain_maps(1)
    nside = healpy.npix2nside(maps.mean.shape[1])
    l, b = healpy.pix2ang(nside, np.arange(48), nest=True, lonlat=True)  # noqa: E741
    maps.mean[0] = np.where(b > 10, np.sin(np.radians(l)), 0)
    maps.mean[0, b < -50] = np.nan
    mesh = image_of(sky(maps))
    shown, places = np.asarray(mesh.get_array()), mesh.get_coordinates()
    row, column = np.unravel_index(np.nanargmax(shown), shown.shape)
    x, y = np.degrees(places[row, column])
    assert x == pytest.approx(-90, abs=25) and y > 10
    below = np.degrees(places[:-1, 0, 1]) < -75
    assert np.isnan(shown[below]).all() and np.isfinite(shown[~below]).any()


@pytest.mark.parametrize("left", [0, 3, 60])
def test_the_last_panel_is_the_last_distance_with_some_sky(left):
    # A box with a face at the Sun: its far corner holds a few directions, or none.
    distances = np.linspace(100.0, 500.0, 5)
    mean = np.outer(distances, np.where(B > 0, 1.0, np.nan)) * 1e-3
    mean[4, np.flatnonzero(B > 0)[left:]] = np.nan
    figure = sky(SkyMaps(distances=distances, arrays={"mean": mean}))
    titles = [axes.get_title() for axes in figure.axes if axes.collections]
    assert f"{500 if left == 60 else 400} pc" in titles[-1]


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_few_maps_are_all_drawn_by_default(count):
    distances = np.arange(1.0, count + 1)
    mean = np.ones((count, len(PIXELS)))
    chosen = SkyMaps(distances=distances, arrays={"mean": mean}).out_to(None)
    assert len(chosen.distances) == min(count, 6)
    assert chosen.distances[-1] == count
