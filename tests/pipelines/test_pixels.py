"""Pixels and weights are those of healpy."""

import healpy
import numpy as np
import pytest

from pipelines.base.pixels import nside_of, pixel_of, weights_around

NSIDES = [1, 2, 4, 8, 64, 512, 8192]


def places():
    """Directions all over the sky, at the poles, the equator and limits of the caps."""
    rng = np.random.default_rng(2)
    lon = rng.uniform(-400, 800, 20_000)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, 20_000)))
    near = 90 - 10.0 ** rng.uniform(-9, 1, 2000)
    edge = np.degrees(np.arcsin(2 / 3)) + rng.uniform(-1e-6, 1e-6, 2000)
    special = np.array([90.0, 89.999999, 60.0, 30.0, 1e-12, 0.0])
    lat = np.concatenate([lat, near, -near, edge, -edge, special, -special])
    # Never within rounding of the meridians that part base pixels.
    rest = len(lat) - len(lon)
    fill = rng.uniform(1, 89, rest) + 90 * rng.integers(0, 4, rest)
    return np.concatenate([lon, fill]), lat


@pytest.mark.parametrize("nside", NSIDES)
def test_directions_lie_in_the_pixels_of_healpy(nside):
    lon, lat = places()
    expected = healpy.ang2pix(nside, lon, lat, nest=True, lonlat=True)
    np.testing.assert_array_equal(pixel_of(nside, lon, lat), expected)


@pytest.mark.parametrize("nside", [1, 2, 16])
def test_centres_lie_in_their_pixels(nside):
    pixels = np.arange(12 * nside**2)
    centres = healpy.pix2ang(nside, pixels, nest=True, lonlat=True)
    np.testing.assert_array_equal(pixel_of(nside, *centres), pixels)


@pytest.mark.parametrize("nside", NSIDES)
def test_weights_are_those_of_healpy(nside):
    lon, lat = places()
    found, weights = weights_around(nside, lon, lat)
    known, expected = healpy.get_interp_weights(nside, lon, lat, nest=True, lonlat=True)
    orders = np.argsort(found, axis=0), np.argsort(known, axis=0)
    (ours, own), (theirs, their_own) = (
        (np.take_along_axis(p, order, 0), np.take_along_axis(w, order, 0))
        for p, w, order in zip((found, known), (weights, expected), orders)
    )
    np.testing.assert_array_equal(ours, theirs)
    # Rounding of an angle, over the width of a pixel.
    np.testing.assert_allclose(own, their_own, rtol=0, atol=4e-15 * nside)
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-12)


def test_numbers_of_pixels_have_an_nside():
    for nside in NSIDES:
        assert nside_of(12 * nside**2) == nside
    for pixels in (0, 1, 11, 13, 48 * 3, 12 * 9, 12 * 16 + 1):
        assert nside_of(pixels) is None


def test_unknown_directions_have_no_weights():
    lon, lat = np.array([np.nan, 10.0, 20.0]), np.array([5.0, np.nan, 80.0])
    _, weights = weights_around(16, lon, lat)
    assert np.isnan(weights).all(axis=0).tolist() == [True, True, False]
