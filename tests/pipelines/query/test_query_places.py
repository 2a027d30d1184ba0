"""Coordinates of any frame and shape arrive as Galactic places."""

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import FK4, Galactocentric, GeocentricTrueEcliptic, SkyCoord
from astropy.time import Time

from pipelines.base.errors import InputError
from pipelines.maps.places import places_of

HERE = SkyCoord(
    l=[10.0, 200.0] * u.deg,
    b=[-5.0, 40.0] * u.deg,
    distance=[0.4, 1.5] * u.kpc,
    frame="galactic",
)


@pytest.mark.parametrize(
    "frame",
    [
        "icrs",
        Galactocentric(),
        FK4(obstime=Time("J1984.5")),
        GeocentricTrueEcliptic(obstime=Time("J2010")),
    ],
    ids=str,
)
def test_every_frame_is_the_same_place(frame):
    for total, distance in ((False, [400, 1500]), (True, [np.inf, np.inf])):
        found = places_of(HERE.transform_to(frame), total=total)
        np.testing.assert_allclose(found.l, [10, 200], rtol=1e-9)
        np.testing.assert_allclose(found.b, [-5, 40], rtol=1e-9)
        np.testing.assert_allclose(found.distance, distance, rtol=1e-9)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)])
def test_a_shape_comes_back(shape):
    coords = SkyCoord(
        ra=np.zeros(shape) * u.deg,
        dec=np.zeros(shape) * u.deg,
        distance=np.ones(shape) * u.pc,
    )
    places = places_of(coords)
    assert len(places) == np.prod(shape, dtype=int)
    assert places.restore(np.zeros((len(places), 7))).shape == (*shape, 7)


def test_infinite_and_missing_distances_keep_their_direction():
    distance = [np.inf, np.nan, 5] * u.pc
    coords = SkyCoord(ra=[10, 20, 30] * u.deg, dec=0 * u.deg, distance=distance)
    found = places_of(coords)
    np.testing.assert_array_equal(found.distance, [np.inf, np.nan, found.distance[2]])
    np.testing.assert_allclose(found.distance[2], 5)
    bare = SkyCoord(coords.ra, coords.dec).galactic
    np.testing.assert_allclose(found.l, bare.l.deg, rtol=1e-9)


def test_a_distance_is_demanded_and_needs_a_unit():
    bare = SkyCoord(ra=1 * u.deg, dec=2 * u.deg)
    with pytest.raises(InputError, match=r"no distance.*total=True"):
        places_of(bare)
    with pytest.raises(InputError, match="without a unit"):
        places_of(SkyCoord(ra=1 * u.deg, dec=2 * u.deg, distance=3))
    assert places_of(bare, total=True).distance == np.inf
    with pytest.raises(InputError, match="SkyCoord, got tuple"):
        places_of((10, 20, 300))
