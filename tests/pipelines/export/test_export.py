"""A whole export: the same map in every file, in the band, part and place asked for."""

import json

import healpy
import numpy as np
import pytest
from astropy.io import fits

from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.base.pixels import pixel_directions
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions, parse_box
from pipelines.formats.fits import read_fits
from pipelines.formats.healpix import read_healpix
from pipelines.formats.zarr import read_curves, read_zarr
from pipelines.maps.places import Places
from pipelines.query import open_map

DISTANCES = (70.0, 140.0, 210.0)


def export_all(run, folder, more=(), **choices):
    """All products of a run in a folder."""
    folder.mkdir()
    names = {"zarr": "map.zarr", "fits": "map.fits", "healpix": "sky.fits"}
    targets = {kind: [folder / name] for kind, name in names.items()}
    given = {"nside": 4, "distances": DISTANCES}
    return export(run.path, targets, ExportOptions(**{**given, **choices}))


@pytest.fixture(scope="module")
def plain(positive_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "all"
    export_all(positive_run, folder)
    return folder


@pytest.fixture(scope="module")
def green(positive_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("green") / "all"
    return folder, export_all(
        positive_run, folder, band="A_G", declare_band="A_V", r_v=3.3
    )


def test_every_file_holds_the_same_map(plain):
    cube, images = read_zarr(plain / "map.zarr"), read_fits(plain / "map.fits")
    for name, array in cube.arrays.items():
        np.testing.assert_array_equal(images.arrays[name], array)
    maps = read_healpix(plain / "sky.fits")
    dust = open_map(plain / "map.zarr").answers
    towards = Places.of_points(pixel_directions(4))
    for row, distance in enumerate(DISTANCES):
        places = towards.at(np.full(len(towards), distance))
        moments = dust.moments(places, ("mean", "std", "p50"), integrated=True)
        for name, values in moments.items():
            np.testing.assert_allclose(maps.arrays[name][row], values, 1e-5)


def test_maps_of_the_sky_say_where_the_box_ends(positive_run, tmp_path):
    box = positive_run.box
    inner = min(map(abs, (*box.lower, *box.upper)))
    targets = {"healpix": [tmp_path / "sky.fits"]}
    options = ExportOptions(nside=8, distances=(inner, 1.2 * inner))
    (note,) = export(positive_run.path, targets, options).notes
    unseen = healpy.read_map(tmp_path / "sky.fits", field=1) == healpy.UNSEEN
    part = f"outside the map is {100 * unseen.mean():.2g}% of the sky at"
    assert unseen.any() and part in note and f"{1.2 * inner:g} pc" in note


def test_one_direction_is_the_same_in_every_file(plain):
    lon, lat = 18.0, -9.0  # near the cloud, off every axis
    ring = healpy.ang2pix(4, lon, lat, lonlat=True)
    l, b = healpy.pix2ang(4, ring, lonlat=True)  # noqa: E741
    where = np.array([l]), np.array([b]), np.array([DISTANCES[2]])
    places = Places(l=where[0], b=where[1], distance=where[2], shape=(1,))
    far = healpy.read_map(plain / "sky.fits", field=2)[ring]
    stored = open_map(plain / "map.zarr").answers
    found = stored.moments(places, ("mean",), integrated=True)["mean"]
    assert far == pytest.approx(found[0], rel=1e-5)


def test_a_converted_map_is_scaled_everywhere_and_says_so_everywhere(plain, green):
    folder, done = green
    ratio = factor("A_V", "A_G", r_v=3.3)
    assert done.change.target == "A_G" and done.factor == ratio
    for read in (read_zarr, read_curves):
        before, after = read(plain / "map.zarr"), read(folder / "map.zarr")
        for name, array in before.arrays.items():
            scale = 1.0 if name == "support" else ratio
            np.testing.assert_allclose(after.arrays[name], scale * array, rtol=2e-6)
    before = healpy.read_map(plain / "sky.fits", field=None, nest=True)
    after = healpy.read_map(folder / "sky.fits", field=None, nest=True)
    seen = before != healpy.UNSEEN
    scale = np.full((len(before), 1), ratio)
    # The distance of the last stars comes after all extinctions.
    scale[-1] = 1.0
    np.testing.assert_allclose(after[seen], (scale * before)[seen], rtol=2e-6)
    for name in ("map.fits", "sky.fits"):
        header = fits.getheader(folder / name)
        assert (header["EXTBAND"], header["BANDFROM"]) == ("A_G", "A_V")
    group = json.loads((folder / "map.zarr" / "zarr.json").read_text())
    attributes = group["attributes"]
    citation = json.loads(attributes["citation"])
    assert attributes["band"] == citation["band"] == "A_G"
    assert json.loads(attributes["provenance"])["band_conversions"][0]["r_v"] == 3.3
    (curve, _) = citation["extinction_curve"]
    assert curve["references"][0].endswith("doi:10.3847/1538-4357/accb59")


def test_a_part_of_the_map_is_a_part_of_the_whole(positive_run, plain, tmp_path):
    box = parse_box("x=-140:,y=:140")
    export_all(positive_run, tmp_path / "part", box=box, sphere=280.0)
    part, whole = read_zarr(tmp_path / "part/map.zarr"), read_zarr(plain / "map.zarr")
    assert (part.x[0], part.x[-1], part.y[-1]) == (-140.0, 280.0, 140.0)
    Z, Y, X = np.meshgrid(part.z, part.y, part.x, indexing="ij")
    points = np.stack([X, Y, Z], axis=-1)
    expected = whole.sample("mean", points)
    inside = np.linalg.norm(points, axis=-1) <= 280.0
    np.testing.assert_allclose(part.arrays["mean"][inside], expected[inside], 1e-6)
    assert np.isnan(part.arrays["mean"][~inside]).all()
    assert part.meta["cut"]["box"] == {"x": [-140.0, None], "y": [None, 140.0]}
    assert part.meta["cut"]["sphere"] == 280.0
    # To the next node of the curves.
    assert 280.0 <= read_curves(tmp_path / "part/map.zarr").distances[-1] < 330.0
    assert open_map(tmp_path / "part/map.zarr").has_samples
    images = read_fits(tmp_path / "part/map.fits")
    np.testing.assert_array_equal(images.x, part.x)
    np.testing.assert_array_equal(images.arrays["mean"], part.arrays["mean"])


def test_a_gaussian_map_has_no_quantiles(cloud_run, tmp_path):
    export_all(cloud_run, tmp_path / "all")
    assert list(read_healpix(tmp_path / "all/sky.fits").arrays) == ["mean", "std"]
    assert list(read_curves(tmp_path / "all/map.zarr").arrays) == ["mean", "std"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"band": "A_G"}, "not stated: .*--declare-band A_V"),
        ({"curve": "F19"}, "add --band"),
        ({"r_v": 3.0}, "add --band"),
        ({"band": "A_X", "declare_band": "A_V"}, "there is no band 'X'"),
        ({"distances": (5.0, 1e6)}, "distances extend to"),
        ({"nside": 3}, "power of 2"),
        ({"nside": 512}, "coarser"),
        ({"spacing": 5.0}, "finer"),
        ({"sphere": -5.0}, "above 0 pc"),
        ({"box": {"x": (5.0, -5.0)}}, "from low to high"),
    ],
)
def test_a_choice_that_makes_no_sense_leaves_nothing(
    positive_run, tmp_path, choices, message
):
    with pytest.raises(InputError, match=message):
        export_all(positive_run, tmp_path / "all", **choices)
    assert list((tmp_path / "all").iterdir()) == []


def test_what_cannot_be_written_is_said_first(positive_run, tmp_path):
    (tmp_path / "there.fits").write_text("mine")
    for targets, message in (
        ({"fits": [tmp_path / "there.fits"]}, "exists"),
        ({"fits": [tmp_path / "no/there.fits"]}, "make it first"),
        ({"image": [tmp_path / "map.txt"]}, "ends in .fits"),
        ({"fits": [tmp_path / "a"], "healpix": [tmp_path / "a"]}, "name the same path"),
    ):
        with pytest.raises(InputError, match=message):
            export(positive_run.path, targets)
    for product, choices, message in (
        ("healpix", ExportOptions(sphere=100.0), "--zarr or --fits"),
        ("fits", ExportOptions(distances=(1.0,)), "--healpix"),
    ):
        with pytest.raises(InputError, match=message):
            export(positive_run.path, {product: [tmp_path / "a.fits"]}, choices)
    assert (tmp_path / "there.fits").read_text() == "mine"


@pytest.mark.parametrize(
    "text", ["", "x", "x=1", "w=1:2", "x=1:2:3", "x=1:2,x=3:4", "x=a:b", "x=1:2;y=1:2"]
)
def test_a_box_that_is_not_understood_is_refused(text):
    with pytest.raises(InputError, match="--box takes ranges"):
        parse_box(text)


def test_the_verb_says_what_it_converted_by(command, positive_run, tmp_path):
    done = command(
        f"export {positive_run.path} --healpix {tmp_path}/s.fits --distances 70 "
        f"--nside 2 --band 'E(BP-RP)' --declare-band A_V --curve F19 --at-av 2"
    )
    assert done.exit_code == 0, done.output
    ratio = factor("A_V", "E(BP-RP)", curve="F19", at_av=2.0)
    assert f"E(BP-RP) = {ratio:.5g} A_V at A_V = 2 mag" in done.output
    assert "R_V = 3.1, 5800 K through A_BP, A_RP)" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["s.fits"]
    assert read_healpix(tmp_path / "s.fits").meta["extinction_band"] == "E(BP-RP)"
    refused = command(f"export {positive_run.path} --fits {tmp_path}/x --band A_G")
    assert refused.exit_code == 2 and "--declare-band A_V" in refused.output


def test_a_whole_store_is_copied_and_an_interruption_leaves_nothing(
    command, positive_run, tmp_path, monkeypatch
):
    line = f"export {positive_run.path} --zarr {tmp_path}/a.zarr"
    assert command(line).exit_code == 0
    copied = {p.name: p.read_bytes() for p in (tmp_path / "a.zarr").glob("*.json")}
    assert (
        copied["manifest.json"]
        == (positive_run.path / "map.zarr/manifest.json").read_bytes()
    )

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.export.exporters.write_zarr", stop)
    done = command(f"export {positive_run.path} --zarr {tmp_path}/b.zarr --spacing 90")
    assert done.exit_code == 1 and "nothing was written" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]
    itself = command(
        f"export {positive_run.path} --zarr {positive_run.path}/map.zarr --overwrite"
    )
    assert itself.exit_code == 2
