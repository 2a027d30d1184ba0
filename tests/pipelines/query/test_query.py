"""A map answers what is known in closed form, and says what it does not know."""

import shutil

import healpy
import numpy as np
import pytest
import ray_field
import zarr
from astropy import units as u
from astropy.coordinates import SkyCoord
from scipy.special import ndtri

from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves
from pipelines.formats.zarr import write_zarr
from pipelines.query import open_map

TRUE = {
    "mean": lambda median: median * np.exp(ray_field.SCATTER**2 / 2),
    "median": lambda median: median,
    "std": lambda median: ray_field.spread(median)["std"],
}


@pytest.fixture(scope="module")
def dust(store):
    return open_map(store)


@pytest.fixture(scope="module")
def points():
    """Positions [pc] evenly in the box, up to its faces."""
    return np.random.default_rng(4).uniform(-1, 1, (20_000, 3)) * ray_field.HALF


def coords_at(points):
    x, y, z = np.moveaxis(np.asarray(points) * u.pc, -1, 0)
    return SkyCoord(u=x, v=y, w=z, frame="galactic", representation_type="cartesian")


@pytest.mark.parametrize("mode", TRUE)
def test_answers_are_those_of_the_field(dust, points, mode):
    coords = coords_at(points)
    found = dust.query(coords, integrated=True, mode=mode)
    assert found.unit == u.mag
    error = np.abs(found.value / TRUE[mode](ray_field.extinction(points)) - 1)
    # Beside the edges of the box some neighbours' rays have ended.
    assert np.quantile(error, 0.99) < 1e-3 and error.max() < 6e-3
    found = dust.query(coords, integrated=False, mode=mode)
    assert found.unit == u.mag / u.pc
    # Trilinear interpolation of a linear field is exact but for float32.
    true = TRUE[mode](ray_field.density(points))
    np.testing.assert_allclose(found.value, true, rtol=1e-6)


@pytest.mark.parametrize("integrated", [True, False])
def test_percentiles_follow_the_log_normal_on_a_last_axis(dust, points, integrated):
    pct = [2.5, 50, 84, 97.5]
    some = points[:600].reshape(20, 30, 3)
    coords = coords_at(some)
    found = dust.query(coords, integrated=integrated, mode="percentile", pct=pct)
    median = (ray_field.extinction if integrated else ray_field.density)(some)
    true = median[..., None] * np.exp(ray_field.SCATTER * ndtri(np.array(pct) / 100))
    assert found.shape == (20, 30, 4)
    # Every mode at once, in one reading.
    answer = dust.extinction(coords) if integrated else dust.density(coords)
    parts = {"mean": answer.mean, "std": answer.std, "median": answer.quantiles["p50"]}
    for mode, part in parts.items():
        single = dust.query(coords, integrated=integrated, mode=mode)
        np.testing.assert_allclose(part, single, rtol=1e-12)
    assert answer.flags["inside"].all()
    # The first few parsecs are a straight line to the first distance.
    np.testing.assert_allclose(found.value, true, rtol=1e-2)
    one = dust.query(coords, integrated=integrated, mode="percentile", pct=84)
    np.testing.assert_array_equal(one.value, found.value[..., 2])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"integrated": None}, r"integrated=True.*integrated=False"),
        ({"mode": "average"}, "mode must be one of"),
        ({"mode": "percentile"}, "takes percentiles"),
        ({"mode": "mean", "pct": 5}, "takes percentiles"),
        ({"mode": "percentile", "pct": [0, 50]}, "between 0 and 100"),
        ({"integrated": False, "total": True}, "total=True goes with"),
        ({"mode": "samples"}, "no posterior samples"),
    ],
)
def test_contradictions_are_refused(dust, points, wrong, said):
    with pytest.raises(InputError, match=said):
        dust.query(coords_at(points[0]), **{"integrated": True, **wrong})


def test_one_coordinate_gives_one_number_and_none_gives_none(dust, points):
    answer, flags = dust.query(coords_at(points[0]), integrated=True, return_flags=True)
    assert answer.isscalar and flags.shape == ()
    every = dust.query(coords_at(points[:5]), integrated=True)
    assert answer == every[0]
    for integrated in (True, False):
        found, flags = dust.query(
            coords_at(points[:0]), integrated=integrated, return_flags=True
        )
        assert found.shape == flags.shape == (0,)


@pytest.mark.parametrize("integrated", [True, False])
def test_outside_or_without_a_distance_is_nan_and_so_flagged(dust, integrated):
    points = np.array([[501.0, 0, 0], [0, -401, 0], [0, 0, 200.0], [499.9, 399, -199]])
    ask = {"integrated": integrated, "return_flags": True}
    found, flags = dust.query(coords_at(points), **ask)
    assert flags["inside"].tolist() == [False, False, True, True]
    np.testing.assert_array_equal(np.isfinite(found.value), flags["inside"])
    found, flags = dust.query(ray_field.at(5.0, 0.0, [100, np.nan]), **ask)
    assert np.isfinite(found).tolist() == [True, False]
    assert flags["no_distance"].tolist() == [False, True]
    assert flags["inside"].tolist() == [True, False]


def test_flags_say_where_the_map_extrapolates(dust, points):
    distance = np.linalg.norm(points, axis=1)
    _, flags = dust.query(coords_at(points), integrated=True, return_flags=True)
    # The cell that a point is in, by its centre.
    centre = ray_field.STEP * np.rint(points / ray_field.STEP)
    unseen = np.linalg.norm(centre, axis=1) > ray_field.SEEN
    np.testing.assert_array_equal(flags["unseen"], unseen)
    beyond = unseen & (distance > ray_field.SEEN)
    np.testing.assert_array_equal(flags["extrapolated"], beyond)
    assert 0 < beyond.sum() < unseen.sum()


def test_nothing_is_before_the_observer(dust):
    here = ray_field.at(5, 3, 0)
    for mode in ("mean", "std", "median"):
        assert dust.query(here, integrated=True, mode=mode) == 0 * u.mag
    assert dust.query(here, integrated=True, mode="percentile", pct=7) == 0 * u.mag


def test_the_whole_way_through_is_that_to_the_face(dust):
    bare = SkyCoord(l=[0, 90, 0] * u.deg, b=[0, 0, 90] * u.deg, frame="galactic")
    found, flags = dust.query(
        bare, integrated=True, mode="median", total=True, return_flags=True
    )
    true = ray_field.extinction(np.diag(ray_field.HALF))
    np.testing.assert_allclose(found.value, true, rtol=2e-3)
    assert flags["to_edge"].all() and flags["inside"].all()
    far = SkyCoord(bare.l, bare.b, distance=np.inf * u.pc, frame="galactic")
    again = dust.query(far, integrated=True, mode="median")
    np.testing.assert_array_equal(again, found)
    with pytest.raises(InputError, match="infinite distance"):
        dust.query(far, integrated=False)
    mixed = coords_at(np.array([[np.inf, 0, 0], [100.0, 0, 0]]))
    extinction, density = dust.extinction_and_density(mixed)
    assert extinction.flags["inside"].all() and extinction.flags["to_edge"][0]
    assert np.isnan(density.mean).tolist() == [True, False]
    assert density.flags["inside"].tolist() == [False, True]


def test_beyond_the_last_distance_of_a_short_map_there_is_nothing(tmp_path):
    short = open_map(ray_field.write(tmp_path / "short.zarr", nside=8, last=200.0))
    # The last is within a step of the last distance, but towards a face at 500 pc.
    points = np.array([[195.0, 0, 0], [300.0, 0, 0], [0, 0, 199.9], [210.0, 0, 0]])
    found, flags = short.query(coords_at(points), integrated=True, return_flags=True)
    assert np.isfinite(found).tolist() == [True, False, True, False]
    assert flags["inside"].tolist() == [True, False, True, False]


def test_rows_do_not_depend_on_their_neighbours(dust, points):
    order = np.random.default_rng(0).permutation(len(points))
    for integrated in (True, False):
        found = dust.query(coords_at(points), integrated=integrated)
        again = dust.query(coords_at(points[order]), integrated=integrated)
        np.testing.assert_array_equal(again, found[order])


def test_a_field_that_may_be_negative_has_normal_quantiles(tmp_path, points):
    cube, rays = ray_field.cube(), ray_field.integrated(nside=8)
    plain = {name: cube.arrays[name] for name in ("mean", "std", "support")}
    write_zarr(
        tmp_path / "gauss.zarr",
        Cube(x=cube.x, y=cube.y, z=cube.z, arrays=plain),
        Curves(
            distances=rays.distances,
            nodes=rays.nodes,
            arrays={name: rays.arrays[name] for name in ("mean", "std")},
            last_star=rays.last_star,
        ),
    )
    gauss, coords = open_map(tmp_path / "gauss.zarr"), coords_at(points[:100])
    for integrated in (True, False):
        mean, std, median, high = (
            gauss.query(coords, integrated=integrated, mode=mode, pct=pct)
            for mode, pct in (
                ("mean", None),
                ("std", None),
                ("median", None),
                ("percentile", 97.5),
            )
        )
        np.testing.assert_array_equal(median, mean)
        np.testing.assert_allclose(high, mean + ndtri(0.975) * std, rtol=1e-12)


def test_a_map_without_integrated_arrays_answers_densities_only(tmp_path, points):
    write_zarr(tmp_path / "old.zarr", ray_field.cube())
    old, coords = open_map(tmp_path / "old.zarr"), coords_at(points[:3])
    assert np.isfinite(old.query(coords, integrated=False)).all()
    with pytest.raises(InputError, match="export RUN --zarr"):
        old.query(coords, integrated=True)


@pytest.mark.parametrize("fault", ["absent", "nothing", "unfinished", "other"])
def test_what_is_no_map_is_refused(tmp_path, store, fault):
    place = tmp_path / "map.zarr"
    if fault == "nothing":
        place.mkdir()
    elif fault != "absent":
        shutil.copytree(store, place)
    if fault == "unfinished":
        (place / "COMPLETE").unlink()
    if fault == "other":
        text = (place / "zarr.json").read_text()
        (place / "zarr.json").write_text(text.replace("dustmap cube", "sea ice"))
    with pytest.raises(InputError):
        open_map(place)


def test_only_the_chunks_around_a_place_are_read(tmp_path):
    """All others may be gone; where one that is needed is gone, that is said."""
    axes = {"x": np.arange(200.0) - 100, "y": np.arange(8.0) - 4, "z": np.arange(8.0)}
    values = np.random.default_rng(1).random((8, 8, 200)).astype(np.float32)
    pixels = 12 * 64**2
    rays = Curves(
        distances=np.arange(1.0, 41.0),
        nodes=np.arange(40),
        arrays=dict.fromkeys(("mean", "std"), np.ones((pixels, 40), np.float32)),
        last_star=np.ones(pixels, np.float32),
    )
    arrays = {"mean": values, "std": values, "support": values}
    write_zarr(tmp_path / "m.zarr", Cube(**axes, arrays=arrays), rays)
    coords = SkyCoord(coords_at([[10.3, 0.5, 2.2]]), representation_type="spherical")
    before = [open_map(tmp_path / "m.zarr").query(coords, integrated=i) for i in (0, 1)]
    around, _ = healpy.get_interp_weights(
        64, coords.l.deg, coords.b.deg, nest=True, lonlat=True
    )
    size = zarr.open_group(tmp_path / "m.zarr")["extinction_mean"].chunks[0]
    rows = {f"{pixel // size}/0" for pixel in around.ravel()}
    kept = {"mean": {"0/0/1"}, "extinction_mean": rows}
    assert 0 < len(rows) < 4
    for name in ("mean", "std", "support", "extinction_mean", "extinction_std"):
        for file in (tmp_path / "m.zarr" / name / "c").rglob("*"):
            key = file.relative_to(tmp_path / "m.zarr" / name / "c").as_posix()
            if file.is_file() and key not in kept.get(name, ()):
                file.unlink()
    dust = open_map(tmp_path / "m.zarr")
    after = [dust.query(coords, integrated=i) for i in (0, 1)]
    np.testing.assert_array_equal(after, before)
    with pytest.raises(InputError, match="lacks mean/c/0/0/0"):
        dust.query(coords_at([[-90.0, 0, 2]]), integrated=False)
