"""Maps of other programs: the numbers that astropy and h5py read, summed by NumPy."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import astropy.units as u
import foreign_maps as made
import h5py
import healpy
import numpy as np
import pytest
import xarray
from astropy.coordinates import SkyCoord
from astropy.io import fits

import dustmap
from pipelines.base.errors import InputError
from pipelines.base.geometry import spherical
from pipelines.formats.foreign import parse_unit

# Index of a cell in z, y, x.
CELLS = np.array([[3, 5, 6], [3, 8, 4], [5, 2, 1]])


def at(l, b, distance) -> SkyCoord:  # noqa: E741
    return SkyCoord(l * u.deg, b * u.deg, distance * u.pc, frame="galactic")


def of_cells(cells=CELLS) -> SkyCoord:
    return at(*spherical(made.FIRST + made.STEP * cells[:, ::-1]))


@cache
def along(*place: float, count: int = 4000) -> float:
    """Sum the trilinear interpolant of the cube along a ray, in plain NumPy."""
    total, length = 0.0, np.linalg.norm(place)
    for share in (np.arange(count) + 0.5) / count:
        index = (share * np.array(place) - made.FIRST) / made.STEP
        low = np.minimum(np.floor(index).astype(int), np.array(made.SHAPE) - 2)
        part = index - low
        for corner in np.ndindex(2, 2, 2):
            weight = np.prod(np.where(np.array(corner) == 1, part, 1 - part))
            total += weight * made.CUBE[tuple((low + corner)[::-1])]
    return total * length / count


def kpc_cube(path: Path) -> Path:
    return made.fits_cube(path, scale="kpc")


def reversed_cube(path: Path) -> Path:
    """An axis that decreases, and axes in the order z, x, y."""
    data = np.transpose(made.CUBE, (1, 2, 0))[::-1]
    image = fits.PrimaryHDU(data)
    last = made.FIRST[1] + made.STEP * (made.SHAPE[1] - 1)
    rows = [("Z", made.FIRST[2], 10.0), ("X", made.FIRST[0], 10.0), ("Y", last, -10.0)]
    for number, (axis, start, step) in enumerate(rows, start=1):
        cards = {"CTYPE": axis, "CUNIT": "pc", "CRPIX": 1.0}
        cards |= {"CRVAL": start, "CDELT": step}
        image.header.update({f"{k}{number}": v for k, v in cards.items()})
    image.header["BUNIT"] = "mag/pc"
    image.writeto(path)
    return path


def dataset() -> xarray.Dataset:
    axes = {
        name: (name, first + made.STEP * np.arange(n), {"units": "pc"})
        for name, first, n in zip("xyz", made.FIRST, made.SHAPE)
    }
    data = (("z", "y", "x"), made.CUBE, {"units": "mag/pc"})
    return xarray.Dataset({"density": data}, coords=axes)


def netcdf(path: Path) -> Path:
    dataset().to_netcdf(path, engine="scipy")
    return path


def zarr_of_xarray(path: Path, version: int = 3) -> Path:
    dataset().to_zarr(path, zarr_format=version, consolidated=False)
    return path


def hdf5(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["mean"], file["std"] = made.CUBE.T, 0.1 * made.CUBE.T
    return path


GRID = {"origin": tuple(made.FIRST), "step": 10.0}
CUBES = {
    "FITS with a WCS": ("m.fits", made.fits_cube, {}),
    "FITS, gzipped": ("m.fits.gz", made.fits_cube, {}),
    "FITS in kpc": ("m.fits", kpc_cube, {}),
    "FITS with reversed axes": ("m.fits", reversed_cube, {}),
    "FITS without axes": ("m.fits", made.bare_cube, {**GRID, "unit": "mag/pc"}),
    "FITS of EXPLORE": (
        "m.fits",
        lambda path: made.bare_cube(path, **made.explore_cards()),
        {},
    ),
    "HDF5 of EXPLORE": ("m.h5", made.explore_hdf5, {}),
    "HDF5 of EXPLORE, z first": (
        "m.h5",
        lambda path: made.explore_hdf5(path, rolled=True),
        {"map_of": "vergely2022"},
    ),
    "HDF5 without axes": ("m.h5", hdf5, {**GRID, "unit": "mag/pc"}),
    "netCDF": ("m.nc", netcdf, {}),
    "zarr 3": ("m.zarr", zarr_of_xarray, {}),
    "zarr 2": ("m.zarr", lambda path: zarr_of_xarray(path, 2), {}),
}


@pytest.mark.parametrize("name", CUBES)
@pytest.mark.filterwarnings("ignore:.*not.*specification:UserWarning")
def test_a_cube_answers_as_its_numbers_do(tmp_path, name):
    file, write, stated = CUBES[name]
    dust = dustmap.open_map(write(tmp_path / file), **stated)
    places = of_cells()
    expected = made.CUBE[tuple(CELLS.T)]
    found = dust.query(places, integrated=False)
    np.testing.assert_allclose(found.to_value("mag/pc"), expected, rtol=1e-5)
    xyz = places.cartesian.xyz.to_value(u.pc).T
    expected = [along(*place) for place in xyz]
    found = dust.query(places, integrated=True)
    np.testing.assert_allclose(found.to_value("mag"), expected, rtol=1e-3)
    outside = dust.query(at([0.0], [0.0], [500.0]), integrated=True, return_flags=True)
    assert np.isnan(outside[0].value).all() and not outside[1]["inside"].any()


def test_std_is_of_the_density_and_nothing_is_made_up(tmp_path):
    dust = dustmap.open_map(made.fits_cube(tmp_path / "m.fits"))
    density, extinction = dust.density(of_cells()), dust.extinction(of_cells())
    np.testing.assert_allclose(density.std, 0.1 * density.mean, rtol=1e-5)
    assert extinction.std is None
    assert not extinction.quantiles | density.quantiles
    for options in ({"mode": "median"}, {"mode": "percentile", "pct": 16}):
        with pytest.raises(InputError, match=r"mean, std"):
            dust.query(of_cells(), integrated=False, **options)
    with pytest.raises(InputError, match="has no std of the extinction"):
        dust.query(of_cells(), integrated=True, mode="std")


@pytest.mark.parametrize(
    ("unit", "factor", "band"),
    [
        ("mag/kpc", 1e-3, ""),
        ("mmag pc-1", 1e-3, ""),
        ("A_V/pc", 1.0, "A_V"),
        ("E(B-V)/kpc", 1e-3, "E(B-V)"),
        ("A0(550nm)/parsec", 1.0, "A(550 nm)"),
    ],
)
def test_units_and_bands_are_read_in_the_file_or_stated(tmp_path, unit, factor, band):
    own = dustmap.open_map(made.fits_cube(tmp_path / "own.fits", unit))
    other = made.fits_cube(tmp_path / "other.fits", "whatever")
    stated = dustmap.open_map(other, unit=unit)
    for dust in (own, stated):
        found = dust.query(of_cells(), integrated=False).to_value("mag/pc")
        np.testing.assert_allclose(found, factor * made.CUBE[tuple(CELLS.T)], rtol=1e-5)
        assert dust.band == band


@pytest.mark.parametrize("text", ["", "K", "1/kpc", "pc", "E of Zhang", "mag/pc/bin"])
def test_other_units_are_none(text):
    assert parse_unit(text) is None


def test_an_unknown_band_is_asked_for_by_conversions_alone(tmp_path):
    dust = dustmap.open_map(made.fits_cube(tmp_path / "m.fits"))
    assert dust.band == ""
    with pytest.raises(InputError, match="--declare-band"):
        dust.in_band("E(B-V)")
    declared = dustmap.open_map(tmp_path / "m.fits", declare_band="A_V")
    ratio = declared.in_band("E(B-V)").query(of_cells(), integrated=False)
    np.testing.assert_allclose(
        ratio / dust.query(of_cells(), integrated=False), 1 / 3.1
    )


REFUSED = {
    "no unit": ({"unit": ""}, {}, "--unit mag/pc"),
    "a wrong unit": ({"unit": "Jy"}, {}, "'Jy', which is no unit"),
    "mag alone": ({"unit": "mag"}, {}, "--unit mag/bin"),
    "a wrong stated unit": ({}, {"unit": "K"}, "--unit 'K'"),
    "an unknown map": ({}, {"map_of": "nobody1999"}, "edenhofer2024"),
    "an equatorial axis": ({"CTYPE1": "RA---CAR"}, {}, "--origin"),
    "an axis without unit": ({"CUNIT1": ""}, {}, "axis x has the unit"),
    "an origin without step": ({}, {"origin": 0.0}, "go together"),
    "a rotated grid": ({"PC1_2": 0.5}, {}, "depends on the others"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_or_wrong_is_refused_with_what_to_type(tmp_path, name):
    cards, stated, message = REFUSED[name]
    path = made.fits_cube(tmp_path / "m.fits", **cards)
    with pytest.raises(InputError) as error:
        dustmap.open_map(path, **stated)
    assert message in str(error.value)


def test_a_truncated_file_is_damaged(tmp_path):
    path = made.fits_cube(tmp_path / "m.fits")
    path.write_bytes(path.read_bytes()[:-6000])
    with pytest.raises(InputError, match=r"damaged"):
        dustmap.open_map(path)


def sky_cube(path: Path, unit: str, data: np.ndarray, **cards) -> Path:
    """Write l, b, distance: 36 x 18 directions of 10 deg, 5 distances of 20 pc."""
    image = fits.PrimaryHDU(data)
    rows = [("GLON-CAR", "deg", 5.0, 10.0, 1), ("GLAT-CAR", "deg", 0.0, 10.0, 9.5)]
    rows += [("DIST", "pc", 10.0, 20.0, 1)]
    for number, row in enumerate(rows, start=1):
        names = ("CTYPE", "CUNIT", "CRVAL", "CDELT", "CRPIX")
        image.header.update({f"{k}{number}": v for k, v in zip(names, row)})
    image.header.update({"BUNIT": unit, **cards})
    image.writeto(path)
    return path


SKY = made.values((5, 18, 36), 5)


@pytest.mark.parametrize("kind", ["mag/pc", "mag/bin", "mag"])
def test_a_cube_of_l_b_distance_holds_densities_bins_or_extinctions(tmp_path, kind):
    data = {"mag/pc": SKY, "mag/bin": 20 * SKY, "mag": np.cumsum(20 * SKY, axis=0)}
    path = sky_cube(tmp_path / "m.fits", kind.replace("/bin", ""), data[kind])
    dust = dustmap.open_map(path, unit=kind)
    # Of extinctions to the centres, the first bin ends at the first centre.
    ends = np.array([20.0, 60.0, 100.0]) - (10.0 if kind == "mag" else 0.0)
    row, column = 11, 7
    places = at(np.full(3, 75.0), np.full(3, 25.0), ends)
    expected = 20 * SKY[[0, 2, 4], row, column]
    expected = np.cumsum(20 * SKY[:, row, column])[[0, 2, 4]]
    found = dust.query(places, integrated=True).to_value("mag")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    inside = at([75.0, 75.0], [25.0, 25.0], ends[1:] - 5.0)
    found = dust.query(inside, integrated=False).to_value("mag/pc")
    np.testing.assert_allclose(found, SKY[[2, 4], row, column], rtol=1e-4)
    # Half-way across l = 0, between the last and the first column.
    found = dust.query(at([0.0], [25.0], ends[:1]), integrated=True).to_value("mag")
    np.testing.assert_allclose(found, 20 * SKY[0, row, [0, 35]].mean(), rtol=1e-5)


def test_extinctions_may_begin_at_the_sun_and_only_means_are_differences(tmp_path):
    sums = np.concatenate([np.zeros((1, 18, 36)), np.cumsum(20 * SKY, axis=0)])
    path = sky_cube(tmp_path / "m.fits", "mag", sums, CRVAL3=0.0)
    with fits.open(path, mode="append") as units:
        units.append(fits.ImageHDU(0.1 * sums, units[0].header, name="STD."))
        units[0].header["EXTNAME"] = "MEAN"
    dust = dustmap.open_map(path, unit="mag")
    places = at(np.full(2, 75.0), np.full(2, 25.0), [20.0, 50.0])
    found = dust.extinction(places)
    expected = [20 * SKY[0, 11, 7], (20 * SKY[:2, 11, 7]).sum() + 10 * SKY[2, 11, 7]]
    np.testing.assert_allclose(found.mean.value, expected, rtol=1e-5)
    np.testing.assert_allclose(found.std.value, 0.1 * found.mean.value, rtol=1e-5)
    density = dust.density(places)
    np.testing.assert_allclose(density.mean.value, SKY[[1, 2], 11, 7], rtol=1e-4)
    assert density.std is None


def test_arrays_that_are_not_used_are_not_read(tmp_path, monkeypatch):
    path, plain, read = made.bayestar(tmp_path / "m.h5"), h5py.Dataset.__getitem__, []

    def recorded(dataset, *index, **options):
        read.append(dataset.name)
        return plain(dataset, *index, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", recorded)
    dustmap.open_map(path, map_of="bayestar2019")
    assert set(read) == {"/pixel_info", "/samples"}


def test_densities_of_samples_are_differences_of_each(tmp_path):
    path = made.bayestar(tmp_path / "m.h5")
    dust = dustmap.open_map(path, map_of="bayestar2019")
    far = 10 ** (made.MODULI / 5 + 1)
    lon, lat = healpy.pix2ang(2, 17, nest=True, lonlat=True)
    density = dust.density(at([lon], [lat], [far[3:5].mean()]))
    drawn = np.diff(made.SAMPLES[29, :, 3:5])[:, 0] / np.diff(far[3:5])
    np.testing.assert_allclose(density.mean.value, drawn.mean(), rtol=1e-5)
    np.testing.assert_allclose(density.std.value, drawn.std(), rtol=1e-4)


def test_part_of_the_sky_is_nan_elsewhere(tmp_path):
    path = sky_cube(tmp_path / "m.fits", "mag/pc", SKY[..., :9])
    found = dustmap.open_map(path).query(
        at([0.0, 45.0, 89.0, 95.0, 200.0], np.zeros(5), np.full(5, 50.0)),
        integrated=True,
    )
    known = np.isfinite(found.value)
    np.testing.assert_array_equal(known, [True, True, True, False, False])


@pytest.mark.parametrize("ring", [False, True])
def test_healpix_by_distance_is_its_sum_from_the_inner_edge(tmp_path, ring):
    path = made.healpix_by_distance(tmp_path / "m.fits", ring=ring)
    dust = dustmap.open_map(path, map_of="edenhofer2024")
    pixel = 37
    with fits.open(path) as units:
        column = healpy.nest2ring(made.NSIDE, pixel) if ring else pixel
        mean = units["MEAN"].data[:, column].astype(float)
        inner = float(units["MEAN OF INTEGRATED INNER"].data[0, column])
        edges = units[4].data["radial pixel boundaries"]
    towards = healpy.pix2ang(made.NSIDE, pixel, nest=True, lonlat=True)
    places = at(*(np.full(3, angle) for angle in towards), edges[[0, 3, 6]])
    expected = [inner, inner + (mean * np.diff(edges))[:3].sum()]
    expected.append(inner + (mean * np.diff(edges)).sum())
    found = dust.extinction(places)
    np.testing.assert_allclose(found.mean.to_value("mag"), expected, rtol=1e-6)
    assert found.std is None and not found.quantiles
    middle = at(*(np.full(6, angle) for angle in towards), made.CENTRES)
    density = dust.density(middle)
    np.testing.assert_allclose(density.mean.to_value("mag/pc"), mean, rtol=1e-6)
    np.testing.assert_allclose(density.std.value, made.STD[:, pixel], rtol=1e-6)
    # Nearer than the first edge only the sum is known.
    assert np.isnan(dust.query(at(0.0, 0.0, 50.0), integrated=True).value)
    assert dust.band == "E_ZGR23"
    converted = dust.in_band("A_V").query(places, integrated=True).value
    np.testing.assert_allclose(converted, 2.8 * np.array(expected), rtol=1e-6)


@pytest.mark.skipif(not importlib.util.find_spec("dustmaps"), reason="needs dustmaps")
@pytest.mark.filterwarnings("ignore")
def test_edenhofer_agrees_with_the_package_of_its_authors(tmp_path):
    from dustmaps.edenhofer2023 import Edenhofer2023Query

    path = made.healpix_by_distance(tmp_path / "m.fits")
    nodes = healpy.pix2ang(made.NSIDE, np.arange(192), nest=True, lonlat=True)
    places = at(*nodes, np.full(192, made.CENTRES[2]))
    theirs = Edenhofer2023Query(str(path))
    ours = dustmap.open_map(path, map_of="edenhofer2024")
    for mode in ("mean", "std"):
        found = ours.query(places, integrated=False, mode=mode).value
        np.testing.assert_allclose(found, theirs.query(places, mode=mode), rtol=1e-4)


@pytest.mark.skipif(not importlib.util.find_spec("dustmaps"), reason="needs dustmaps")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("integrated", [False, True])
def test_samples_agree_with_the_package_of_their_authors(tmp_path, integrated):
    from dustmaps.edenhofer2023 import Edenhofer2023Query

    path = made.healpix_samples(tmp_path / "m.fits")
    nodes = healpy.pix2ang(made.NSIDE, np.arange(192), nest=True, lonlat=True)
    # Densities agree at the centres of bins, extinctions at their outer edges, which
    # the package states at the centres.
    ours = dustmap.open_map(path, map_of="edenhofer2024")
    theirs = Edenhofer2023Query(str(path), load_samples=True, integrated=integrated)
    distance = (made.EDGES[1:] if integrated else made.CENTRES)[2]
    places = at(*nodes, np.full(192, distance))
    centres = at(*nodes, np.full(192, made.CENTRES[2]))
    for mode in ("mean", "std", "samples"):
        found = ours.query(places, integrated=integrated, mode=mode).value
        expected = theirs.query(centres, mode=mode)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    every = ours.query(places, integrated=integrated, mode="samples").value
    one = ours.query(
        places,
        integrated=integrated,
        mode="random_sample",
        rng=np.random.default_rng(1),
    ).value
    assert (np.abs(every - one[:, None]).max(axis=0) == 0).sum() == 1
    median = ours.query(places, integrated=integrated, mode="median").value
    np.testing.assert_allclose(median, np.median(every, axis=1), rtol=1e-9)


def test_without_the_inner_integral_no_extinction_is_stated(tmp_path):
    path = made.healpix_by_distance(tmp_path / "m.fits", inner=False)
    dust = dustmap.open_map(path, map_of="edenhofer2024")
    with pytest.raises(InputError, match="it begins 69 pc away"):
        dust.query(of_cells(), integrated=True)
    assert np.isfinite(dust.query(at(0.0, 0.0, 100.0), integrated=False))


@pytest.mark.skipif(not importlib.util.find_spec("dustmaps"), reason="needs dustmaps")
@pytest.mark.filterwarnings("ignore")
def test_bayestar_agrees_with_the_package_of_its_authors(tmp_path, capsys):
    from dustmaps.bayestar import BayestarQuery

    path = made.bayestar(tmp_path / "m.h5")
    ours = dustmap.open_map(path, map_of="bayestar2019")
    theirs = BayestarQuery(map_fname=str(path))
    generator = np.random.default_rng(5)
    lon = 360 * generator.random(300)
    lat = np.degrees(np.arcsin(2 * generator.random(300) - 1))
    modulus = generator.choice(made.MODULI[1:], 300)
    places = at(lon, lat, 10 ** (modulus / 5 + 1))
    expected, quality = theirs.query(places, mode="mean", return_flags=True)
    found, flags = ours.query(places, integrated=True, return_flags=True)
    np.testing.assert_allclose(found.value, expected, rtol=1e-5)
    known = np.isfinite(expected)
    assert 0 < known.sum() < 300
    np.testing.assert_array_equal(
        flags["not_converged"][known], ~quality["converged"][known]
    )
    apart = np.abs(modulus - 7.0) > 1.0 + 1e-6
    edges = np.abs(np.abs(modulus - 7.0) - 1.0) > 1e-6
    np.testing.assert_array_equal(
        flags["unreliable"][known & edges], apart[known & edges]
    )
    median = ours.query(places, integrated=True, mode="median").value
    np.testing.assert_allclose(median, theirs.query(places, mode="median"), rtol=1e-5)
    assert ours.band == "E(B-V)_Bayestar"


def leike_part(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["mean"], file["std"] = made.CUBE.T, 0.1 * made.CUBE.T
    return path


CONTRADICTIONS = {
    "another layout": (made.healpix_by_distance, {"map_of": "leike2020"}),
    "another shape": (leike_part, {"map_of": "leike2020"}),
    "another unit": (
        lambda path: made.bare_cube(path, **made.explore_cards()),
        {"map_of": "leike2020", **GRID},
    ),
    "another stated unit": (
        lambda path: made.bare_cube(path, **made.explore_cards()),
        {"map_of": "vergely2022", "unit": "mag/kpc"},
    ),
    "another stated band": (
        lambda path: made.bare_cube(path, **made.explore_cards()),
        {"map_of": "vergely2022", "declare_band": "A_G"},
    ),
    "too large": (
        lambda path: made.bare_cube(path, **{**made.explore_cards(), "STEP": 5e3}),
        {"map_of": "vergely2022"},
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_contradicts_a_published_map_is_refused(tmp_path, name):
    write, stated = CONTRADICTIONS[name]
    with pytest.raises(InputError):
        dustmap.open_map(write(tmp_path / "m"), **stated)


def test_a_part_of_leike_is_an_optical_depth_in_gaia_g(tmp_path):
    dust = dustmap.open_map(leike_part(tmp_path / "m.h5"), map_of="leike2020", **GRID)
    found = dust.query(of_cells(), integrated=False).value
    expected = 2.5 * np.log10(np.e) * made.CUBE[tuple(CELLS.T)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert dust.band == "A_G"
