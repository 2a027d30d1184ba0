"""The sky shows the median and how far stars look; rays are informed ones."""

from dataclasses import replace

import healpy
import numpy as np
import pytest

from pipelines.cubes.sky import SkyMaps
from pipelines.figures.sky import MOLLWEIDE, gnomonic, healpix_sky, orthographic, sky

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
    mean = np.outer(distance, np.ones(len(PIXELS))) * 1e-3
    last = np.zeros(len(PIXELS))
    wanted = healpy.ang2pix(NSIDE, [10, 200], [20, 20], lonlat=True, nest=True)
    last[wanted] = 300.0
    last[healpy.ang2pix(NSIDE, 40.0, -10.0, lonlat=True, nest=True)] = 120.0
    stored = SkyMaps(
        distances=distance, arrays={"mean": mean, "std": mean}, last_star=last
    )
    chosen = stored.informed_directions()
    expected = [(L[p], B[p]) for p in wanted]
    np.testing.assert_allclose([chosen[0], chosen[3]], expected)
    assert 60.0 <= chosen[1][0] < 120.0 and abs(chosen[1][1]) < 5.0


def plain_maps(count):
    distances = 100.0 * np.arange(1, count + 1)
    mean = np.outer(distances, np.ones(48)) * 1e-3
    return SkyMaps(distances=distances, arrays={"mean": mean, "std": mean / 10})


def image_of(figure, panel=0):
    return figure.axes[panel].images[0]


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_sky_has_a_panel_for_a_few_distances_with_the_last(count, panels):
    figure = sky(plain_maps(count), dpi=40)
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert len(titles) == 2 * panels
    assert titles[0] == "out to 100 pc"
    assert titles[-1] == f"out to {100 * count} pc"


def test_the_sky_has_its_std_beside_the_mean():
    figure = sky(plain_maps(9), distances=[200.0, 400.0], dpi=40)
    middles = [
        np.nanmedian(np.asarray(axes.images[0].get_array())) for axes in figure.axes[:4]
    ]
    assert middles == pytest.approx([0.2, 0.02, 0.4, 0.04])
    found = [image_of(figure, n).colorbar.ax.get_xlabel() for n in range(4)]
    assert found == ["mean extinction [mag]", "std of the extinction [mag]"] * 2
    with pytest.raises(ValueError, match="no map out to 250 pc"):
        sky(plain_maps(9), distances=[250.0])


def test_unmapped_sky_stays_unmapped_in_the_picture():
    maps = plain_maps(1)
    maps.mean[0, :24] = np.nan
    data = np.asarray(image_of(sky(maps, dpi=100)).get_array())
    outside = np.isnan(
        np.asarray(image_of(sky(plain_maps(1), dpi=100)).get_array())
    ).sum()
    inside = data.size - outside
    assert (np.isnan(data).sum() - outside) / inside == pytest.approx(0.5, abs=0.02)


def test_mollweide_places_are_where_the_formula_puts_them():
    wcs = MOLLWEIDE.wcs

    def project(l, b):  # noqa: E741
        return wcs.wcs_world2pix(l, b, 0)

    assert project(np.array(90.0), np.array(0.0)) == pytest.approx((-1.0, 0.0))
    assert project(np.array(270.0), np.array(0.0)) == pytest.approx((1.0, 0.0))
    assert project(np.array(123.0), np.array(90.0)) == pytest.approx((0, 1), abs=1e-6)
    rng = np.random.default_rng(4)
    l, b = rng.uniform(0, 360, 500), rng.uniform(-89, 89, 500)  # noqa: E741
    x, y = project(l, b)
    back_l, back_b = wcs.wcs_pix2world(x, y, 0)
    np.testing.assert_allclose(back_b, b, atol=1e-4)
    np.testing.assert_allclose((back_l - l + 180) % 360, 180, atol=1e-3)


@pytest.mark.parametrize(
    "projection",
    [orthographic(130.0, -35.0), gnomonic(350.0, 60.0, 70.0)],
)
def test_projections_lead_back_and_longitude_grows_to_the_left(projection):
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(-0.6, 0.6, 200) * projection.half[0] for _ in range(2))
    wcs = projection.wcs
    l, b = wcs.wcs_pix2world(x, y, 0)  # noqa: E741
    np.testing.assert_allclose(wcs.wcs_world2pix(l, b, 0), (x, y), atol=1e-9)
    centre = np.array(projection.l), np.array(projection.b)
    np.testing.assert_allclose(wcs.wcs_world2pix(*centre, 0), 0.0, atol=1e-12)
    left = wcs.wcs_world2pix(centre[0] + 1.0, centre[1], 0)
    up = wcs.wcs_world2pix(centre[0], centre[1] + 1.0, 0)
    assert left[0] < 0 < up[1]
    # A degree is a degree around the centre.
    assert up[1] == pytest.approx(np.radians(1.0), rel=1e-3)
    assert -left[0] == pytest.approx(
        np.radians(np.cos(np.radians(centre[1]))), rel=1e-3
    )


def test_what_lies_behind_is_not_shown():
    behind = np.array(310.0), np.array(35.0)
    assert np.isnan(orthographic(130.0, -35.0).wcs.wcs_world2pix(*behind, 0)).all()
    assert np.isnan(gnomonic(130.0, -35.0).wcs.wcs_world2pix(*behind, 0)).all()
    assert np.isfinite(MOLLWEIDE.wcs.wcs_world2pix(*behind, 0)).all()
