"""A FITS cube gives back what was written, in every reader, or is refused."""

import numpy as np
import pytest
from astropy.io import fits
from astropy.wcs import WCS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipelines.bands import conversion
from pipelines.base.errors import InputError
from pipelines.cubes.cube import Cube
from pipelines.cubes.sky import Curves
from pipelines.export.exporters import with_change
from pipelines.formats.citation import citation_block
from pipelines.formats.fits import read_cube_and_curves, read_fits, write_fits


def make_cube(values=None, meta=None):
    """A cube in which no two axes and no two cells are alike."""
    if values is None:
        values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    z, y, x = values.shape
    return Cube(
        x=-20.3 + 10.1 * np.arange(x),
        y=-6.0 + 4.0 * np.arange(y),
        z=-1.0 + 0.5 * np.arange(z),
        arrays={"mean": values, "std": values + 1, "support": values * 0},
        meta=meta or {"version": "0.1.0"},
    )


@settings(max_examples=15, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=6),
        elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.just(np.nan),
    )
)
def test_a_cube_comes_back(tmp_path_factory, values):
    written = make_cube(values)
    path = tmp_path_factory.mktemp("fits") / "map.fits"
    write_fits(path, written)
    read = read_fits(path)
    for axis in "xyz":
        np.testing.assert_allclose(
            getattr(read, axis), getattr(written, axis), rtol=1e-13, atol=1e-11
        )
    assert list(read.arrays) == ["mean", "std", "support"]
    for name, array in written.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert read.arrays[name].dtype == np.float32
        assert read.arrays[name].dtype.isnative
    assert read.unit == "mag pc-1"


@settings(max_examples=25, deadline=None)
@given(text=st.text(max_size=400) | st.text(' \\"a', max_size=400))
@example(text=" " * 500)
@example(text="a " * 500)
def test_provenance_of_any_length_comes_back(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fits") / "map.fits"
    meta = {"configuration": {"note": text, "path": "/x" * 500}, "n": [1, None, 0.5]}
    write_fits(path, make_cube(meta=meta))
    assert read_fits(path).meta == meta


def test_astropy_finds_a_standard_file_with_a_linear_frame_in_parsecs(tmp_path):
    write_fits(tmp_path / "map.fits", make_cube())
    with fits.open(tmp_path / "map.fits", checksum=True) as hdus:
        hdus.verify("exception")
        assert [hdu.name for hdu in hdus] == ["PRIMARY", "MEAN", "STD", "SUPPORT"]
        assert hdus[0].data is None
        assert "HISTORY" in hdus[0].header
        assert hdus["MEAN"].header["BUNIT"] == "mag pc-1"
        assert hdus["SUPPORT"].header["BUNIT"] == ""
        assert hdus["MEAN"].header["BITPIX"] == -32
        assert hdus["MEAN"].data[1, 3, 2] == 1 * 20 + 3 * 5 + 2
        wcs = WCS(hdus["MEAN"].header)
    assert list(wcs.world_axis_units) == ["pc"] * 3
    np.testing.assert_allclose(
        wcs.wcs_pix2world([[2, 3, 1]], 0), [[-20.3 + 20.2, 6.0, -0.5]]
    )


def test_a_flipped_byte_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "map.fits"
    write_fits(path, make_cube())
    content, whole, unseen = path.read_bytes(), read_fits(path), 0
    rng = np.random.default_rng(5)
    offsets = rng.choice(len(content), size=120, replace=False)
    for offset in offsets:
        damaged = bytearray(content)
        damaged[offset] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = read_fits(path)
        except InputError:
            continue
        # In what follows a header's END.
        unseen += 1
        assert found.meta == whole.meta
        for name, array in whole.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)
    assert unseen < len(offsets) / 2


@pytest.mark.parametrize("kept", [0, 8, -2880, -1])
def test_a_truncated_file_is_noticed(tmp_path, kept):
    path = tmp_path / "map.fits"
    write_fits(path, make_cube())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"map\.fits"):
        read_fits(path)


def test_a_cube_in_other_units_than_parsecs_is_refused(tmp_path):
    path = tmp_path / "map.fits"
    write_fits(path, make_cube())
    with fits.open(path) as hdus:
        for hdu in hdus[1:]:
            hdu.header["CUNIT1"] = "kpc"
        hdus.writeto(tmp_path / "other.fits", checksum=True)
    with pytest.raises(InputError, match="axis 1 = X"):
        read_fits(tmp_path / "other.fits")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "note.txt").write_text("no map")
    for name in ("note.txt", "absent.fits"):
        with pytest.raises(InputError, match="is no"):
            read_fits(tmp_path / name)
    fits.PrimaryHDU(np.zeros(3)).writeto(tmp_path / "other.fits", checksum=True)
    with pytest.raises(InputError, match="NEXTEND"):
        read_fits(tmp_path / "other.fits")


def test_band_conversion_and_citation_have_cards_of_their_own(tmp_path):
    catalogue = {
        "name": "a",
        "title": "A",
        "references": ["Maíz 2014; " + "Long et al. 2020, " * 9 + "doi:10.1051/1"],
        "band": "A_V",
    }
    inputs = [{"name": "stars.parquet", "sha256": "0f" * 32}]
    meta = {
        "program": "dustmap 0.1.0",
        "extinction_band": "A_V",
        "inputs": inputs,
        "citation": citation_block([catalogue], "A_V", inputs),
    }
    change = conversion("A_V", "A_G", curve="F19", r_v=3.3)
    meta = with_change(meta, change)
    write_fits(tmp_path / "map.fits", make_cube(meta=meta))
    assert read_fits(tmp_path / "map.fits").meta == meta
    header = fits.getheader(tmp_path / "map.fits")
    assert (header["EXTBAND"], header["BANDFROM"]) == ("A_G", "A_V")
    assert (header["EXTCURVE"], header["R_V"]) == ("F19", 3.3)
    assert (header["AT_AV"], header["STAR_T"]) == (1.0, 5800.0)
    assert header["BANDFAC"] == pytest.approx(change.factor)
    assert header["CREATOR"] == "dustmap 0.1.0" and header["LICENSE"] == "BSD-3-Clause"
    assert header["PAPER1"].startswith("Hierarchical Inducing Point")
    assert header["CITE1"] == catalogue["references"][0].replace("í", "i").strip()
    assert header["DOI1"] == "10.1051/1" and header["DOI2"].startswith("10.3847/")
    assert header["INPUT1"] == "stars.parquet" and "SHA1" not in header


def test_curves_are_read_back_beside_the_cube(tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "map.fits"
    mean = rng.uniform(0, 1, (3, 48)).cumsum(axis=0).astype(np.float32)
    mean[2, :7] = np.nan
    curves = Curves(
        distances=np.array([1.5, 2.0, 4.0]),
        nodes=np.arange(3),
        arrays={"mean": mean.T},
        last_star=rng.uniform(0, 4, 48).astype(np.float32),
        meta={"estimate": "kriged"},
    )
    cube = make_cube()
    write_fits(path, cube, curves)
    found, again = read_cube_and_curves(path)
    assert again is not None and again.meta["estimate"] == "kriged"
    np.testing.assert_array_equal(again.mean, mean)
    np.testing.assert_array_equal(again.distances, curves.distances)
    np.testing.assert_array_equal(again.last_star, curves.last_star)
    for name, values in cube.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], read_fits(path).arrays[name])
        np.testing.assert_allclose(found.arrays[name], values, rtol=1e-6)
    write_fits(tmp_path / "bare.fits", cube)
    assert read_cube_and_curves(tmp_path / "bare.fits")[1] is None
