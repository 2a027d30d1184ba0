"""Input as people have it: sexagesimal, units in names, mappings worth keeping."""

import numpy as np
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.presets import load_preset, write_preset
from pipelines.catalog.schema import read_stars
from pipelines.catalog.units import convert
from pipelines.query.targets import TargetTable

RNG = np.random.default_rng(4)
COUNT = 60
COORDS = SkyCoord(
    ra=RNG.uniform(0, 360, COUNT) * u.deg, dec=RNG.uniform(-89, 89, COUNT) * u.deg
)
REST = ["extinction=av:mag", "extinction_error=e:mag"]


def rows(path, ra, dec):
    far = RNG.uniform(0.1, 1, COUNT)
    table = Table({"RA": ra, "DEC": dec, "d_kpc": far, "av": 2 * far, "e": 0.1 * far})
    table.write(path, overwrite=True)
    return path


@pytest.mark.parametrize("sep", [":", "hms", " "])
@pytest.mark.parametrize("suffix", [".csv", ".fits"])
def test_sexagesimal_columns_become_degrees(tmp_path, sep, suffix):
    right = COORDS.ra.to_string(u.hourangle, sep=sep, precision=4, pad=True)
    other = "dms" if sep == "hms" else sep
    declination = COORDS.dec.to_string(u.deg, sep=other, precision=3, alwayssign=True)
    path = rows(tmp_path / f"stars{suffix}", right, declination)
    maps = ["ra=RA:hms", "dec=DEC:dms", "distance=d_kpc", *REST]
    report = ingest([path], tmp_path / "out.parquet", mappings=maps, declare_band="A_V")
    assert report.rows_kept == COUNT
    stars = read_stars(tmp_path / "out.parquet")
    found = SkyCoord(l=stars.l * u.deg, b=stars.b * u.deg, frame="galactic")
    assert found.separation(COORDS).to_value(u.arcsec).max() < 0.01
    # The name of the column says its unit.
    assert stars.distance.min() >= 100 and stars.distance.max() <= 1000


def test_numbers_are_not_taken_for_sexagesimal_nor_the_reverse(tmp_path):
    path = rows(tmp_path / "numbers.csv", COORDS.ra.deg, COORDS.dec.deg)
    maps = ["dec=DEC:dms", "distance=d_kpc", *REST]
    with pytest.raises(InputError):
        ingest([path], tmp_path / "a.parquet", mappings=["ra=RA:hms", *maps])
    right = COORDS.ra.to_string(u.hourangle, sep=":")
    path = rows(tmp_path / "text.fits", right, COORDS.dec.to_string(u.deg, sep=":"))
    with pytest.raises(InputError, match="hms"):
        ingest([path], tmp_path / "a.parquet", mappings=["ra=RA:deg", *maps])
    with pytest.raises(InputError, match="hms"):
        ingest([path], tmp_path / "a.parquet", mappings=["ra=RA", *maps])


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("05:34:32.5", "hms", 15 * (5 + 34 / 60 + 32.5 / 3600)),
        ("5h34m32s", "hms", 15 * (5 + 34 / 60 + 32 / 3600)),
        ("-05:23:28", "dms", -(5 + 23 / 60 + 28 / 3600)),
        ("-0 30 00", "dms", -0.5),
        ("+22d00m52.2s", "dms", 22 + 52.2 / 3600),
        ("22°00'52.2\"", "dms", 22 + 52.2 / 3600),
        ("12:30.5", "dms", 12 + 30.5 / 60),
        ("12:60:00", "dms", np.nan),
        ("twelve", "dms", np.nan),
        (None, "hms", np.nan),
    ],
)
def test_how_angles_are_written(text, kind, expected):
    found = convert(np.array([text], dtype=object), kind, "here")
    np.testing.assert_allclose(found, [expected], rtol=1e-12)


def test_a_mapping_that_worked_is_a_preset_and_offered(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "stars.csv", COORDS.ra.deg, COORDS.dec.deg)
    maps = ["ra=RA:deg", "dec=DEC:deg", "distance=d_kpc", *REST]
    line = "ingest stars.csv -o a.parquet --declare-band A_V --where 'av > 0.5' "
    line += " ".join(f"--map {text}" for text in maps)
    said = command(f"{line} --save-preset mine.toml")
    assert said.exit_code == 0, said.output
    preset = load_preset("mine.toml")
    assert preset.band == "A_V" and preset.columns["distance"].unit == "kpc"
    said = command("ingest stars.csv -o b.parquet --preset mine.toml")
    assert said.exit_code == 0, said.output
    ours, theirs = (read_stars(tmp_path / name) for name in ("a.parquet", "b.parquet"))
    np.testing.assert_array_equal(ours.distance, theirs.distance)
    np.testing.assert_array_equal(ours.l, theirs.l)
    assert len(ours) < COUNT
    said = command("ingest stars.csv -o c.parquet")
    assert said.exit_code == 2
    said = command(f"{line} --save-preset mine.toml --overwrite")
    assert said.exit_code == 0
    for name in ("mine.toml", "mine.txt"):
        said = command(f"{line.replace('a.parquet', 'd.parquet')} --save-preset {name}")
        assert said.exit_code == 2, name
    assert not (tmp_path / "mine.txt").exists()


def test_a_saved_preset_keeps_whom_a_survey_cites(tmp_path):
    survey = load_preset("hunt2023")
    path = tmp_path / "mine.toml"
    write_preset(path, survey)
    again = load_preset(str(path))
    assert again.references == survey.references and again.columns == survey.columns


def test_sexagesimal_targets_keep_their_text(tmp_path):
    right = COORDS.ra.to_string(u.hourangle, sep=":", precision=3)
    declination = COORDS.dec.to_string(u.deg, sep=":", precision=3)
    path = rows(tmp_path / "targets.csv", right, declination)
    maps = ["ra=RA:hms", "dec=DEC:dms", "distance=d_kpc"]
    (targets,) = TargetTable(path, maps)
    assert list(targets.columns["RA"]) == list(right)
    assert targets.coords.separation(COORDS).to_value(u.arcsec).max() < 0.01
