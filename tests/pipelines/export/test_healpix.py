"""Sky maps come back, and healpy reads the same sky in either ordering."""

from dataclasses import replace

import healpy
import numpy as np
import pytest
from astropy.io import fits
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipelines.base.errors import InputError
from pipelines.cubes.sky import SkyMaps
from pipelines.formats.healpix import read_healpix, write_healpix


def make_maps(nside=4, distances=(100.0, 333.25, 2000.0)):
    """Maps that differ in every pixel, with a hole in the farthest."""
    n, npix = len(distances), 12 * nside**2
    mean = np.arange(n * npix, dtype=np.float32).reshape(n, npix)
    mean[-1, 7] = np.nan
    return SkyMaps(
        distances=np.array(distances),
        arrays={"mean": mean, "std": mean + np.float32(0.5)},
        meta={"version": "0.1.0", "note": "x " * 200},
    )


@settings(max_examples=15, deadline=None)
@given(data=st.data(), nside=st.sampled_from([1, 2, 4, 16]), n=st.integers(1, 3))
def test_maps_come_back(tmp_path_factory, data, nside, n):
    values = hnp.arrays(
        np.float32,
        (n, 12 * nside**2),
        elements=st.floats(-1e6, 1e6, width=32) | st.just(np.nan),
    )
    written = SkyMaps(
        distances=np.cumsum(np.full(n, 12.5)),
        arrays={name: data.draw(values) for name in ("mean", "std")},
        meta={"n": n},
    )
    path = tmp_path_factory.mktemp("healpix") / "sky.fits"
    write_healpix(path, written)
    read = read_healpix(path)
    np.testing.assert_array_equal(read.distances, written.distances)
    np.testing.assert_array_equal(read.mean, written.mean)
    np.testing.assert_array_equal(read.arrays["std"], written.arrays["std"])
    assert read.meta == written.meta


@pytest.mark.parametrize("ordering", ["nested", "ring"])
def test_healpy_reads_each_column_as_nested_and_as_ring(tmp_path, ordering):
    maps = make_maps(nside=16)
    write_healpix(tmp_path / "sky.fits", maps, ordering=ordering)
    for field, expected in enumerate([*maps.mean, *maps.arrays["std"]]):
        expected = np.where(np.isnan(expected), healpy.UNSEEN, expected)
        nested = healpy.read_map(tmp_path / "sky.fits", nest=True, field=field)
        np.testing.assert_allclose(nested, expected, rtol=1e-6)
        ring = healpy.read_map(tmp_path / "sky.fits", nest=False, field=field)
        np.testing.assert_allclose(ring, healpy.reorder(expected, n2r=True), rtol=1e-6)
        assert not np.allclose(ring, nested)


def test_maps_in_ring_order_come_back_with_their_last_stars(tmp_path):
    maps = replace(make_maps(nside=16), last_star=np.arange(3072.0))
    write_healpix(tmp_path / "ring.fits", maps, ordering="ring")
    assert fits.getheader(tmp_path / "ring.fits", 1)["ORDERING"] == "RING"
    read = read_healpix(tmp_path / "ring.fits")
    np.testing.assert_array_equal(read.mean, maps.mean)
    np.testing.assert_array_equal(read.last_star, maps.last_star)
    far = healpy.read_map(tmp_path / "ring.fits", field=6)
    np.testing.assert_array_equal(far, healpy.reorder(maps.last_star, n2r=True))
    with pytest.raises(InputError, match="spiral"):
        write_healpix(tmp_path / "other.fits", maps, ordering="spiral")


def test_the_header_states_frame_ordering_units_and_distances(tmp_path):
    write_healpix(tmp_path / "sky.fits", make_maps())
    with fits.open(tmp_path / "sky.fits", checksum=True) as hdus:
        hdus.verify("exception")
        header = hdus[1].header
        assert hdus[1].columns.names == [
            "MEAN_100PC",
            "MEAN_333P25PC",
            "MEAN_2000PC",
            "STD_100PC",
            "STD_333P25PC",
            "STD_2000PC",
        ]
        assert set(hdus[1].columns.units) == {"mag"}
    assert header["ORDERING"] == "NESTED"
    assert header["COORDSYS"] == "G"
    assert header["NSIDE"] == 4
    assert [header[f"DIST{i}"] for i in (1, 2, 3)] == [100.0, 333.25, 2000.0]


@pytest.mark.parametrize(
    ("keyword", "value"), [("ORDERING", "SPIRAL"), ("COORDSYS", "C"), ("PIXTYPE", "?")]
)
def test_another_convention_is_refused(tmp_path, keyword, value):
    write_healpix(tmp_path / "sky.fits", make_maps())
    with fits.open(tmp_path / "sky.fits") as hdus:
        hdus[1].header[keyword] = value
        hdus.writeto(tmp_path / "other.fits", checksum=True)
    with pytest.raises(
        InputError,
        match=f"{keyword} is '\\{value}'"
        if value == "?"
        else f"{keyword} is '{value}'",
    ):
        read_healpix(tmp_path / "other.fits")


def test_a_map_of_another_program_is_refused(tmp_path):
    healpy.write_map(tmp_path / "other.fits", np.zeros(48, dtype=np.float32))
    with pytest.raises(InputError, match=r"other\.fits"):
        read_healpix(tmp_path / "other.fits")


def test_quantiles_come_back_and_stand_behind_mean_and_std(tmp_path):
    maps = make_maps(nside=4)
    names = ("p2_5", "p16", "p50", "p84", "p97_5")
    quantiles = {n: maps.mean + np.float32(i) for i, n in enumerate(names, start=10)}
    whole = maps.arrays | quantiles
    write_healpix(tmp_path / "sky.fits", replace(maps, arrays=whole))
    found = read_healpix(tmp_path / "sky.fits")
    assert tuple(found.arrays)[2:] == names
    for name, values in whole.items():
        np.testing.assert_array_equal(found.arrays[name], values)
    median = healpy.read_map(tmp_path / "sky.fits", nest=None, field=4 * 3 + 1)
    np.testing.assert_array_equal(median, quantiles["p50"][1])


def test_columns_out_of_order_are_refused(tmp_path):
    write_healpix(tmp_path / "sky.fits", make_maps())
    with fits.open(tmp_path / "sky.fits") as hdus:
        hdus[1].columns.change_name("STD_100PC", "P50_100PC")
        hdus.writeto(tmp_path / "other.fits", checksum=True)
    with pytest.raises(InputError, match="expected a mean for each"):
        read_healpix(tmp_path / "other.fits")


def test_more_distances_than_a_table_has_columns_are_refused(tmp_path):
    maps = make_maps(nside=1, distances=np.arange(1.0, 501.0))
    with pytest.raises(InputError, match="room for 499 maps"):
        write_healpix(tmp_path / "sky.fits", maps)


def test_the_column_of_last_stars_counts_too(tmp_path):
    def maps(count):
        made = make_maps(nside=1, distances=np.arange(1.0, count + 1))
        return replace(made, last_star=np.arange(12.0))

    write_healpix(tmp_path / "sky.fits", maps(499))
    assert read_healpix(tmp_path / "sky.fits").mean.shape == (499, 12)
    with pytest.raises(InputError, match="room for 499 maps"):
        write_healpix(tmp_path / "more.fits", maps(500))


def test_maps_that_an_earlier_version_filled_are_refused(tmp_path):
    write_healpix(tmp_path / "sky.fits", make_maps(distances=np.array([100.0])))
    with fits.open(tmp_path / "sky.fits") as hdus:
        column = hdus[1].columns[0]
        filled = fits.Column("FILLED_100PC", column.format, array=column.array)
        columns = fits.ColDefs([*hdus[1].columns, filled])
        table = fits.BinTableHDU.from_columns(columns, header=hdus[1].header)
        fits.HDUList([hdus[0], table]).writeto(tmp_path / "old.fits", checksum=True)
    with pytest.raises(InputError, match=r"old\.fits .*--fill"):
        read_healpix(tmp_path / "old.fits")
