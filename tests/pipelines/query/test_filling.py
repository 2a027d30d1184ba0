"""A map continued by another: no jump, and every answer says where it is from."""

from dataclasses import replace
from pathlib import Path

import healpy
import numpy as np
import pytest
import ray_field
from astropy.io import fits
from astropy.table import Table

import dustmap
from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube, cut_box
from pipelines.export.exporters import export_run
from pipelines.export.options import ExportOptions
from pipelines.formats.fits import read_fits, write_fits
from pipelines.formats.healpix import read_healpix
from pipelines.formats.images import Field
from pipelines.maps.opening import QueriedMap
from pipelines.maps.places import places_of
from pipelines.maps.stored import of_cube

LEVEL = 5e-3
at = ray_field.at


class Even:
    """The same density everywhere, known as far as a distance [pc]."""

    def __init__(self, reach=np.inf):
        self.reach = reach

    def query(self, coords):
        far = coords.distance.pc
        return np.where(far < self.reach, LEVEL * far, np.nan)


def queried(source):
    return QueriedMap(path=Path("other"), source=source, integrated=True)


EVEN, BLIND = queried(Even()), queried(Even(reach=0.0))


@pytest.fixture(scope="module")
def dust(store):
    return dustmap.open_map(store)


@pytest.mark.parametrize("beyond", ["box", "stars"])
@pytest.mark.parametrize("mode", ["mean", "median", "std"])
def test_the_extinction_goes_on_without_a_jump(dust, beyond, mode):
    filled = dust.continued(EVEN, beyond)
    far = np.linspace(10.0, 900.0, 400)
    where = at(np.full(400, 33.0), np.full(400, 4.0), far)
    found, flags = filled.query(where, integrated=True, mode=mode, return_flags=True)
    values = found.value
    assert np.isfinite(values).all() and flags["inside"].all()
    (end,) = {float(d) for d in far[np.argmax(flags["filled"]) - 1 :][:1]}
    assert (flags["filled"] == (far > end)).all()
    assert (flags["joined"] == flags["filled"]).all()
    if beyond == "stars":
        assert end == pytest.approx(ray_field.SEEN, abs=2 * ray_field.STEP)
    else:
        assert end > 400.0
    own = dust.query(where[~flags["filled"]], integrated=True, mode=mode).value
    np.testing.assert_allclose(values[~flags["filled"]], own)
    steps = np.diff(values)
    if mode == "std":
        assert np.ptp(values[flags["filled"]]) == 0.0
    else:
        np.testing.assert_allclose(steps[flags["filled"][:-1]], LEVEL * np.diff(far)[0])
    # No step is larger than both maps' densities allow.
    assert steps.max() < 1.2 * np.diff(far)[0] * max(LEVEL, 2 * ray_field.LEVEL)


def test_densities_fill_holes_and_what_is_outside(dust):
    filled = dust.continued(EVEN)
    where = at([0.0, 0.0, 90.0], [0.0, 0.0, 0.0], [100.0, 450.0, 1000.0])
    found, flags = filled.query(where, integrated=False, return_flags=True)
    assert flags["filled"].tolist() == [False, True, True]
    np.testing.assert_allclose(found.value[1:], LEVEL)
    assert found[0] == dust.query(where[0], integrated=False)
    error = filled.query(where, integrated=False, mode="std").value
    assert np.isfinite(error).tolist() == [True, False, False]


def test_beyond_both_maps_nothing_is_known(dust):
    filled = dust.continued(queried(Even(reach=1000.0)))
    where = at([10.0, 10.0], [0.0, 0.0], [800.0, 2000.0])
    answer = filled.extinction(where)
    flags = answer.flags
    for values in (answer.mean, answer.std, *answer.quantiles.values()):
        assert np.isfinite(values.value).tolist() == [True, False]
    assert flags["inside"].tolist() == [True, False]
    # Those of the edge of the map are not those of places beyond it.
    assert not flags["unseen"].any() and not flags["extrapolated"].any()
    assert "beyond its box" in repr(filled)
    # What the other does not know stays as it was.
    blind, where = dust.continued(BLIND), at([10.0, 10.0], 0.0, [100.0, 5000.0])
    for integrated in (True, False):
        found, flags = blind.query(where, integrated=integrated, return_flags=True)
        assert np.isfinite(found.value).tolist() == [True, False]
        assert not flags["filled"].any() and flags["inside"].tolist() == [True, False]


def test_shapes_quantiles_and_missing_distances(dust):
    filled = dust.continued(EVEN)
    shaped = at(np.full((2, 3), 5.0), np.zeros((2, 3)), np.full((2, 3), 800.0))
    found = filled.query(shaped, integrated=True, mode="percentile", pct=[16, 50, 84])
    assert found.shape == (2, 3, 3) and (np.diff(found.value, axis=-1) > 0).all()
    answer = filled.extinction(shaped)
    flags = answer.flags
    np.testing.assert_allclose(
        answer.quantiles["p16"].value, found.value[..., 0], rtol=1e-2
    )
    assert flags.shape == (2, 3) and flags["joined"].all()
    missing = at(np.array([5.0]), np.array([0.0]), np.array([np.nan]))
    found, flags = filled.query(missing, integrated=True, return_flags=True)
    assert np.isnan(found.value[0]) and flags["no_distance"][0]
    with pytest.raises(InputError, match="total"):
        filled.query(shaped, integrated=True, total=True)
    with pytest.raises(InputError, match="box or stars"):
        dust.continued(EVEN, "moon")
    with pytest.raises(InputError):
        filled.distance_at(shaped, 0.1)


@pytest.fixture(scope="module")
def other_file(tmp_path_factory):
    axis = np.arange(-1500.0, 1501.0, 100.0)
    arrays = {"density": np.full((len(axis),) * 3, LEVEL, dtype=np.float32)}
    path = tmp_path_factory.mktemp("other") / "other.fits"
    write_fits(path, Cube(x=axis, y=axis, z=axis, arrays=arrays))
    return path


def test_filling_on_the_command_line(command, store, other_file, tmp_path):
    Table(
        {"l": [10.0, 10.0], "b": [2.0, 2.0], "distance": [100.0, 900.0]},
        units=["deg", "deg", "pc"],
    ).write(tmp_path / "rows.ecsv")
    line = f"query {store} {tmp_path}/rows.ecsv -o {tmp_path}/answers.ecsv "
    said = command(line + f"--integrated --fill {other_file} --fill-factor 0.5")
    assert said.exit_code == 0, said.output
    answers = Table.read(tmp_path / "answers.ecsv")
    assert answers["filled"].tolist() == [False, True]
    assert "filling map" in answers["filled"].description
    assert answers["extinction_mean"][1] > 0.5 * LEVEL * 400
    wrong = command(line + "--overwrite --fill-factor 2")
    assert wrong.exit_code == 2 and "--fill" in wrong.output


class Package:
    """A map as those of dustmaps: extinctions in its own unit."""

    def query(self, coords, mode="mean"):
        assert mode == "median"
        return 2 * LEVEL * coords.distance.pc


def test_an_object_of_another_package_fills_a_map(dust):
    options = {"factor": 0.5, "query": {"mode": "median"}}
    filled = dustmap.fill(dust, Package(), integrated=True, **options)
    where = at([10.0, 10.0], [2.0, 2.0], [800.0, 900.0])
    steps = np.diff(filled.query(where, integrated=True).value)
    np.testing.assert_allclose(steps, 100 * LEVEL)
    with pytest.raises(InputError, match="integrated"):
        dustmap.fill(dust, Package())


@pytest.mark.parametrize("integrated", [True, False])
def test_an_opened_map_fills_a_map_as_its_file_does(dust, other_file, integrated):
    where = at([10.0, 70.0, 200.0], [2.0, 2.0, -40.0], [100.0, 800.0, 1200.0])
    opened = dustmap.open_map(other_file)
    for filled in (dustmap.fill(dust, opened), dust.continued(opened)):
        found = filled.query(where, integrated=integrated)
        expected = dustmap.fill(dust, other_file).query(where, integrated=integrated)
        np.testing.assert_array_equal(found, expected)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("stated", ["A_V", "A_G", ""])
def test_a_filling_map_is_converted_if_both_bands_are_known(dust, other_file, stated):
    other = read_fits(other_file)
    other = of_cube(other_file, replace(other, meta={"extinction_band": stated}))
    own = replace(dust, answers=replace(dust.answers, band="A_V"))
    where = at([10.0], [2.0], [900.0])
    ratio = factor("A_G", "A_V") if stated == "A_G" else 1.0
    for filled in (dustmap.fill(own, other), dustmap.fill(own, other, factor=ratio)):
        density = filled.query(where, integrated=False).value
        np.testing.assert_allclose(density, ratio * LEVEL, rtol=1e-6)


@pytest.mark.parametrize("beyond", ["box", "stars"])
def test_a_cube_without_the_sun_fills_what_it_spans(dust, other_file, beyond):
    whole = read_fits(other_file)
    part = of_cube(other_file, cut_box(whole, x=(100.0, 1500.0)))
    assert part.kinds(integrated=True) == ()
    far = np.linspace(100.0, 1600.0, 31)
    # One line of sight passes through the part, others do not reach it.
    lon, distance = (a.ravel() for a in np.meshgrid([10.0, 100.0, 190.0], far))
    where = at(lon, np.full(len(lon), 2.0), distance)
    both = [dust.continued(one, beyond) for one in (part, of_cube(other_file, whole))]
    ends = both[0].answers.ends(places_of(where))
    cosine = np.cos(np.radians(lon)) * np.cos(np.radians(2.0))
    in_part, own = ends * cosine > 100.0, distance <= ends
    assert (in_part & ~own).any() and (~in_part & ~own).any()
    found, known = (one.query(where, integrated=True).value for one in both)
    np.testing.assert_array_equal(
        np.isfinite(found), (in_part | own) & np.isfinite(known)
    )
    some = np.isfinite(found)
    np.testing.assert_allclose(found[some], known[some], rtol=1e-6)
    found, known = (one.query(where, integrated=False).value for one in both)
    inside = distance * cosine > 100.0
    np.testing.assert_allclose(found[inside], known[inside], rtol=1e-6)


def test_a_cube_without_the_sun_fills_exported_maps(
    positive_run, other_file, tmp_path, command
):
    part = cut_box(read_fits(other_file), x=(200.0, 1500.0))
    write_fits(tmp_path / "part.fits", part)
    targets = f"--fits {tmp_path}/map.fits --healpix {tmp_path}/sky.fits"
    options = f"--nside 4 --distances 300,800 --fill {tmp_path}/part.fits"
    done = command(f"export {positive_run.path} {targets} {options}")
    assert done.exit_code == 0, done.output
    cube = read_fits(tmp_path / "map.fits")
    filled = cube.arrays["filled"] == 1
    expected = (cube.arrays["support"] <= 0) & (cube.points[..., 0] >= 200.0)
    np.testing.assert_array_equal(filled, expected)
    np.testing.assert_allclose(cube.arrays["p50"][filled], LEVEL, rtol=1e-5)
    assert (read_healpix(tmp_path / "sky.fits").filled == 2).any()


def test_exported_maps_say_where_every_value_is_from(
    positive_run, other_file, tmp_path
):
    other = of_cube(other_file, read_fits(other_file), blank=True)
    targets = {
        "healpix": [tmp_path / "sky.fits"],
        "fits": [tmp_path / "map.fits"],
        "image": [tmp_path / "image.fits"],
    }
    distances = (100.0, 300.0, 500.0)
    options = ExportOptions(
        nside=8,
        distances=distances,
        field=Field(pixel=6.0),
        fill=other,
        fill_beyond="stars",
        ordering="ring",
    )
    targets["zarr"] = [tmp_path / "map.zarr"]
    done = export_run(positive_run.path, targets, options)
    assert [note for note in done.notes if "not filled" in note] == [
        "map.zarr holds the map alone: not filled"
    ]
    maps, own = read_healpix(tmp_path / "sky.fits"), dustmap.open_map(positive_run.path)
    assert np.isfinite(maps.mean).all() and set(np.unique(maps.filled)) >= {0.0, 2.0}
    filled = own.continued(other, "stars")
    lon, lat = healpy.pix2ang(8, np.arange(768), nest=True, lonlat=True)
    for row, distance in enumerate(distances):
        where = at(lon, lat, np.full(768, distance))
        found, flags = filled.query(where, integrated=True, return_flags=True)
        np.testing.assert_allclose(maps.mean[row], found.value, rtol=0.02)
        np.testing.assert_array_equal(maps.filled[row] > 0, flags["filled"])
        np.testing.assert_array_equal(maps.filled[row] == 2, flags["joined"])
    cube = read_fits(tmp_path / "map.fits")
    hole = cube.arrays["support"] <= 0
    np.testing.assert_array_equal(cube.arrays["filled"] == 1, hole)
    np.testing.assert_allclose(cube.arrays["p50"][hole], LEVEL, rtol=1e-5)
    assert set(np.unique(fits.getdata(tmp_path / "image.fits", "FILLED"))) >= {0.0, 2.0}
    assert "mean" in repr(dustmap.open_map(tmp_path / "sky.fits"))
    again = dustmap.open_map(tmp_path / "map.fits").answers
    assert "filled" not in again.kinds(integrated=False)
