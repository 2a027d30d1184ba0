"""Tables as archives, programs and people write them, and the faults they have."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.io import ascii, fits
from astropy.table import MaskedColumn, QTable, Table
from astropy.time import Time

import dustmap
from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.catalog.filters import Expression
from pipelines.catalog.ingest import ingest
from pipelines.catalog.schema import read_stars
from pipelines.catalog.sources import open_source, read_columns

N = 60
UNITS = {"GLON": "deg", "GLAT": "deg", "Dist": "pc", "AV": "mag", "e_AV": "mag"}
QUANTITIES = ("l", "b", "distance", "extinction", "extinction_error")
MAP = [f"{name}={column}" for name, column in zip(QUANTITIES, UNITS)]
MAP_UNITS = [f"{text}:{unit}" for text, unit in zip(MAP, UNITS.values())]
Rows = dict[str, np.ndarray]


def stars() -> Rows:
    rng = np.random.default_rng(3)
    return {
        "GLON": np.round(rng.uniform(0.1, 360, N), 5),
        "GLAT": np.round(rng.uniform(-70, 70, N), 5),
        "Dist": np.round(10 ** rng.uniform(1.9, 3.4, N), 3),
        "AV": np.round(rng.gamma(2, 0.3, N), 4),
        "e_AV": np.round(rng.uniform(0.03, 0.09, N), 4),
    }


def table() -> Table:
    return Table(stars(), units=UNITS)


def rows(separator: str, template: str = "{}") -> str:
    lines = zip(*stars().values())
    return "".join(separator.join(map(template.format, row)) + "\n" for row in lines)


def text(content: str, encoding: str = "utf-8"):
    return lambda path: path.write_bytes(content.encode(encoding))


def by_astropy(form: str, **options):
    return lambda path: table().write(path, format=form, **options)


def vizier(separator: str) -> str:
    names, units = (
        separator.join([*each, "[Fe/H]"]) for each in (UNITS, UNITS.values())
    )
    dashes = separator.join(["-" * 12] * 6)
    # The last column is empty, as blanks.
    body = rows(separator, "{:12.5f}").replace("\n", f"{separator}{' ' * 12}\n")
    head = f"#\n#Column\tGLON\t(F9.5)\tlongitude\t[ucd=pos]\n\n{names}\n{units}\n"
    return f"{head}{dashes}\n{body}\n#END#\n"


def mrt() -> str:
    lines = ascii.get_writer(writer_cls=ascii.Mrt).write(table())
    return "\n".join(lines) + "\n"


def with_readme(path: Path) -> None:
    lines = mrt().splitlines()
    ends = [n for n, line in enumerate(lines) if line.startswith("-----")]
    start = next(n for n, line in enumerate(lines) if "Byte-by-byte" in line)
    described = ["J/A+A/1/1", "", *lines[start : ends[2] + 1], "", "-----"]
    described[2] = "Byte-by-byte Description of file: other.dat table?.dat"
    (path.parent / "ReadMe").write_text("\n".join(described))
    path.write_text("\n".join(lines[ends[-1] + 1 :]))


def packed(pack: Callable[[bytes], bytes], content: str):
    return lambda path: path.write_bytes(pack(content.encode()))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README.md", "A catalogue")
        archive.writestr("stars.csv", CSV)


def two_tables(path: Path) -> None:
    other = fits.table_to_hdu(Table({"a": [1, 2]}))
    image = fits.ImageHDU(np.zeros((2, 2)), name="IMAGE")
    own = fits.table_to_hdu(table())
    own.name = "STARS"
    fits.HDUList([fits.PrimaryHDU(), other, image, own]).writeto(path)


def pandas_fixed(path: Path) -> None:
    """As ``DataFrame.to_hdf`` writes it: blocks of columns of one type."""
    with h5py.File(path, "w") as file:
        group = file.create_group("stars")
        group.attrs["pandas_type"] = np.bytes_("frame")
        group["axis0"] = np.array(list(UNITS), "S4")
        group["axis1"] = np.arange(N)
        for block, names in enumerate((["GLAT", "GLON", "AV"], ["Dist", "e_AV"])):
            group[f"block{block}_items"] = np.array(names, "S4")
            values = np.column_stack([stars()[name] for name in names])
            group[f"block{block}_values"] = values


def pandas_table(path: Path) -> None:
    """As ``to_hdf(format="table")``: one data column, the others in a block."""
    names = ["GLAT", "Dist", "AV", "e_AV"]
    kind = [("index", "i8"), ("values_block_0", "f8", (4,)), ("GLON", "f8")]
    held = np.zeros(N, kind)
    held["GLON"] = stars()["GLON"]
    held["values_block_0"] = np.column_stack([stars()[name] for name in names])
    with h5py.File(path, "w") as file:
        group = file.create_group("stars")
        group.attrs["pandas_type"] = np.bytes_("frame_table")
        group["_i_table/index/sorted"] = np.zeros((0, 8))
        group["table"] = held
        for field, stored in (
            ("values_block_0", "(lp0\n" + "a".join(f"V{n}\n" for n in names) + "a."),
            ("GLON", "(lp0\nVGLON\na."),
        ):
            group["table"].attrs[f"{field}_kind"] = np.bytes_(stored)


def vaex(path: Path) -> None:
    words = [f"star{n}" for n in range(N)]
    with h5py.File(path, "w") as file:
        columns = file.create_group("table/columns")
        file["table"].attrs["type"] = "table"
        for name, values in stars().items():
            columns[f"{name}/data"] = values
            columns[name].attrs["unit"] = UNITS[name]
        columns["name/data"] = np.frombuffer("".join(words).encode(), "S1")
        columns["name/data"].attrs["dtype"] = "str"
        columns["name/indices"] = np.cumsum([0, *map(len, words)])


def hats(path: Path) -> None:
    frame = pandas.DataFrame(stars())
    for part in range(4):
        pixel = path / "dataset" / "Norder=1" / "Dir=0" / f"Npix={part}.parquet"
        pixel.parent.mkdir(parents=True, exist_ok=True)
        frame.iloc[part * 15 : part * 15 + 15].to_parquet(pixel, index=False)
    frame[:3].to_parquet(path / "dataset" / "data_thumbnail.parquet")
    frame[:3].to_parquet(path / "dataset" / "_metadata")
    (path / "properties").write_text("obs_collection=stars\n")
    (path / "partition_info.csv").write_text("Norder,Npix\n1,0\n")
    (path / "README.md").write_text("Stars\n")


def unit_in_fits(unit: str, scale: Callable[[np.ndarray], np.ndarray]):
    def write(path: Path) -> None:
        made = table()
        made["Dist"] = scale(stars()["Dist"])
        made["Dist"].unit = None
        made.write(path)
        with fits.open(path, mode="update") as file:
            file[1].header["TUNIT3"] = unit

    return write


NAMES, COMMAS = " ".join(UNITS), ",".join(UNITS)
CSV = COMMAS + "\n" + rows(",")
# Name, writer, whether the file has its units, and what is named if not the file.
LAYOUTS = {
    "MRT": ("a.txt", text(mrt().replace("Authors:", "Authors: José"), "latin-1"), True),
    "CDS": ("table2.dat", with_readme, True),
    "VizieR, tabs": ("asu.tsv", text(vizier("\t")), True),
    "VizieR, semicolons": ("asu.txt", text(vizier(";")), True),
    "IPAC": ("a.tbl", by_astropy("ascii.ipac"), True),
    "white space": ("a.dat", text(f"  {NAMES}\n" + rows("   ", " {}")), False),
    "savetxt": ("a.txt", text(f"# {NAMES}\n" + rows(" ")), False),
    "savetxt, commas": ("a.txt", text(f"# {COMMAS}\n" + rows(" ")), False),
    "hash, units": (
        "a.txt",
        text(f"# by us\n# {NAMES}\n# {' '.join(UNITS.values())}\n" + rows("\t")),
        True,
    ),
    "semicolons": ("a.csv", text(CSV.replace(",", ";")), False),
    "decimal commas": (
        "a.csv",
        text(CSV.replace(",", ";").replace(".", ",")),
        False,
    ),
    "blanks": ("a.csv", text(CSV.replace(",", " , ")), False),
    "Latin-1": ("a.csv", text(CSV.replace("\n", ",é\n"), "latin-1"), False),
    "UTF-16": ("a.csv", text(CSV.replace(",", "\t"), "utf-16"), False),
    "gz": ("a.csv.gz", packed(gzip.compress, CSV), False),
    "bz2": ("a.csv.bz2", packed(bz2.compress, CSV.replace(",", ";")), False),
    "xz": ("a.csv.xz", packed(lzma.compress, CSV), False),
    "zip": ("a.zip", zipped, False),
    "FITS, name": ("a.fits[stars]", two_tables, True),
    "FITS, number": ("a.fits[3]", two_tables, True),
    "pandas, fixed": ("a.h5", pandas_fixed, False),
    "pandas, table": ("a.h5", pandas_table, False),
    "pandas, group": ("a.h5[stars]", pandas_fixed, False),
    "vaex": ("a.hdf5", vaex, True),
    "HATS": ("hats", hats, False),
    "[kpc]": ("a.fits", unit_in_fits("[kpc]", lambda d: np.log10(d / 1e3)), True),
    "log(pc)": ("a.fits", unit_in_fits("log(pc)", np.log10), True),
    "dex(pc)": ("a.fits", unit_in_fits("dex(pc)", np.log10), True),
    "unreadable unit": ("a.fits", unit_in_fits("parsecs away", np.array), False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_stars(layout: str, tmp_path: Path) -> None:
    name, write, has_units = LAYOUTS[layout]
    write(tmp_path / name.partition("[")[0])
    out = tmp_path / "out.parquet"
    ingest([tmp_path / name], out, mappings=MAP if has_units else MAP_UNITS)
    found = read_stars(out)
    for quantity, column in zip(QUANTITIES, UNITS):
        wanted = stars()[column]
        order = np.argsort(found.distance), np.argsort(stars()["Dist"])
        np.testing.assert_allclose(
            getattr(found, quantity)[order[0]], wanted[order[1]], atol=2e-5, rtol=1e-9
        )


@pytest.mark.parametrize(
    ("name", "write", "match"),
    [
        ("a.csv", text(rows(",")), r"no names of columns.*echo 'name1,"),
        ("a.dat", text(rows("  ")), "no names of columns"),
        ("a.csv", text("# only a comment\n"), "no rows"),
        ("a.fits", two_tables, r"2 tables.*a\.fits\[STARS\]|2 tables.*choose one"),
        ("a.fits[GALAXIES]", two_tables, "no one table 'GALAXIES'"),
        ("a.csv[1]", text(CSV), "holds one table"),
        (
            "a.csv.xz",
            lambda p: p.write_bytes(lzma.compress(CSV.encode())[:-99]),
            "read",
        ),
        (
            "a.csv.bz2",
            lambda p: p.write_bytes(bz2.compress(CSV.encode())[:-99]),
            "read",
        ),
        ("a.dat", text(f"{NAMES}\n" + rows(" ") + "1.0 2.0\n"), "Expected 5 columns"),
        ("a.csv", text(CSV + "1,2,x,4,5\n"), "column 'Dist'"),
    ],
)
def test_faulty_tables_are_refused(name, write, match, tmp_path: Path) -> None:
    write(tmp_path / name.partition("[")[0])
    with pytest.raises(InputError, match=match):
        ingest([tmp_path / name], tmp_path / "out.parquet", mappings=MAP_UNITS)


def test_names_behind_hash_precede_text_and_gaps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "# name,ra,dec\nB1,17:51:00.0,-29:59:48\nB4,17:56:20.2,\nB5,,1:2:3\n"
    )
    (batch,) = read_columns(open_source(path), [("ra", "hms"), ("dec", "dms")])
    missing = [np.isnan(values).tolist() for values in batch.values()]
    assert missing == [[False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("mapping", "column", "values"),
    [
        ("distance=10**(1+dm/5):pc", "dm", lambda d: 5 * np.log10(d) - 5),
        ("distance_modulus=dm:mag", "dm", lambda d: 5 * np.log10(d) - 5),
        ("distance=`[d/pc]`+3:pc", "[d/pc]", lambda d: d - 3),
        ('distance=2*("E(B-V)"-1):pc', "E(B-V)", lambda d: d / 2 + 1),
        ("distance=3.1*E(B-V):pc", "E(B-V)", lambda d: d / 3.1),
        ("distance=log10(x)*1000:pc", "x", lambda d: 10 ** (d / 1000)),
        ("distance=far-away:pc", "far-away", np.array),
        ("distance=2*far-away:pc", "far-away", lambda d: d / 2),
        ("distance=logd:log(kpc)", "logd", lambda d: np.log10(d / 1000)),
    ],
)
def test_quantities_are_computed_from_columns(
    mapping, column, values, tmp_path: Path
) -> None:
    held = stars()
    held[column] = values(held.pop("Dist"))
    maps = [text for text in MAP_UNITS if not text.startswith("distance=")]
    out = tmp_path / "out.parquet"
    dustmap.ingest(held, out, mappings=[*maps, mapping])
    np.testing.assert_allclose(read_stars(out).distance, stars()["Dist"], rtol=1e-9)


def test_a_parallax_has_an_offset_and_an_inflated_error(tmp_path: Path) -> None:
    held = stars()
    held["plx"] = 1000 / held.pop("Dist") - 0.03
    held["e_plx"] = 0.01 * (held["plx"] + 0.03)
    maps = [text for text in MAP_UNITS if not text.startswith("distance=")]
    maps += ["parallax=plx+0.03:mas", "parallax_error=sqrt((2*e_plx)**2):mas"]
    dustmap.ingest(held, tmp_path / "out.parquet", mappings=maps)
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_allclose(found.distance, stars()["Dist"])
    np.testing.assert_allclose(found.distance_std, 0.02 * found.distance)


def test_a_distance_modulus_and_offsets_give_errors(tmp_path: Path) -> None:
    held = stars()
    held["dm"], held["e_dm"] = 5 * np.log10(held.pop("Dist")) - 5, np.full(N, 0.1)
    held["down"], held["up"] = np.full(N, 0.1), np.full(N, 0.3)
    maps = [*MAP_UNITS[:2], MAP_UNITS[3], "distance_modulus=dm:mag"]
    maps += ["distance_modulus_error=e_dm:mag", "extinction_error_lower=down:mag"]
    maps += ["extinction_error_upper=up:mag"]
    dustmap.ingest(held, tmp_path / "out.parquet", mappings=maps)
    found = read_stars(tmp_path / "out.parquet")
    relative = np.log(10) / 5 * 0.1
    np.testing.assert_allclose(found.distance_std, relative * found.distance)
    np.testing.assert_allclose(found.extinction_error, 0.2)


def test_a_zero_point_is_that_of_its_authors() -> None:
    zpt = pytest.importorskip("zero_point").zpt
    zpt.load_tables()
    columns = {
        "g": np.array([12.0, 17.0, 18.0, 15.0]),
        "nu": np.array([1.5, 1.4, np.nan, 1.5]),
        "pc": np.array([np.nan, np.nan, 1.4, np.nan]),
        "lat": np.array([10.0, -40.0, 5.0, 0.0]),
        "solved": np.array([31.0, 31.0, 95.0, 3.0]),
    }
    found = Expression("gaia_zero_point(g, nu, pc, lat, solved)").values(
        lambda name, _: columns[name]
    )
    given = [[12.0, 17.0, 18.0], [1.5, 1.4, 0.0], [0.0, 0.0, 1.4], [10.0, -40.0, 5.0]]
    wanted = zpt.get_zpt(*map(np.array, given), np.array([31, 31, 95]))
    np.testing.assert_allclose(found, [*wanted, np.nan])


@pytest.mark.parametrize(
    "where",
    [
        "`[Fe/H]` > -0.5",
        '"[Fe/H]" > -0.5',
        "[Fe/H] > -0.5 and flag == 'good'",
        '"my flag" == \'yes\' and flag == "good"',
    ],
)
def test_filters_take_names_in_quotes(where: str, tmp_path: Path) -> None:
    metal = np.arange(N) % 2
    held = {**stars(), "[Fe/H]": np.where(metal, -0.1, -0.9)}
    held["flag"] = np.where(metal, "good", "bad")
    held["my flag"] = np.where(metal, "yes", "no")
    out = tmp_path / "out.parquet"
    report = dustmap.ingest(held, out, mappings=MAP_UNITS, where=where)
    assert report.rows_kept == N // 2 and report.cuts == {f"not {where}": N // 2}


@pytest.mark.parametrize(
    ("names", "value", "reason"),
    [
        (("AV",), -7.77, "extinction is a fill value (-7.77)"),
        (("AV",), 45.0, "extinction is a fill value (45)"),
        (("Dist",), 88888.0, "distance is a fill value (88888)"),
        (("GLON", "GLAT"), -9.99, "position is a fill value (-9.99)"),
        (("GLON", "GLAT"), 0.0, "position is a fill value (0)"),
    ],
)
def test_repeated_values_out_of_range_are_dropped(
    names, value, reason, tmp_path: Path
) -> None:
    held = stars()
    for name in names:
        held[name][:5] = value
    report = dustmap.ingest(held, tmp_path / "out.parquet", mappings=MAP_UNITS)
    assert report.faults == {reason: 5}
    np.testing.assert_array_equal(
        read_stars(tmp_path / "out.parquet").distance, stars()["Dist"][5:]
    )


def test_values_just_out_of_range_are_asked_about(tmp_path: Path) -> None:
    held, out = stars(), tmp_path / "out.parquet"
    held["AV"] = np.linspace(0.02, 2.5, N)
    held["AV"][:5] = -1.0
    with pytest.raises(InputError, match=r"5 rows .*extinction = -1 mag"):
        dustmap.ingest(held, out, mappings=MAP_UNITS)
    report = dustmap.ingest(held, out, mappings=MAP_UNITS, where="AV != -1")
    assert report.rows_kept == N - 5
    report = dustmap.ingest(
        held, out, mappings=MAP_UNITS, any_range=True, overwrite=True
    )
    assert report.rows_kept == N
    # Stars without extinction, and longitudes of -99 degrees, are none.
    held["AV"][:5], held["GLON"][:5] = 0.0, -99.0
    report = dustmap.ingest(held, out, mappings=MAP_UNITS, overwrite=True)
    assert report.rows_kept == N


GONE, UNNAMED = np.arange(N) % 11 == 3, np.arange(N) % 7 == 0
IDS = np.random.default_rng(1).integers(2**60, 2**61, N)


def masked() -> Table:
    made = table()
    made["Dist"] = MaskedColumn(made["Dist"], mask=GONE)
    made["source_id"] = MaskedColumn(IDS, mask=UNNAMED)
    return made


def quantities() -> QTable:
    made = QTable(masked())
    made["place"] = SkyCoord(made["GLON"], made["GLAT"], frame="galactic")
    made["time"] = Time(np.full(N, 2451545.0), format="jd")
    made["spectrum"] = np.ones((N, 3))
    made["object"] = np.array(["a", None, 3] * (N // 3), dtype=object)
    return made


def frame() -> pandas.DataFrame:
    made = pandas.DataFrame(stars())
    made["Dist"] = made["Dist"].astype("Float64").mask(GONE)
    made["source_id"] = pandas.Series(IDS, dtype="Int64").mask(UNNAMED)
    return made


def polars():
    return pytest.importorskip("polars").from_arrow(arrow())


def arrow() -> pa.Table:
    return pa.Table.from_pandas(frame(), preserve_index=False)


CONTAINERS = {
    "Table": masked,
    "QTable": quantities,
    "mapping": lambda: {name: masked()[name] for name in masked().colnames},
    "DataFrame": frame,
    "index": lambda: frame().set_index(pandas.Index([f"s{n}" for n in range(N)])),
    "structured": lambda: masked().as_array(),
    "FITS_rec": lambda: fits.table_to_hdu(masked()).data,
    "arrow": arrow,
    "polars": polars,
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_table(container: str, tmp_path: Path) -> None:
    maps = [*MAP_UNITS, "source_id=source_id"]
    tables = []
    for number, held in enumerate((arrow(), CONTAINERS[container]())):
        out = tmp_path / f"{number}.parquet"
        report = dustmap.ingest(held, out, mappings=maps)
        assert report.faults == {"distance missing or not a number": GONE.sum()}
        tables.append(pq.read_table(out).replace_schema_metadata())
    first, second = tables
    assert first.equals(second, check_metadata=True)
    wanted = np.where(UNNAMED, 0, IDS)[~GONE]
    assert first["source_id"].to_pylist() == wanted.tolist()


def test_coordinates_in_a_table_are_columns(tmp_path: Path) -> None:
    held = quantities()
    held.remove_columns(["GLON", "GLAT"])
    maps = ["l=place.l", "b=place.b", *MAP[2:]]
    dustmap.ingest(held, tmp_path / "out.parquet", mappings=maps)
    found = read_stars(tmp_path / "out.parquet")
    np.testing.assert_allclose(found.l, stars()["GLON"][~GONE])


@pytest.mark.parametrize(
    ("scale", "a_v"),
    [("E(B-V)_SFD", 2.742), ("E(B-V)_Bayestar", 2.742), ("E_ZGR23", 2.8)],
)
def test_scales_of_reddening_have_the_factors_of_their_papers(
    scale, a_v, tmp_path
) -> None:
    assert factor(scale, "A_V") == pytest.approx(a_v)
    out = tmp_path / "out.parquet"
    report = dustmap.ingest(table(), out, mappings=MAP, declare_band=scale, band="A_V")
    assert scale in str(report)
    np.testing.assert_allclose(read_stars(out).extinction, a_v * stars()["AV"])


def test_a_unit_in_brackets_overrules_the_file(tmp_path: Path) -> None:
    held, out = table(), tmp_path / "out.parquet"
    held["Dist"].unit = u.kpc
    maps = [*MAP[:2], *MAP[3:]]
    with pytest.raises(InputError, match=r"\(Dist\):pc"):
        dustmap.ingest(held, out, mappings=[*maps, "distance=Dist:pc"])
    dustmap.ingest(held, out, mappings=[*maps, "distance=(Dist):pc"])
    np.testing.assert_allclose(read_stars(out).distance, stars()["Dist"])
