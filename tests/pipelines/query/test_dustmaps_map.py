"""A map of this program behaves as those of the package dustmaps."""

import sys

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from masked import MASKED

from pipelines.base.errors import InputError
from pipelines.query import open_map
from pipelines.query.dustmaps_map import DustmapQuery

COORDS = SkyCoord(
    l=[[10, 100, 190], [200, 280, 350]] * u.deg,
    b=[[0, 5, -20], [30, -60, 80]] * u.deg,
    distance=[[0.1, 0.2, 0.3], [0.15, 9.0, 0.05]] * u.kpc,
    frame="galactic",
)


def test_its_answers_are_those_of_the_map(path):
    from dustmaps.map_base import DustMap

    dust, plain = DustmapQuery(path, integrated=True), open_map(path)
    assert isinstance(dust, DustMap)
    found = dust(COORDS)
    np.testing.assert_array_equal(found, plain.query(COORDS, integrated=True))
    assert found.unit == u.mag and found.shape == (2, 3) and np.isnan(found[1, 1])
    lists = dust.query(COORDS, mode="percentile", pct=[16, 84], integrated=False)
    assert lists.shape == (2, 3, 2) and lists.unit == u.mag / u.pc
    _, flags = dust.query(COORDS, return_flags=True)
    np.testing.assert_array_equal(flags["inside"], np.isfinite(found))
    numbers = DustmapQuery(path, integrated=True, quantity=False)(COORDS)
    assert type(numbers) is np.ndarray
    gal = dust.query_gal(COORDS.l.deg, COORDS.b.deg, COORDS.distance.kpc)
    np.testing.assert_allclose(gal, found, rtol=1e-12)
    with pytest.raises(InputError, match=r"integrated=True.*integrated=False"):
        DustmapQuery(path)(COORDS)


@pytest.mark.parametrize("mode", ["mean", "std", "median", "percentile"])
@pytest.mark.parametrize("quantity", [True, False])
def test_one_place_gives_a_scalar_and_angles_are_broadcast(path, mode, quantity):
    dust = DustmapQuery(path, integrated=True, quantity=quantity)
    options = {"mode": mode} | ({"pct": 16} if mode == "percentile" else {})
    one = dust.query_gal(100, 5, d=0.2, **options)
    assert np.shape(one) == () and float(getattr(one, "value", one)) > 0
    row = dust.query_gal([100, 280], 5, d=0.2, **options)
    assert row.shape == (2,) and row[0] == one
    with pytest.raises(InputError, match=r"\(2,\), \(3,\)"):
        dust.query_gal([100, 280], [5, 6, 7], d=0.2)


@pytest.mark.parametrize("frame", ["icrs", "fk5", "fk4", "fk4noeterms"])
def test_equatorial_places_are_in_their_frame(path, frame):
    dust = DustmapQuery(path, integrated=True)
    there = COORDS.transform_to(frame)
    place = there.ra.deg, there.dec.deg, there.distance.kpc
    found = dust.query_equ(*place, frame=frame)
    np.testing.assert_allclose(found, dust(COORDS), rtol=1e-9)
    by_units = dust.query_equ(there.ra.rad * u.rad, there.dec, there.distance, frame)
    np.testing.assert_allclose(by_units, found, rtol=1e-12)
    with pytest.raises(InputError, match="fk6"):
        dust.query_equ(*place, frame="fk6")


@pytest.mark.parametrize("kind", MASKED)
def test_masked_places_have_no_answer(path, kind):
    dust, gone = DustmapQuery(path, integrated=True), np.arange(3) == 1
    galactic = np.array([10.0, 100, 190]), np.array([0.0, 5, -20]), np.full(3, 0.1)
    for number, unit in enumerate((u.deg, u.deg, u.kpc)):
        place = [*galactic]
        place[number] = MASKED[kind](place[number], gone, unit)
        for query in (dust.query_gal, dust.query_equ):
            found = query(*place)
            assert np.isnan(found).tolist() == gone.tolist()
            np.testing.assert_array_equal(found[~gone], query(*galactic)[~gone])


def test_random_samples_differ_from_query_to_query_and_come_again(positive_run):
    queries = [
        DustmapQuery(positive_run.path, integrated=True, seed=3) for _ in range(2)
    ]
    first, second = (
        [q.query(COORDS[0], mode="random_sample").value for _ in range(6)]
        for q in queries
    )
    np.testing.assert_array_equal(first, second)
    assert len({tuple(sample) for sample in first}) > 1


def test_without_the_package_the_extra_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("dustmaps")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dustmaps", None)
    monkeypatch.delitem(sys.modules, "pipelines.query.dustmaps_map")
    with pytest.raises(InputError, match=r"pip install 'dustmap\[dustmaps\]'"):
        import pipelines.query.dustmaps_map  # noqa: F401
