"""dustmap query: one place, or every row of a table."""

import numpy as np
import pytest
import ray_field
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Column, Table

from pipelines.bands import factor
from pipelines.catalog.answer_files import answer_file
from pipelines.catalog.formats import ColumnInfo
from pipelines.catalog.schema import read_table
from pipelines.query import open_map
from pipelines.query.table import ask, rounded


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Stars: inside, outside, without distance, behind the last, without position."""
    path = tmp_path_factory.mktemp("rows") / "stars.csv"
    lines = ["name,lon,lat,d,magnitude", "A,10,5,0.2,12", "B,20,5,7,", "C,30,5,,9"]
    lines += ["D,0,0,0.45,8", "E,,5,0.3,7"]
    path.write_text("\n".join(lines) + "\n")
    return path


MAPPED = "--map l=lon:deg --map b=lat:deg --map distance=d:kpc"


def test_a_preset_names_the_columns_of_a_table(command, path, rows, tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text(
        'name = "mine"\ntitle = "t"\nband = "A_V"\nnotes = ""\n'
        'tested_on = "real"\n[columns]\nl = { column = "lon", unit = "deg" }\n'
        'b = { column = "lat", unit = "deg" }\n'
        'distance = { column = "d", unit = "kpc" }\n'
        'extinction = { column = "none_here", unit = "mag" }\n'
    )
    answers = []
    for index, how in enumerate((MAPPED, f"--preset {preset}")):
        output = tmp_path / f"{index}.ecsv"
        said(command, f"query {path} {rows} -o {output} {how}")
        answers.append(output.read_text())
    assert answers[0] == answers[1]
    # A mapping goes before the preset.
    line = f"query {path} {rows} -o {tmp_path / 'c.ecsv'} --preset {preset}"
    refused(command, f"{line} --map distance=far:kpc", "far")
    refused(command, f"query {path} --preset {preset}", "--preset")


FLAGS = ("inside", "no_distance", "no_position")


def said(command, line):
    result = command(line)
    assert result.exit_code == 0, result.output
    return {words[0]: words[1:] for words in map(str.split, result.output.splitlines())}


def refused(command, line, text):
    result = command(line)
    assert result.exit_code == 2 and text in result.output, result.output


def test_one_place_is_told_with_names_and_units(command, path):
    found = said(command, f"query {path} --l 90 --b 5 --distance 200")
    here = ray_field.at(90, 5, 200)
    dust = open_map(path)
    for what, answer in (
        ("extinction", dust.extinction(here)),
        ("density", dust.density(here)),
    ):
        parts = {"mean": answer.mean, "std": answer.std, **answer.quantiles}
        for kind, value in parts.items():
            number, unit = found[f"{what}_{kind}"]
            error = 1e-2 * answer.std.value
            assert float(number) == pytest.approx(value.value, abs=error)
            assert len(number.strip("0.").partition("e")[0]) <= 5
            assert u.Unit(unit) == value.unit
    assert found["flags"] == ["inside"]
    found = said(command, f"query {path} --l 90 --b 5 --distance 2000")
    assert found["extinction_mean"][0] == "nan"
    assert found["flags"] == ["outside", "the", "map"]
    line = f"query {path} --ra 83.8 --dec -5.4 --distance 150"
    for options, names in (
        ("--integrated --mode std", {"extinction_std"}),
        ("--differential --pct 5,95", {"density_p5", "density_p95"}),
    ):
        assert set(said(command, f"{line} {options}")) == {*names, "flags"}


def test_a_place_may_have_units_and_sexagesimal_angles(command, path):
    plain = command(f"query {path} --ra 83.75 --dec -5.5 --distance 420").output
    other = f"query {path} --ra 05:35:00 --dec=-05:30:00 --distance 0.42kpc"
    assert command(other).output == plain and "extinction_mean" in plain
    refused(command, f"query {path} --l 5 --b 5 --distance 2mag", "no length")
    refused(command, f"query {path} --ra 5x --dec 5 --distance 2", "no angle")


def test_the_inverse_and_the_whole_way(command, path):
    found = said(command, f"query {path} --l 90 --b 0 --at-extinction 0.3")
    number, unit = found["distance_reached"]
    assert unit == "pc"
    direction = np.array([0.0, float(number), 0.0])
    assert ray_field.extinction(direction) == pytest.approx(0.3, rel=2e-3)
    found = said(command, f"query {path} --l 90 --b 0 --total --mode median")
    true = ray_field.extinction(np.array([0.0, ray_field.HALF[1], 0.0]))
    assert float(found["extinction_median"][0]) == pytest.approx(true, rel=2e-3)
    assert "to edge" in " ".join(found["flags"])
    found = said(command, f"query {path} --l 90 --b 0 --at-extinction 30")
    assert found["distance_reached"][0] == found["distance_upper"][0] == "nan"
    end = float(found["distance_lower"][0])
    assert end == pytest.approx(ray_field.HALF[1], rel=0.02)
    assert "not reached" in " ".join(found["flags"])


@pytest.mark.parametrize("suffix", ["csv", "ecsv"])
def test_answers_come_in_batches_of_one_table(tmp_path, suffix):
    described = {name: ColumnInfo() for name in ("l", "name")}
    file = tmp_path / f"answers.{suffix}"
    with answer_file(file, described, {}, {}, overwrite=False) as write:
        write({"l": np.array([1.0, np.nan]), "name": np.array(["a", None], object)})
        assert not file.exists()
        write({"l": np.array([3.0]), "name": np.array(["b, c"], object)})
    if suffix == "csv":
        assert file.read_text() == 'l,name\n1,"a"\n,\n3,"b, c"\n'
    table = Table.read(file)
    assert table["l"][[0, 2]].tolist() == [1.0, 3.0] and len(table) == 3
    assert table["name"][2] in ("b, c", b"b, c")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ecsv", "fits", "vot"])
def test_a_table_keeps_every_row_and_column(command, path, rows, tmp_path, suffix):
    output = tmp_path / f"answers.{suffix}"
    result = command(f"query {path} {rows} -o {output} {MAPPED}")
    assert result.exit_code == 0, result.output
    assert "5 rows (2 inside, 1 extrapolated" in result.output
    assert "1 no distance, 1 no position, 1 outside the map" in result.output
    if suffix == "parquet":
        columns, units, _ = read_table(output)
        table = Table(columns, units=units)
        table["magnitude"] = np.ma.masked_invalid(table["magnitude"])
    else:
        table = Table.read(output)
    assert table.colnames[:5] == ["name", "lon", "lat", "d", "magnitude"]
    assert [str(name) for name in table["name"]] == ["A", "B", "C", "D", "E"]
    assert list(table["magnitude"][[0, 2]]) == [12, 9]
    assert np.ma.is_masked(table["magnitude"][1])
    flags = {name: [str(v).lower() == "true" for v in table[name]] for name in FLAGS}
    assert flags["no_distance"] == [False, False, True, False, False]
    assert flags["no_position"] == [False, False, False, False, True]
    found = np.ma.filled(np.ma.asarray(table["extinction_mean"], dtype=float), np.nan)
    inside = [True, False, False, True, False]
    np.testing.assert_array_equal(np.isfinite(found), inside)
    assert flags["inside"] == inside
    answer = open_map(path).extinction(ray_field.at(10, 5, 200))
    assert found[0] == pytest.approx(answer.mean.value, abs=1e-2 * answer.std.value)
    if suffix != "csv":
        assert table["extinction_mean"].unit == u.mag
        assert table["density_p16"].unit == u.mag / u.pc
    if suffix in ("ecsv", "fits", "vot"):
        assert "mean of the extinction" in table["extinction_mean"].description
        assert "99" not in str(table["extinction_mean"][0])


def test_the_band_of_answers_is_chosen(command, path, rows, tmp_path):
    plain, green = tmp_path / "plain.ecsv", tmp_path / "green.ecsv"
    line = f"query {path} {rows} {MAPPED} --differential -o"
    assert command(f"{line} {plain}").exit_code == 0
    result = command(f"{line} {green} --declare-band A_V --band A_G --prefix g_")
    assert result.exit_code == 0 and "A_G =" in result.output
    one, other = Table.read(plain), Table.read(green)
    ratio = factor("A_V", "A_G")
    assert other["g_density_mean"][0] == pytest.approx(
        ratio * one["density_mean"][0], rel=0.01
    )
    assert other.meta["band"] == "A_G" and "A_G" in other["g_density_mean"].description
    place = f"query {path} --l 90 --b 0 --at-extinction"
    direct = said(command, f"{place} 0.3")["distance_reached"]
    bands = f"{0.3 * ratio} --declare-band A_V --band A_G"
    assert float(said(command, f"{place} {bands}")["distance_reached"][0]) == (
        pytest.approx(float(direct[0]), rel=1e-3)
    )


def test_several_bands_are_several_columns(command, path, rows, tmp_path):
    line = f"query {path} {rows} {MAPPED} --declare-band A_V -o {tmp_path}"
    bands = {"A_G": "A_G", "E(BP-RP)": "E_BP_RP", "A_V": "A_V"}
    asked = " ".join(f"--band '{band}'" for band in bands)
    for name, more in (("plain", ""), ("all", asked), ("once", "--band A_G --band AG")):
        done = command(f"{line}/{name}.ecsv {more}")
        assert done.exit_code == 0, done.output
    plain, every, once = (
        Table.read(tmp_path / f"{n}.ecsv") for n in ("plain", "all", "once")
    )
    assert every.meta["band"] == "A_G; E(BP-RP); A_V"
    for band, word in bands.items():
        for name in ("extinction_mean", "extinction_p16", "density_std"):
            expected = factor("A_V", band) * plain[name][0]
            assert every[f"{word}_{name}"][0] == pytest.approx(expected, rel=0.01)
            assert band in every[f"{word}_{name}"].description
    assert len(every.colnames) == len(plain.colnames) + 2 * (7 + 7)
    # The same band twice is one.
    assert once.colnames == plain.colnames and once.meta["band"] == "A_G"
    assert "A_G_extinction_mean" in said(
        command, f"query {path} --l 90 --b 5 --distance 200 --declare-band A_V {asked}"
    )
    place = f"query {path} --l 90 --b 5 --at-extinction 0.3 --declare-band A_V"
    refused(command, f"{place} {asked}", "one --band")
    # Of those that write one band, none is left out in silence.
    for verb in (f"export {path} --zarr", f"ingest {rows} -o"):
        refused(command, f"{verb} {tmp_path}/x.zarr {asked}", "one --band")


def test_magnitudes_are_dereddened(command, path, rows, tmp_path):
    line = f"query {path} {rows} {MAPPED} --declare-band A_V -o {tmp_path}/a.ecsv"
    named = "--map G=magnitude:mag --map G_error=d"
    done = command(f"{line} --deredden G --curve F99 {named} --band A_BP --prefix m_")
    assert done.exit_code == 0, done.output
    table = Table.read(tmp_path / "a.ecsv")
    answer = open_map(path).extinction(ray_field.at(10, 5, 200))
    ratio = factor("A_V", "A_G", curve="F99")
    std = np.hypot(ratio * answer.std.value, 0.2)
    for column, value in (("", 12 - ratio * answer.mean.value), ("_std", std)):
        found = table[f"m_G_dereddened{column}"]
        assert found[0] == pytest.approx(value, rel=2e-3) and found.unit == u.mag
        # Without magnitude or distance, outside, without position.
        assert not np.isfinite(
            np.ma.filled(found.astype(float), np.nan)[[1, 2, 4]]
        ).any()
    assert "A_G" in table["m_G_dereddened"].description
    # The extinctions have the band asked for.
    ratio = factor("A_V", "A_BP", curve="F99")
    assert table["m_extinction_mean"][0] == pytest.approx(
        ratio * answer.mean.value, rel=2e-3
    )
    again = f"{line} --overwrite --deredden"
    for wrong, text in (
        ("G", "--map 'G=COLUMN'"),
        ("G --map G=name", "no numbers in name"),
        ("G --map G=magnitude:flux", "no numbers in magnitude:flux"),
        ("Q --map Q=magnitude", "no band 'Q'"),
        ("G --map G=magnitude --differential", "--deredden"),
        ("G --map G=magnitude --at-extinction 0.3", "--deredden"),
        ("G --map G=magnitude --mode percentile --pct 50", "--deredden"),
    ):
        refused(command, f"{again} {wrong}", text)
    place = f"query {path} --l 1 --b 1 --distance 99 --declare-band A_V --deredden G"
    refused(command, place, "goes with a table")
    flux = Table({"l": [1.0], "b": [1.0], "distance": [99.0], "G": [5.0]})
    for name, unit in (("l", "deg"), ("b", "deg"), ("distance", "pc"), ("G", "Jy")):
        flux[name].unit = unit
    flux.write(tmp_path / "flux.ecsv")
    other = again.replace(str(rows), f"{tmp_path}/flux.ecsv").replace(MAPPED, "")
    refused(command, f"{other} G", "Jy")


def test_answers_replace_no_column(command, path, rows, tmp_path):
    first = tmp_path / "first.fits"
    assert command(f"query {path} {rows} {MAPPED} -o {first}").exit_code == 0
    again = f"query {path} {first} {MAPPED} -o {tmp_path}/again.fits"
    refused(command, again, "--prefix")
    assert command(f"{again} --prefix b_").exit_code == 0
    both = Table.read(tmp_path / "again.fits")
    np.testing.assert_array_equal(both["b_extinction_std"], both["extinction_std"])
    assert both["extinction_std"].unit == u.mag
    assert "deviation" in both["extinction_std"].description


def test_units_that_a_file_has_need_not_be_said(command, path, tmp_path):
    table = Table(
        {"ra": [80.0] * u.deg, "dec": [0.1] * u.rad, "distance": [0.1] * u.kpc}
    )
    table.write(tmp_path / "t.fits")
    line = f"query {path} {tmp_path}/t.fits -o {tmp_path}/a.parquet --mode mean"
    assert command(line).exit_code == 0
    columns, _, _ = read_table(tmp_path / "a.parquet")
    coords = SkyCoord(ra=80 * u.deg, dec=0.1 * u.rad, distance=100 * u.pc)
    expected = open_map(path).query(coords, integrated=True)
    assert columns["extinction_mean"][0] == pytest.approx(expected.value, rel=1e-4)
    refused(command, line, "exists")


def test_directions_need_no_distance(command, path, rows, tmp_path):
    mapped = "--map l=lon:deg --map b=lat:deg"
    line = f"query {path} {rows} -o {tmp_path}/a.parquet {mapped} --at-extinction 0.3"
    assert command(line).exit_code == 0
    columns, units, _ = read_table(tmp_path / "a.parquet")
    assert "distance" not in columns and units["distance_lower"] == "pc"
    known = np.isfinite(columns["distance_reached"])
    np.testing.assert_array_equal(known, [True, True, True, True, False])


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("--l 5 --b 5", "--distance PC"),
        ("--l 5 --distance 10", "--l and --b"),
        ("--l 5 --b 95 --distance 10", "latitude beyond 90 deg"),
        ("--l 5 --b 5 --distance 10 --mode best", "mode must be one of"),
        ("--l 5 --b 5 --distance 10 --pct a,b", "to float: 'a'"),
        ("--l 5 --b 5 --distance 10 --mode std --pct 5", "and no other"),
        ("--l 5 --b 5 --total --differential", "--differential"),
        ("--l 5 --b 5 --at-extinction -1", "must be positive"),
        ("--l 5 --b 5 --distance 10 --mode samples", "no posterior samples"),
        ("--l 5 --b 5 --distance 10 --mode percentile", "--pct 16,50,84"),
        ("--l 5 --b 5 --distance -5", "negative"),
    ],
)
def test_what_is_wrong_with_a_place_is_said(command, path, rest, text):
    refused(command, f"query {path} {rest}", text)


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("", "-o answers.parquet"),
        ("-o {0}/a.txt " + MAPPED, ".parquet, .csv"),
        ("-o {0}/a.csv", "gives no position"),
        ("-o {0}/a.csv --map l=lon --map b=lat:deg --map distance=d:pc", "no unit"),
        ("-o {0}/a.csv --map l=lon:deg --map b=lat:deg", "gives no distance"),
        ("-o {0}/a.csv --map extinction=d:mag " + MAPPED, "of no use here"),
        ("-o {0}/a.csv --l 5 --b 5", "not both"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(command, path, rows, tmp_path, rest, text):
    refused(command, f"query {path} {rows} {rest.format(tmp_path)}", text)
    assert not list(tmp_path.iterdir())


def test_rounding_lowers_no_extinction_below_one_that_is_less():
    rng = np.random.default_rng(4)
    values, std = np.sort(rng.uniform(0.1, 2, 500)), 10 ** rng.uniform(-3, 0, 500)
    names = ("extinction_mean", "extinction_p50")
    found = rounded(
        {**dict.fromkeys(names, Column(values)), "extinction_std": Column(std)}
    )
    for name in names:
        assert (np.diff(found[name]) >= 0).all()
        np.testing.assert_allclose(found[name], values, rtol=6e-5)
    np.testing.assert_allclose(found["extinction_std"], std, rtol=5e-3)


def test_an_interrupted_query_leaves_nothing(command, path, tmp_path, monkeypatch):
    folder, output = tmp_path / "places", tmp_path / "answers.parquet"
    folder.mkdir()
    for number in range(3):
        lines = ["l,b,distance", *(f"{10 * number + i},5,200" for i in range(4))]
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")
    line = (
        f"query {path} {folder} --map l=l:deg --map b=b:deg --map distance=distance:pc"
    )
    asked = []

    def interrupted(dust, coords, *how):
        asked.append(len(coords))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(dust, coords, *how)

    monkeypatch.setattr("pipelines.query.table.ask", interrupted)
    done = command(f"{line} -o {output}")
    assert done.exit_code == 1 and "nothing was written" in done.output
    assert [item.name for item in tmp_path.iterdir()] == ["places"]
    assert command(f"{line} -o {output}").exit_code == 0
    columns, _, _ = read_table(output)
    np.testing.assert_array_equal(
        columns["l"], [10 * number + i for number in range(3) for i in range(4)]
    )
