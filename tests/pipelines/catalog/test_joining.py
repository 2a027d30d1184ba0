"""Catalogues of different bands and of the same stars, joined in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from astropy import units as u
from astropy.table import Table
from small_catalogue import MAP, UNITS, write_csv

from pipelines.bands import factor
from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.presets import load_preset
from pipelines.catalog.schema import Stars, read_stars

EXCESS = "E(BP-RP)"
BOUNDS = [item for item in MAP if not item.startswith("extinction_error")]
BOUNDS += ["extinction_lower=low:mag", "extinction_upper=high:mag"]


@pytest.fixture
def tables(tmp_path: Path, catalogue) -> tuple[Path, Path]:
    """The same stars in E(BP-RP) with errors, and in A_V with bounds."""
    ratio = factor(EXCESS, "A_V")
    a = write_csv(tmp_path / "a.csv", catalogue)
    ingest([a], tmp_path / "a.parquet", mappings=MAP, declare_band="E(G_BP−G_RP)")
    for name, sign in (("low", -1), ("high", 1)):
        limit = catalogue["extinction"] + sign * catalogue["extinction_error"]
        catalogue[name] = ratio * limit
    b = {**catalogue, "extinction": ratio * catalogue["extinction"]}
    b["source_id"] = catalogue["source_id"] + 10
    b = write_csv(tmp_path / "b.csv", b)
    ingest([b], tmp_path / "b.parquet", mappings=BOUNDS, declare_band="A(V)")
    return tmp_path / "a.parquet", tmp_path / "b.parquet"


def joined(sources, output: Path, **options) -> Stars:
    ingest(sources, output, overwrite=True, **options)
    return read_stars(output)


@pytest.mark.parametrize("name", ["both.parquet", "both"])
def test_known_bands_are_converted_to_the_first_with_their_errors(
    tables, catalogue, tmp_path, name
):
    report = ingest(tables, tmp_path / name)
    stars = read_stars(tmp_path / name)
    order = np.argsort(stars.l, kind="stable")
    for column in ("extinction", "extinction_error"):
        found = getattr(stars, column)[order].reshape(20, 2)
        expected = np.repeat(catalogue[column][np.argsort(catalogue["l"])], 2)
        np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-9)
    assert stars.meta["band"] == EXCESS
    (change,) = stars.meta["conversions"]
    assert change["catalogue"] == "b.parquet" and change["source"] == "A_V"
    assert change["factor"] == pytest.approx(factor("A_V", EXCESS))
    assert report.catalogues == {"a.parquet": 20, "b.parquet": 20}
    assert "b.parquet: E(BP-RP) = 0.42" in str(report)


def test_band_converts_all_and_can_be_said_of_one(tables, catalogue, tmp_path):
    stars = joined(tables, tmp_path / "c.parquet", band="AV")
    expected = factor(EXCESS, "A_V") * np.tile(catalogue["extinction"], 2)
    np.testing.assert_allclose(stars.extinction, expected, rtol=1e-9)
    assert stars.meta["band"] == "A_V"
    one = joined(tables[:1], tmp_path / "c.parquet", band="A_V")
    np.testing.assert_array_equal(one.extinction, stars.extinction[:20])
    # From a file that states none, as declared.
    source, options = tmp_path / "a.csv", {"mappings": MAP, "band": "A_V"}
    with pytest.raises(InputError, match=r"a\.csv is not stated.*--declare-band"):
        joined([source], tmp_path / "c.parquet", **options)
    one = joined([source], tmp_path / "c.parquet", declare_band=EXCESS, **options)
    np.testing.assert_allclose(one.extinction, stars.extinction[:20], rtol=1e-12)


def test_known_beside_unknown_is_refused_unless_declared(tables, catalogue, tmp_path):
    bare = write_csv(tmp_path / "bare.csv", catalogue)
    ingest([bare], tmp_path / "bare.parquet", mappings=MAP)
    output, sources = tmp_path / "c.parquet", [tables[0], tmp_path / "bare.parquet"]
    for options in ({}, {"band": "A_V"}):
        with pytest.raises(InputError, match=r"bare\.parquet.*--declare-band"):
            ingest(sources, output, **options)
    assert not output.exists()
    ratio = factor("A_V", EXCESS)
    stars = joined(sources, output, declare_band="A_V")
    # What is known stays what it is.
    np.testing.assert_array_equal(stars.extinction[:20], catalogue["extinction"])
    expected = ratio * catalogue["extinction"]
    np.testing.assert_allclose(stars.extinction[20:], expected, rtol=1e-12)
    with pytest.raises(InputError, match="--band A_V converts"):
        ingest(tables[:1], output, declare_band="A_V", overwrite=True)
    # Two that are not known are of one band, as far as anybody knows.
    assert joined(sources[1:] * 2, output).meta["band"] is None


@pytest.mark.parametrize("name", ["c.parquet", "c"])
def test_repeats_across_catalogues_are_kept_and_counted_by_pair(
    tables, catalogue, tmp_path, name
):
    catalogue["source_id"][:5] = catalogue["source_id"][5]
    third = write_csv(tmp_path / "third.csv", catalogue)
    ingest([third], tmp_path / "third.parquet", mappings=MAP, declare_band="A_V")
    sources = [*tables, tmp_path / "third.parquet"]
    report = ingest(sources, tmp_path / name)
    assert report.catalogues == {"a.parquet": 20, "b.parquet": 20, "third.parquet": 15}
    assert not report.faults and report.repeats == (
        "10 in a.parquet and b.parquet",
        "15 in a.parquet and third.parquet",
        "10 in b.parquet and third.parquet",
    )
    first = ingest(sources, tmp_path / name, repeats="first", overwrite=True)
    assert first.catalogues == {"a.parquet": 20, "b.parquet": 10, "third.parquet": 0}
    assert first.faulty == 0 and sum(first.cuts.values()) == 25
    assert len(np.unique(read_stars(tmp_path / name).source_id)) == 30
    # The order of the files is the priority.
    last = ingest(sources[::-1], tmp_path / name, repeats="first", overwrite=True)
    assert last.catalogues == {"third.parquet": 15, "b.parquet": 10, "a.parquet": 5}
    with pytest.raises(InputError, match="keep or first"):
        ingest(sources, tmp_path / name, repeats="some", overwrite=True)


@pytest.mark.parametrize("text", ["0.42*av", "av * 0.42", "4.2e-1*av"])
def test_a_column_may_be_multiplied_by_a_constant(catalogue, tmp_path, text):
    columns = {**catalogue, "av": catalogue["extinction"] / 0.42, "kpc": 1.0}
    columns["kpc"] = catalogue["distance"] / 500
    source = write_csv(tmp_path / "a.csv", columns)
    rest = [m for m in MAP if m.split("=")[0] not in ("extinction", "distance")]
    maps = [*rest, f"extinction={text}:mag", "distance=0.5*kpc:kpc"]
    output, preset = tmp_path / "a.parquet", tmp_path / "mine.toml"
    chosen = {"mappings": maps, "declare_band": EXCESS}
    report = ingest([source], output, save_preset=preset, **chosen)
    stars = read_stars(output)
    np.testing.assert_allclose(stars.extinction, catalogue["extinction"], rtol=1e-12)
    np.testing.assert_allclose(stars.distance, catalogue["distance"], rtol=1e-12)
    assert f"extinction={text}:mag" in json.dumps(stars.meta["map"])
    assert report.origins["extinction"] == "0.42*av [mag]"
    # Other files of this form are read alike, and in another band.
    assert load_preset(str(preset)).band == EXCESS
    again = joined([source], output, preset=str(preset), band="A_V")
    expected = factor(EXCESS, "A_V") * stars.extinction
    np.testing.assert_allclose(again.extinction, expected, rtol=1e-12)
    np.testing.assert_array_equal(again.distance, stars.distance)


@pytest.mark.parametrize(
    ("scale", "refused"),
    [(1000.0, True), (1e-3, True), (50.0, True), (20.0, False), (0.2, False)],
)
def test_errors_that_are_of_another_unit_than_extinctions_are_refused(
    catalogue, run, scale, refused
):
    # Medians of .06 mag times these, beside a standard deviation of .5 mag.
    catalogue["extinction_error"] *= scale
    if refused:
        with pytest.raises(InputError, match=r"mmag beside mag.*--any-range"):
            run(catalogue)
    _, report = run(catalogue, any_range=True)
    assert any("mmag" in note for note in report.notes) == refused


@pytest.mark.parametrize("name", ["m7.csv", "m7.v2"])
def test_a_table_is_not_written_under_the_name_of_another_format(
    catalogue, tmp_path, name
):
    source = write_csv(tmp_path / "a.csv", catalogue)
    with pytest.raises(InputError, match="parquet"):
        ingest([source], tmp_path / name, mappings=MAP)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["both.parquet", "both"])
@pytest.mark.parametrize("first", [0, 1])
def test_catalogues_with_other_columns_become_one(
    catalogue, tmp_path: Path, name: str, first: int
) -> None:
    """What one lacks is null there, units are converted and numbers stay exact."""
    n, ids = len(catalogue["l"]), catalogue["source_id"]
    rich: Any = Table({**catalogue, "derr": np.full(n, 0.03), "teff": np.full(n, 5000)})
    rich["flag"], rich["exact"], rich["own"] = np.arange(n), ids, np.arange(n)
    rich["derr"].unit, rich["teff"].unit = "kpc", "K"
    poor: Any = Table({**catalogue, "teff": np.full(n, 5.5), "flag": np.full(n, 0.5)})
    poor["source_id"] = [f"{ids[0]}", *(f"star {row}" for row in range(n - 1))]
    poor["teff"].unit, poor["exact"] = "kK", np.full(n, 0.5)
    paths = [tmp_path / "a.ecsv", tmp_path / "b.ecsv"]
    for held, path in zip((rich, poor), paths):
        held.write(path)
    keep = ["teff", "flag", "exact", "own"]
    maps = [*MAP, "distance_error=derr"]
    order = [paths[first], paths[1 - first]]
    report = ingest(order, tmp_path / name, mappings=maps, keep=keep)
    text = str(report)
    found: Any = read_stars(tmp_path / name)
    assert f"{n} rows of files without distance_error" in text
    assert f"{n} rows of files without own" in text
    assert f"1 in {order[0].name} and {order[1].name}" in text
    of_rich = found.survey == "a"
    assert set(found.source_id[of_rich]) == {str(each) for each in ids}
    assert np.array_equal(found.distance_std, np.where(of_rich, 30.0, 0.0))
    unit = 1.0 if found.units["teff"] == "K" else 1000.0
    expected = np.where(of_rich, 5000.0, 5500.0)
    np.testing.assert_allclose(found.extra["teff"] * unit, expected)
    assert set(found.extra["flag"][~of_rich]) == {0.5}
    assert set(map(int, found.extra["exact"][of_rich])) == set(ids.tolist())
    assert np.ma.getmaskarray(found.extra["own"])[~of_rich].all()


def test_a_file_without_identifiers_has_none(catalogue, tmp_path: Path) -> None:
    a = write_csv(tmp_path / "a.csv", {k: catalogue[k] for k in UNITS})
    b = write_csv(tmp_path / "b.csv", catalogue)
    stars = joined([a, b], tmp_path / "o.parquet", mappings=MAP)
    assert stars.source_id is not None
    assert set(stars.source_id) == {0, *catalogue["source_id"].tolist()}


def test_kept_columns_of_other_dimensions_are_refused(catalogue, tmp_path) -> None:
    for name, unit in (("a", "K"), ("b", "mag")):
        held = Table({**catalogue, "teff": np.ones(20) * u.Unit(unit)})
        held.write(tmp_path / f"{name}.ecsv")
    paths = [tmp_path / "a.ecsv", tmp_path / "b.ecsv"]
    with pytest.raises(InputError, match="contradictory"):
        ingest(paths, tmp_path / "o.parquet", mappings=MAP, keep=["teff"])
