"""Sound rows arrive as they should; faulty ones are dropped and counted."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.coordinates import SkyCoord
from astropy.table import Table
from hypothesis import given, settings
from hypothesis import strategies as st
from small_catalogue import MAP, write_csv

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.schema import read_stars


def mapping(**columns: str) -> list[str]:
    """``MAP`` with some entries replaced, added, or (None) left out."""
    merged = dict(item.split("=") for item in MAP) | columns
    return [f"{name}={column}" for name, column in merged.items() if column]


FAULTS = [
    ("distance", "nan", "distance missing or not a number"),
    ("extinction", "", "extinction missing or not a number"),
    ("b", "inf", "b infinite"),
    ("extinction", -999, "extinction is a fill value (-999)"),
    ("extinction_error", 0, "extinction_error zero"),
    ("extinction_error", -0.1, "extinction_error negative"),
    ("extinction_error", 1e-9, "extinction_error absurdly small"),
    ("distance", 0, "distance not positive"),
    ("distance", -5, "distance not positive"),
    ("b", 90.5, "|b| > 90 deg"),
    ("l", 400, "|l| > 360 deg"),
    ("source_id", 2**60 + 1, "source_id repeated"),
    ("distance", 9e9, "|distance| > 1e+09 pc"),
    ("extinction", -1.6375e30, "|extinction| > 1e+06 mag"),
]


@pytest.mark.parametrize(("name", "value", "reason"), FAULTS)
def test_a_faulty_row_is_dropped_and_counted(
    name: str, value, reason: str, catalogue, run
) -> None:
    # Of repeated rows the most precise one is kept.
    catalogue["extinction_error"][7] *= 10
    column = catalogue[name].astype(object)
    column[7] = value
    stars, report = run({**catalogue, name: column})
    assert report.faults == {reason: 1}
    assert report.rows_kept == 19
    kept = np.delete(np.arange(20), 7)
    np.testing.assert_allclose(stars.l, catalogue["l"][kept])
    assert f"1 {reason}" in str(report)


def test_the_most_precise_of_repeated_stars_is_kept_unless_it_is_faulty(
    catalogue, run
) -> None:
    catalogue["source_id"][[3, 5, 6]] = catalogue["source_id"][2]
    catalogue["extinction_error"][[2, 5, 3, 6]] = 0.01, 0.03, 0.02, 0.04
    catalogue["distance"][2] = -1
    stars, report = run(catalogue)
    assert report.faults == {"distance not positive": 1, "source_id repeated": 2}
    assert stars.l[2] == pytest.approx(catalogue["l"][3])


def test_negative_extinctions_are_noise_and_kept(catalogue, run) -> None:
    catalogue["extinction"][:4] = -0.05
    stars, report = run(catalogue)
    assert report.negative_extinctions == 4
    assert (stars.extinction[:4] == -0.05).all()
    assert "4 negative extinctions kept" in str(report)


def test_bounds_give_the_error_and_must_be_in_order(catalogue, run) -> None:
    del catalogue["extinction_error"]
    catalogue["lo"] = catalogue["extinction"] - 0.1
    catalogue["hi"] = catalogue["extinction"] + 0.3
    catalogue["lo"][4] = catalogue["hi"][4] + 1
    bounds = {"extinction_lower": "lo:mag", "extinction_upper": "hi:mag"}
    stars, report = run(catalogue, mappings=mapping(extinction_error="", **bounds))
    np.testing.assert_allclose(stars.extinction_error, 0.2)
    assert report.faults == {"extinction_lower > extinction_upper": 1}
    stars, _ = run(catalogue, mappings=mapping(extinction_error="50:mmag"))
    np.testing.assert_allclose(stars.extinction_error, 0.05)


def test_equatorial_coordinates_become_galactic(catalogue, run) -> None:
    galactic = SkyCoord(
        catalogue["l"] * u.deg, catalogue["b"] * u.deg, frame="galactic"
    )
    catalogue["ra"], catalogue["dec"] = galactic.icrs.ra.deg, galactic.icrs.dec.deg
    del catalogue["l"]
    maps = mapping(l="", b="", ra="ra:deg", dec="dec:deg")
    catalogue["dec"][3] = -93
    stars, report = run(catalogue, mappings=maps)
    kept = np.delete(np.arange(20), 3)
    np.testing.assert_allclose(stars.l, galactic.l.deg[kept], rtol=1e-9)
    np.testing.assert_allclose(stars.b, galactic.b.deg[kept], rtol=1e-9)
    assert report.faults == {"|dec| > 90 deg": 1}
    assert "ICRS" in str(report)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-3, 3)] * 3), min_size=6, unique=True, max_size=9)
)
def test_cartesian_positions_survive(tmp_path_factory, points) -> None:
    xyz = np.array(points)
    xyz = xyz[np.linalg.norm(xyz, axis=1) > 1e-3]
    if len(np.unique(xyz, axis=0)) < 6:
        return
    folder = tmp_path_factory.mktemp("cartesian")
    columns = {**dict(zip("xyz", xyz.T)), "e": np.linspace(0.1, 1, len(xyz))}
    source = write_csv(folder / "a.csv", columns)
    maps = [f"{axis}={axis}:kpc" for axis in "xyz"]
    maps += ["extinction=e:mag", "extinction_error=0.1:mag"]
    ingest([source], folder / "o.parquet", mappings=maps)
    stars = read_stars(folder / "o.parquet")
    np.testing.assert_allclose(stars.positions(), 1000 * xyz, atol=1e-9)


def test_a_coordinate_of_minus_99_parsecs_is_no_sentinel(catalogue, run) -> None:
    rng = np.random.default_rng(3)
    columns = {axis: rng.uniform(-500, 500, 20) for axis in "xyz"}
    columns["x"][2] = -99.0
    for axis in "xyz":
        columns[axis][5] = -999.0
        columns[axis][6] = 0.0
    columns["extinction"] = catalogue["extinction"]
    maps = [*(f"{axis}={axis}:pc" for axis in "xyz"), "extinction=extinction:mag"]
    _, report = run(columns, mappings=[*maps, "extinction_error=0.1:mag"])
    assert report.faults == {
        "position is a fill value like -999": 1,
        "distance not positive": 1,
    }


def test_parallaxes_are_inverted_above_a_signal_to_noise(catalogue, run) -> None:
    catalogue["parallax"] = 1000 / catalogue.pop("distance")
    catalogue["parallax_error"] = catalogue["parallax"] / 20
    catalogue["parallax_error"][:3] = catalogue["parallax"][:3] / 4.9
    catalogue["parallax"][3:5] = -0.1
    parallax = {"parallax": "parallax:mas", "parallax_error": "parallax_error:mas"}
    maps = mapping(distance="", **parallax)
    stars, report = run(catalogue, mappings=maps)
    assert report.cuts == {"parallax below 5 times its error": 3}
    assert report.faults == {"parallax not positive": 2}
    np.testing.assert_allclose(stars.distance, 1000 / catalogue["parallax"][5:])
    np.testing.assert_allclose(stars.distance_error, stars.distance / 20)
    assert "zero point untouched" in str(report)


def test_distance_errors_come_along(catalogue, run) -> None:
    catalogue["sd"] = catalogue["distance"] / 10000
    catalogue["sd"][:3] = 0, -1, 1e-9
    stars, report = run(catalogue, mappings=mapping(distance_error="sd:kpc"))
    np.testing.assert_allclose(stars.distance_error, stars.distance / 10)
    assert report.faults == {
        "distance_error zero": 1,
        "distance_error negative": 1,
        "distance_error absurdly small": 1,
    }


def test_quality_cuts_do_not_count_as_faults(catalogue, run) -> None:
    catalogue["ruwe"] = np.r_[np.full(12, 3.0), np.ones(8)]
    catalogue["distance"][:12] = -999
    stars, report = run(catalogue, where="ruwe < 1.4", max_bad=0.0)
    assert report.cuts == {"not ruwe < 1.4": 12}
    assert report.faulty == 0 and len(stars) == 8
    catalogue["distance"][13:] = -1
    with pytest.raises(InputError, match="7 of 8 rows"):
        run(catalogue, where="ruwe < 1.4")


def test_too_many_faults_refuse_the_input(tmp_path: Path, catalogue, run) -> None:
    catalogue["distance"][:11] = -1
    with pytest.raises(InputError, match=r"11 of 20 rows .* 11 distance not positive"):
        run(catalogue)
    assert not (tmp_path / "stars.parquet").exists()
    assert not list(tmp_path.glob(".*part"))
    _, report = run(catalogue, max_bad=0.6)
    assert report.rows_kept == 9


def test_flags_of_the_archive_can_be_filtered_by(catalogue, run) -> None:
    flags = np.array(["False", "True", "null", "false", "TRUE"] * 4)
    codes = np.array(["0100"] + ["0000"] * 19)
    catalogue["duplicated"], catalogue["code"] = flags, codes
    _, report = run(catalogue, where="duplicated == False and code == '0000'")
    assert report.rows_kept == 7
    _, report = run(catalogue, where=f"source_id >= {2**60 + 4096} or l >= 0")
    assert report.rows_kept == 20


@pytest.mark.parametrize("stars", [0, 1, 20])
def test_too_few_places_make_no_map(stars: int, catalogue, run) -> None:
    for name in ("l", "b", "distance"):
        catalogue[name][:] = catalogue[name][0]
    few = {name: column[:stars] for name, column in catalogue.items()}
    with pytest.raises(InputError, match="distinct positions"):
        run(few)


def test_angles_in_radians_are_refused_unless_said(catalogue, run) -> None:
    truth = catalogue["l"].copy(), catalogue["b"].copy()
    catalogue["l"], catalogue["b"] = np.deg2rad(truth[0]), np.deg2rad(truth[1])
    with pytest.raises(InputError, match="look like radians"):
        run(catalogue)
    stars, _ = run(catalogue, mappings=mapping(l="l:rad", b="b:rad"))
    np.testing.assert_allclose(stars.l, truth[0])
    np.testing.assert_allclose(stars.b, truth[1])


@pytest.mark.parametrize(
    ("name", "unit", "said"),
    [
        ("distance", "mpc", "median is 1.3 pc .*below 20 pc"),
        ("distance", "kpc", "median is 1.3e.06 pc .*beyond 100000 pc"),
        ("extinction", "kmag", "extinction looks .*beyond 30 mag"),
    ],
)
def test_a_unit_that_cannot_be_meant_is_refused_unless_said(
    catalogue, run, name, unit, said
) -> None:
    options = {"mappings": mapping(**{name: f"{name}:{unit}"})}
    with pytest.raises(InputError, match=f"{said}.*--any-range"):
        run(catalogue, **options)
    _, report = run(catalogue, any_range=True, **options)
    assert any(note.startswith(f"warning: {name} looks") for note in report.notes)


def test_the_range_is_told_as_it_is(catalogue, run) -> None:
    catalogue["extinction"] -= 0.3
    _, report = run(catalogue)
    for name, quantiles in report.ranges.items():
        expected = np.quantile(
            catalogue[name], [0.01, 0.5, 0.99], method="inverted_cdf"
        )
        np.testing.assert_array_equal(quantiles, expected)
    assert "distance: median 1,300 pc, 1% to 99%: 250 to 1,800 pc" in str(report)


def test_other_columns_are_kept_with_their_units(tmp_path: Path, catalogue) -> None:
    table = Table(
        {**catalogue, "teff": np.full(20, 5000, np.int32), "name": ["a"] * 20}
    )
    table["teff"].unit = "K"
    for item in MAP:
        name, unit = item.split("=")[0], item.split(":")[1]
        table[name].unit = unit
    table.write(tmp_path / "a.fits")
    ingest([tmp_path / "a.fits"], tmp_path / "o.parquet", keep=["teff", "name"])
    stars = read_stars(tmp_path / "o.parquet")
    assert stars.units["teff"] == "K"
    assert stars.extra["teff"].dtype == np.int32
    assert set(stars.extra["name"]) == {"a"}
    table["c"] = 1j
    table.write(tmp_path / "c.fits")
    with pytest.raises(InputError, match="'c' holds complex numbers"):
        ingest([tmp_path / "c.fits"], tmp_path / "p.parquet", keep=["c"])


def test_provenance_names_inputs_choices_and_counts(
    tmp_path: Path, catalogue, run
) -> None:
    stars, report = run(catalogue, where="l >= 0")
    assert stars.meta["inputs"][0]["name"] == "source.csv"
    assert len(stars.meta["inputs"][0]["sha256"]) == 64
    assert stars.meta["where"] == "l >= 0"
    assert stars.meta["report"]["rows_kept"] == report.rows_kept
    assert stars.meta["report"]["origins"]["distance"] == "distance [pc]"
    assert b"unit" in pq.read_schema(tmp_path / "stars.parquet").field("l").metadata


def test_batches_of_any_size_give_the_same_table(
    tmp_path: Path, catalogue, run, monkeypatch
) -> None:
    rng = np.random.default_rng(0)
    many = {n: np.tile(c, 10) for n, c in catalogue.items()}
    many["source_id"] = rng.integers(0, 120, 200)
    many["distance"] = rng.uniform(-100, 1000, 200)
    source = tmp_path / "a.h5"
    with h5py.File(source, "w") as file:
        file.update(many)
    whole, report = run(source, mappings=MAP)
    monkeypatch.setattr("pipelines.catalog.formats.ROWS_PER_BATCH", 7)
    pieces, again = run(source, mappings=MAP)
    assert report.faults == again.faults
    assert report.faults["source_id repeated"] > 20
    for name, column in whole.columns().items():
        np.testing.assert_array_equal(column, pieces.columns()[name])


def test_what_a_map_lacks_is_said_loudly(tmp_path: Path, catalogue) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    plain = [item for item in mapping() if not item.startswith("distance_error")]
    notes = ingest([source], tmp_path / "a.parquet", mappings=plain).notes
    said = [note for note in notes if note.startswith("warning")]
    assert (
        len(said) == 2 and "--declare-band" in said[0] and "distance_error" in said[1]
    )
    more = [*plain, "distance_error=7:pc"]
    chosen = {"mappings": more, "declare_band": "A_V"}
    notes = ingest([source], tmp_path / "b.parquet", **chosen).notes
    assert not [note for note in notes if note.startswith("warning")]
    # Nothing of the band but which it is.
    assert [note for note in notes if "band" in note] == ["band: A_V"]
    # What was ingested keeps its band.
    again = ingest([tmp_path / "b.parquet"], tmp_path / "c.parquet").notes
    assert not [note for note in again if "band" in note]


@pytest.mark.parametrize("name", ["EBV", "E(B-V)", "e_bv", "ebv_mean", "ebv50"])
def test_a_colour_excess_is_asked_about(tmp_path: Path, catalogue, name: str) -> None:
    columns = {**catalogue, name: catalogue["extinction"]}
    source = write_csv(tmp_path / "a.csv", columns)
    mapped = mapping(extinction=f"{name}:mag")
    with pytest.raises(InputError, match=r"colour excess.*--declare-band 'E\(B-V\)'"):
        ingest([source], tmp_path / "a.parquet", mappings=mapped)
    ingest([source], tmp_path / "a.parquet", mappings=mapped, declare_band="E(B-V)")
    assert read_stars(tmp_path / "a.parquet").meta["band"] == "E(B-V)"
