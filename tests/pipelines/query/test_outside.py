"""Beyond its box a map goes on with its prior's disc, and says so."""

import pickle

import healpy
import numpy as np
import one_cloud
import pytest
import ray_field
from astropy.table import Table

import dustmap
from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.base.pixels import pixel_directions
from pipelines.catalog.schema import write_stars
from pipelines.config import FitConfig
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions, parse_box
from pipelines.fit import fit
from pipelines.maps.places import Places
from pipelines.run.folder import read_run

pytestmark = pytest.mark.usefixtures("no_baseline")
HEIGHT = 120.0
at = ray_field.at
# In the box (210 pc in z) and beyond, towards b = 60 deg and in the plane.
PLACES = at(90.0, [60.0, 60.0, 60.0, 60.0, 0.0], [100.0, 300.0, 2000.0, np.inf, 900.0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disc")
    write_stars(folder / "stars.parquet", one_cloud.catalogue(400), overwrite=False)
    plain = one_cloud.positive_settings()
    plain["prior"] |= {"mean": "exponential-disc", "scale_height": HEIGHT, "std": 0.8}
    fit(folder / "stars.parquet", folder / "run", FitConfig.model_validate(plain))
    names = {"zarr": "map.zarr", "fits": "map.fits", "healpix": "sky.fits"}
    targets = {kind: [folder / name] for kind, name in names.items()}
    export(folder / "run", targets, ExportOptions())
    store = folder / "red.zarr"
    options = ExportOptions(declare_band="A_V", band="A_Ks")
    export(folder / "run", {"zarr": [store]}, options)
    return folder / "run"


@pytest.fixture(scope="module")
def dust(run):
    return dustmap.open_map(run, outside="prior")


def test_the_prior_is_added_from_the_face_on(run, dust):
    own, answer = dustmap.open_map(run), dust.extinction(PLACES)
    inside = own.extinction(PLACES[:1])
    for whole, part in ((answer.mean, inside.mean), (answer.std, inside.std)):
        assert whole[0] == part[0]
    top = own.answers.box.upper[2] / np.sin(np.radians(60))
    face = own.extinction(at(90.0, 60.0, [top * (1 - 1e-9)]))
    law = read_run(own.path).plan.scales.mean
    # From face to place, upwards in a disc: R changes by little.
    slope = np.sin(np.radians(60)) / HEIGHT
    ends = np.array([300.0, 2000.0, np.inf])
    added = law.value * (np.exp(-slope * top) - np.exp(-slope * ends)) / slope
    found = (answer.mean[1:4] - face.mean).value
    np.testing.assert_allclose(found, added, rtol=0.05)
    np.testing.assert_allclose(
        answer.flags["prior_share"][1:4], found / answer.mean[1:4].value
    )
    assert answer.std[3] > answer.std[1] > face.std[0]
    assert answer.flags["inside"].tolist() == [True, False, False, False, False]
    assert answer.flags["beyond_box"].tolist() == [False, True, True, True, True]
    assert answer.flags["prior_share"][0] == 0
    assert not answer.flags["to_edge"].any()
    sigma = np.sqrt(np.log1p((answer.std / answer.mean).value ** 2))
    median = answer.mean * np.exp(-(sigma**2) / 2)
    np.testing.assert_allclose(answer.quantiles["p50"][1:], median[1:])
    total, flags = dust.query(PLACES, integrated=True, total=True, return_flags=True)
    assert total[0] == total[2] == answer.mean[3] and flags["beyond_box"].all()
    missing = own.query(PLACES[1:3], integrated=True)
    assert np.isnan(missing).all()


def test_extinctions_do_not_jump_at_the_face(dust):
    far = np.linspace(200.0, 300.0, 400)
    for mode in ("mean", "std", "median"):
        values = dust.query(at(90.0, 60.0, far), integrated=True, mode=mode).value
        assert np.abs(np.diff(values)).max() < 0.02 * values[-1]


def test_densities_beyond_are_the_prior_s(run, dust):
    where, plan = at(10.0, 70.0, [500.0]), read_run(dust.path).plan
    answer = dust.density(where)
    x = np.asarray(where.cartesian.xyz.value).T
    prior = plan.mean.value * np.exp(plan.std**2 / 2) * np.exp(-x[0, 2] / HEIGHT)
    assert answer.mean[0].value == pytest.approx(prior, rel=0.1)
    relative = (answer.std / answer.mean)[0].value
    assert relative == pytest.approx(np.sqrt(np.expm1(plan.std**2)))
    assert answer.flags["prior_share"][0] == 1


def test_draws_have_the_moments_and_depend_on_no_other_place(dust):
    for integrated in (True, False):
        far = PLACES[[0, 1, 2, 4]]
        drawn = dust.query(far, integrated=integrated, mode="samples").value
        mean = dust.query(far, integrated=integrated).value
        np.testing.assert_allclose(drawn.mean(axis=1), mean, rtol=0.1)
        alone = dust.query(far[2], integrated=integrated, mode="samples").value
        np.testing.assert_array_equal(alone, drawn[2])
        rng = np.random.default_rng(4)
        one = dust.query(far, integrated=integrated, mode="random_sample", rng=rng)
        chosen = np.random.default_rng(4).integers(drawn.shape[1])
        np.testing.assert_array_equal(one.value, drawn[:, chosen])
    std = dust.query(far, integrated=False, mode="std").value
    assert drawn[2].std() == pytest.approx(std[2], rel=0.3)
    # Outwards no sample decreases, but for rounding.
    far = np.linspace(10.0, 3000.0, 200)
    for l, b in ((90.0, 60.0), (33.0, 8.0)):  # noqa: E741
        drawn = dust.query(at(l, b, far), integrated=True, mode="samples").value
        assert np.diff(drawn, axis=0).min() > -1e-7 * drawn.max()


def test_exports_hold_the_prior(run, dust):
    far = PLACES[1:]
    expected = dust.extinction(far)
    store = dustmap.open_map(run.parent / "map.zarr", outside="prior")
    answer = pickle.loads(pickle.dumps(store)).extinction(far)
    np.testing.assert_allclose(answer.mean, expected.mean, rtol=0.05)
    np.testing.assert_allclose(answer.std, expected.std, rtol=0.1)
    assert answer.flags["beyond_box"].all()
    cube = dustmap.open_map(run.parent / "map.fits", outside="prior")
    added = dust.answers.moments, cube.query(far, integrated=True)
    np.testing.assert_allclose(added[1], expected.mean, rtol=0.1)
    # In another band.
    red = dustmap.open_map(run.parent / "red.zarr", outside="prior")
    answer, flags = red.query(far, integrated=True, return_flags=True)
    known, own = store.query(far, integrated=True, return_flags=True)
    np.testing.assert_allclose(answer, factor("A_V", "A_Ks") * known, rtol=1e-4)
    np.testing.assert_allclose(flags["prior_share"], own["prior_share"], rtol=1e-4)


def test_sky_maps_go_on(run, dust):
    own = dustmap.open_map(run).answers.sky_maps([150.0, 500.0], 8)
    maps = dust.answers.sky_maps([150.0, 500.0], 8)
    gap = np.isnan(own.mean)
    assert 0.2 < gap[1].mean() < 1
    np.testing.assert_array_equal(maps.beyond_box, gap)
    lon, lat = healpy.pix2ang(8, np.flatnonzero(gap[1]), nest=True, lonlat=True)
    expected = dust.extinction(at(lon, lat, 500.0))
    for name, array in maps.arrays.items():
        values = {"mean": expected.mean, "std": expected.std, **expected.quantiles}
        np.testing.assert_allclose(array[1][gap[1]], values[name].value, rtol=0.2)
        np.testing.assert_allclose(array[~gap], own.arrays[name][~gap], rtol=1e-6)
    # The share counts from the last star on, in the box too.
    share, ends = maps.prior_share, own.last_star < 150.0
    assert (share[1][gap[1]] > expected.flags["prior_share"] - 0.02).all()
    np.testing.assert_array_equal(share[0][~gap[0]] > 0, ends[~gap[0]])


def test_sky_maps_of_a_store_have_no_holes_at_the_face(run):
    store = dustmap.open_map(run.parent / "map.zarr")
    # Where curves end at their last node, up to half a cell before the face.
    far = np.arange(200.0, 260.0, 2.5)
    own = store.answers.sky_maps(far)
    maps = store.with_outside("prior").answers.sky_maps(far)
    ends = store.answers.reach(Places.of_points(pixel_directions(own.nside)))
    assert not (np.isnan(own.mean) & (far[:, None] < 0.999 * ends)).any()
    for array in maps.arrays.values():
        assert np.isfinite(array).all()


def test_tables_and_the_command_line(run, command, tmp_path):
    far = [*PLACES.distance.pc, np.nan]
    rows = Table([[90.0] * 6, [*PLACES.b.deg, 0.0], far])
    rows = Table(rows, names=("l", "b", "distance"), units=("deg", "deg", "pc"))
    found = dustmap.predict(run, rows, outside="prior")
    assert np.isnan(found["extinction_mean"]).tolist() == [False] * 5 + [True]
    # A density at infinity is undefined, and no reason to refuse the other rows.
    assert np.isnan(found["density_mean"]).tolist() == [False] * 3 + [True, False, True]
    assert found["beyond_box"].sum() == 4
    assert "beyond_box" not in dustmap.predict(run, rows).colnames
    rows.write(tmp_path / "places.ecsv")
    for verb in ("query", "predict"):
        line = f"{verb} {run} {tmp_path}/places.ecsv -o {tmp_path}/{verb}.ecsv"
        result = command(f"{line} --outside prior")
        assert "1 inside" in result.output and "4 beyond box" in result.output
        assert "1 no distance" in result.output
        assert "outside the map" not in result.output
        table = Table.read(tmp_path / f"{verb}.ecsv")
        if verb == "query":
            ends = at([90.0] * 6, rows["b"], far)
            known = dustmap.open_map(run, outside="prior").extinction(ends)
        share = (
            found["prior_share"] if verb == "predict" else known.flags["prior_share"]
        )
        np.testing.assert_allclose(table["prior_share"], share, rtol=1e-4)
    one = f"query {run} --l 90 --b 60 --distance 2000"
    assert "beyond box" in command(f"{one} --outside prior").output
    assert "outside the map" in command(one).output


def test_what_has_no_known_prior_outside_is_refused(
    run, dust, store, positive_run, command
):
    cut = run.parent / "cut.zarr"
    part = ExportOptions(box=parse_box("x=-200:200,y=-200:200,z=-150:150"))
    export(run, {"zarr": [cut]}, part)
    for path in (run.parent / "sky.fits", store, cut):
        with pytest.raises(InputError, match=r"map\.zarr"):
            dustmap.open_map(path, outside="prior")
    with pytest.raises(InputError, match="mean density is a disc"):
        dustmap.open_map(positive_run.path, outside="prior")
    with pytest.raises(InputError, match="nan or prior"):
        dustmap.open_map(run, outside="zero")
    with pytest.raises(InputError, match="undefined"):
        dust.query(PLACES[3:4], integrated=False)
    with pytest.raises(InputError, match="without"):
        dust.distance_at(PLACES, 0.1)


def test_a_normal_density_is_known_to_finite_distances(tmp_path):
    write_stars(tmp_path / "stars.parquet", one_cloud.catalogue(300), overwrite=False)
    plain = one_cloud.settings()
    plain["prior"] |= {"mean": "exponential-disc", "scale_height": HEIGHT}
    fit(tmp_path / "stars.parquet", tmp_path / "run", FitConfig.model_validate(plain))
    dust = dustmap.open_map(tmp_path / "run", outside="prior")
    answer = dust.extinction(PLACES[:3])
    assert np.isfinite(answer.std).all() and answer.std[2] > answer.std[1]
    with pytest.raises(InputError, match="finite"):
        dust.extinction(PLACES)
    drawn = dust.query(PLACES[1:3], integrated=True, mode="samples").value
    np.testing.assert_allclose(drawn.std(axis=1), answer.std[1:3].value, rtol=0.5)
