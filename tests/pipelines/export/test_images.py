"""Images, opened by programs that are not ours."""

import warnings

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import fits
from astropy.wcs import WCS

import dustmap
from pipelines.base.errors import InputError
from pipelines.export.exporters import export
from pipelines.export.options import ExportOptions
from pipelines.formats.images import Field

with warnings.catch_warnings():
    # Of names that a newer astropy gives up.
    warnings.simplefilter("ignore")
    from spectral_cube import Projection


def draw(run, path, **options):
    return export(run.path, {"image": [path]}, ExportOptions(**options))


def galactic(lon, lat, distance):
    return SkyCoord(
        l=lon * u.deg, b=lat * u.deg, distance=distance * u.pc, frame="galactic"
    )


@pytest.mark.parametrize("projection", ["CAR", "ZEA", "TAN"])
def test_astropy_finds_the_extinction_of_every_pixel(
    positive_run, tmp_path, projection
):
    field = Field(
        projection=projection, centre=(40.0, 12.0), size=(16.0, 12.0), pixel=2.0
    )
    done = draw(positive_run, tmp_path / "a.fits", field=field, distances=[100.0])
    assert done.notes == []
    dust = dustmap.open_map(positive_run.path)
    with fits.open(tmp_path / "a.fits") as hdus:
        wcs, image = WCS(hdus["MEAN"].header), hdus["MEAN"].data
        assert image.shape == (6, 8) and hdus["STD"].header["BUNIT"] == "mag"
        row, column = np.indices(image.shape)
        sky = wcs.pixel_to_world(column, row).galactic
        found = dust.query(galactic(sky.l.deg, sky.b.deg, 100.0), integrated=True)
        np.testing.assert_allclose(image, found.value, rtol=1e-2)
        middle = wcs.pixel_to_world(3.5, 2.5)
        assert middle.separation(galactic(40, 12, 1)).deg < 1e-6
        # Longitudes grow to the left.
        assert sky.l.deg[0, 0] > sky.l.deg[0, -1]


def test_several_distances_make_a_cube(positive_run, tmp_path):
    field = Field(centre=(40.0, 0.0), size=(12.0, 8.0), pixel=2.0)
    path = tmp_path / "cube.fits"
    draw(positive_run, path, field=field, distances=[50.0, 100.0, 150.0])
    dust = dustmap.open_map(positive_run.path)
    with fits.open(path) as hdus:
        data, wcs = hdus["P50"].data, WCS(hdus["P50"].header)
        assert data.shape == (3, 4, 6) and (np.diff(data, axis=0) > 0).all()
        lon, lat, far = wcs.pixel_to_world_values(2, 1, 2)
        assert far * wcs.wcs.cunit[2].to(u.pc) == pytest.approx(150.0)
        where = galactic(lon, lat, 150.0)
        expected = dust.query(where, integrated=True, mode="median").value
        assert data[2, 1, 2] == pytest.approx(expected, rel=1e-2)
        # A program that knows images of the sky takes a plane of it.
        plane = fits.ImageHDU(data[1], wcs.celestial.to_header())
    path = tmp_path / "uneven.fits"
    with pytest.raises(InputError, match="evenly"):
        draw(positive_run, path, field=field, distances=[50.0, 60.0, 150.0])
    assert Projection.from_hdu(plane).shape == (4, 6)


def test_any_header_gives_the_pixels(positive_run, tmp_path):
    wcs = WCS(naxis=2)
    wcs.wcs.ctype, wcs.wcs.cunit = ["RA---SIN", "DEC--SIN"], ["deg", "deg"]
    wcs.wcs.crval, wcs.wcs.crpix, wcs.wcs.cdelt = [83.8, -5.4], [3, 2], [-0.5, 0.5]
    header = wcs.to_header()
    header["NAXIS"], header["NAXIS1"], header["NAXIS2"] = 2, 5, 4
    header.totextfile(tmp_path / "cards.txt")
    fits.PrimaryHDU(np.zeros((4, 5)), wcs.to_header()).writeto(tmp_path / "image.fits")
    for name in ("cards.txt", "image.fits"):
        path = tmp_path / f"{name}.out.fits"
        field = Field(header=tmp_path / name)
        draw(positive_run, path, field=field, distances=[60.0])
        with fits.open(path) as hdus:
            assert hdus["MEAN"].header["CTYPE1"] == "RA---SIN"
            sky = WCS(hdus["MEAN"].header).pixel_to_world(2, 1)
            assert sky.separation(SkyCoord(83.8, -5.4, unit="deg")).deg < 1e-6
            where = galactic(sky.galactic.l.deg, sky.galactic.b.deg, 60.0)
            found = dustmap.open_map(positive_run.path).query(where, integrated=True)
            assert hdus["MEAN"].data[1, 2] == pytest.approx(found.value, rel=1e-2)
    (tmp_path / "none.txt").write_text("OBJECT  = 'nothing'\n")
    with pytest.raises(InputError, match="celestial"):
        Field(header=tmp_path / "none.txt").wcs()


def test_the_whole_sky_has_pixels_off_the_sky_and_says_what_is_outside(
    positive_run, tmp_path
):
    path = tmp_path / "sky.fits"
    field = Field(projection="MOL", pixel=6.0)
    done = draw(positive_run, path, field=field, distances=[350.0])
    assert "outside the map" in done.notes[0]
    data = fits.getdata(path, "P50")
    assert data.shape == (30, 60) and np.isnan(data[0, 0]) and np.isfinite(data).any()
    row, column = np.indices(data.shape)
    on_sky = np.isfinite(field.wcs().pixel_to_world(column, row).galactic.l.deg)
    # Equal areas: 36 square degrees each.
    assert 36 * on_sky.sum() == pytest.approx(41253, rel=0.02)


@pytest.mark.parametrize(("latitude", "far"), [(0.0, 700.0), (-60.0, 200.0)])
def test_an_image_ends_where_the_box_holds_most_of_it(
    positive_run, tmp_path, latitude, far
):
    path = tmp_path / "a.fits"
    field = Field(projection="ZEA", centre=(5.0, latitude), size=(16, 16), pixel=4.0)
    done = draw(positive_run, path, field=field)
    assert f"to {far:g} pc" in done.notes[0]
    assert np.isnan(fits.getdata(path, "P50")).mean() < 0.1


def test_images_on_the_command_line(command, positive_run, tmp_path):
    line = f"export {positive_run.path} --image {tmp_path}/a.fits --projection ZEA "
    line += (
        "--center 120,-5 --field 16,12 --pixel 120arcmin --distances 80pc --band A_G "
    )
    said = command(line + "--declare-band A_V")
    assert said.exit_code == 0, said.output
    header = fits.getheader(tmp_path / "a.fits", "MEAN")
    assert (header["NAXIS1"], header["NAXIS2"]) == (8, 6)
    assert fits.getheader(tmp_path / "a.fits")["EXTBAND"] == "A_G"
    for wrong in ("--projection XYZ", "--center 1", "--pixel -1", "--header none.fits"):
        said = command(line.replace("a.fits", "b.fits") + f"--declare-band A_V {wrong}")
        assert said.exit_code == 2, wrong
    said = command(f"export {positive_run.path} --fits {tmp_path}/c.fits --pixel 1")
    assert said.exit_code == 2 and "--image" in said.output
