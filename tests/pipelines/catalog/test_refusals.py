"""Every structural fault ends in one clear message and no output."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from astropy.table import Table
from small_catalogue import MAP, UNITS, write_csv

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.mapping import parse_mappings
from pipelines.catalog.sources import open_source


def refuse(run, columns, match: str, **options) -> None:
    with pytest.raises(InputError, match=match):
        run(columns, **options)


def test_a_missing_column_is_named_with_those_there_are(catalogue, run) -> None:
    del catalogue["distance"]
    refuse(run, catalogue, r"no column 'distance'.*it has: source_id, l, b")
    refuse(run, catalogue, "--map distance=COLUMN:pc", mappings=MAP[:2])


def test_a_column_in_another_case_is_pointed_out(catalogue, run) -> None:
    catalogue["Distance"] = catalogue.pop("distance")
    refuse(run, catalogue, r"'Distance': the case must match")
    refuse(run, catalogue, r"'Distance': the case must match", mappings=MAP[:2])


def test_a_duplicate_column_is_refused(tmp_path: Path, catalogue, run) -> None:
    path = write_csv(tmp_path / "a.csv", catalogue)
    path.write_text(path.read_text().replace("source_id,l,", "l,l,", 1))
    refuse(run, path, "more than one column 'l'", mappings=MAP)


def duplicated_fits(path: Path) -> None:
    column = np.ones(20)
    Table({"l": column, "b": column}).write(path, format="fits")
    # astropy itself refuses to write them; other programs do.
    path.write_bytes(path.read_bytes().replace(b"'b       '", b"'l       '"))


def duplicated_pandas(path: Path) -> None:
    """As ``DataFrame.to_hdf`` writes it: blocks of columns of one type."""
    with h5py.File(path, "w") as file:
        group = file.create_group("stars")
        group.attrs["pandas_type"] = np.bytes_("frame")
        for block, names in enumerate((["l", "b"], ["l"])):
            group[f"block{block}_items"] = np.array(names, "S4")
            group[f"block{block}_values"] = np.ones((20, len(names)))


@pytest.mark.parametrize("write", [duplicated_fits, duplicated_pandas])
def test_duplicates_of_binary_files_are_refused(tmp_path: Path, run, write) -> None:
    write(tmp_path / "stars")
    refuse(run, tmp_path / "stars", "more than one column 'l'", mappings=MAP)


def test_tables_of_one_hdf5_file_are_chosen_as_the_message_says(tmp_path: Path) -> None:
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as file:
        for name in ("near", "far"):
            file[name] = np.zeros(20, [("l", "f8"), (name, "f8")])
    with pytest.raises(InputError) as refusal:
        open_source(path)
    remedy = str(refusal.value).split(": ")[-1].replace("TABLE", "far")
    assert list(open_source(Path(remedy)).columns) == ["l", "far"]


def test_hundreds_of_tables_are_not_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "vizier.vot"
    parts = [
        f'<TABLE name="J/A+A/{n}/t"><FIELD name="l" datatype="double"/><DATA>'
        "<TABLEDATA><TR><TD>1</TD></TR></TABLEDATA></DATA></TABLE>"
        for n in range(360)
    ]
    path.write_text(
        '<?xml version="1.0"?><VOTABLE version="1.4" '
        'xmlns="http://www.ivoa.net/xml/VOTable/v1.3"><RESOURCE>'
        + "".join(parts)
        + "</RESOURCE></VOTABLE>"
    )
    with pytest.raises(InputError, match="360 tables") as refusal:
        open_source(path)
    assert len(str(refusal.value)) < 400 + len(str(tmp_path)) * 2
    remedy = Path(str(refusal.value).split("'")[-2])
    assert list(open_source(remedy).columns) == ["l"]


@pytest.mark.parametrize("value", ["abc", "1.2.3", "12 pc", "1,5"])
def test_text_in_a_column_of_numbers_is_refused(value: str, catalogue, run) -> None:
    column = catalogue["distance"].astype(object)
    column[19] = f'"{value}"'
    match = rf"column 'distance'.*Row #21.*{value}"
    refuse(run, {**catalogue, "distance": column}, match)


def test_text_and_booleans_are_no_numbers_in_typed_files(
    tmp_path: Path, catalogue, run
) -> None:
    for bad in (np.array(["12"] * 20), np.ones(20, bool)):
        for name in ("a.fits", "a.parquet"):
            form = {"format": "parquet"} if name == "a.parquet" else {}
            table = Table({**catalogue, "distance": bad})
            table.write(tmp_path / name, overwrite=True, **form)
            refuse(run, tmp_path / name, "expected numbers", mappings=MAP)


def unit_table(catalogue, unit: str) -> Table:
    table = Table(catalogue)
    for name, usual in UNITS.items():
        table[name].unit = usual
    table["distance"].unit = unit
    return table


def test_an_unparsable_unit_in_the_file_is_refused_unless_it_is_stated(
    tmp_path: Path, catalogue, run
) -> None:
    unit_table(catalogue, "pc").write(tmp_path / "a.ecsv")
    text = (tmp_path / "a.ecsv").read_text().replace("unit: pc", "unit: wagon")
    (tmp_path / "a.ecsv").write_text(text)
    refuse(run, tmp_path / "a.ecsv", "'wagon' is not understood")
    stars, _ = run(tmp_path / "a.ecsv", mappings=["distance=distance:pc"])
    np.testing.assert_allclose(stars.distance, catalogue["distance"])


def test_a_contradictory_unit_is_refused(tmp_path: Path, catalogue, run) -> None:
    unit_table(catalogue, "pc").write(tmp_path / "a.fits")
    contradiction = ["distance=distance:kpc"]
    refuse(run, tmp_path / "a.fits", "has 'pc' but 'kpc'", mappings=contradiction)
    _, report = run(tmp_path / "a.fits", mappings=["distance=distance:parsec"])
    assert report.rows_kept == 20


@pytest.mark.parametrize("name", ["a.fits", "a.csv", "a.parquet", "a.ecsv"])
def test_identifiers_as_floating_point_are_refused(
    name: str, tmp_path: Path, catalogue, run
) -> None:
    catalogue["source_id"] = catalogue["source_id"].astype(float)
    path = tmp_path / name
    if name == "a.csv":
        write_csv(path, catalogue)
    else:
        form = {"a.parquet": "parquet", "a.ecsv": "ascii.ecsv"}.get(name)
        Table(catalogue).write(path, **({"format": form} if form else {}))
    refuse(run, path, "floating point", mappings=MAP)
    run(path, mappings=[*MAP, "source_id=none"])


def test_an_existing_output_is_kept_unless_told(tmp_path: Path, catalogue) -> None:
    source = write_csv(tmp_path / "a.csv", catalogue)
    output = tmp_path / "o.parquet"
    output.write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        ingest([source], output, mappings=MAP)
    bad = write_csv(tmp_path / "bad.csv", {**catalogue, "distance": [-1] * 20})
    with pytest.raises(InputError):
        ingest([bad], output, mappings=MAP, overwrite=True)
    assert output.read_text() == "mine" and len(list(tmp_path.iterdir())) == 3
    ingest([source], output, mappings=MAP, overwrite=True)
    assert output.read_bytes().startswith(b"PAR1")


def test_absent_sources_and_folders_are_refused(tmp_path: Path, run) -> None:
    refuse(run, tmp_path / "none.csv", r"none\.csv does not exist")
    (tmp_path / "empty").mkdir()
    refuse(run, tmp_path / "empty", "holds no file")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("distance", "expected CANONICAL=COLUMN"),
        ("distance=", "expected CANONICAL=COLUMN"),
        ("distance=d:", "expected CANONICAL=COLUMN"),
        ("dist=d:pc", "'dist' is not a canonical column"),
        ("extinction_error=0.1", "a constant needs a unit"),
        ("extinction=0*av:mag", "not zero"),
        ("source_id=2*id", "column of numbers"),
    ],
)
def test_a_malformed_mapping_is_refused(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse_mappings([text])


def test_a_broken_ecsv_header_is_refused(tmp_path: Path, catalogue, run) -> None:
    unit_table(catalogue, "pc").write(tmp_path / "a.ecsv")
    text = (tmp_path / "a.ecsv").read_text()
    (tmp_path / "a.ecsv").write_text(text.replace("# - {name: l,", "# - {nom: l,"))
    refuse(run, tmp_path / "a.ecsv", "broken ECSV header")


def test_filters_name_columns_that_are_there(tmp_path: Path, catalogue, run) -> None:
    refuse(run, catalogue, "no column 'ruwe'", where="ruwe < 1.4")
    unit_table(catalogue, "pc").write(tmp_path / "a.fits")
    refuse(run, tmp_path / "a.fits", "expected text", where="l == 'x'")


REST = [item for item in MAP if not item.startswith("distance")]
XYZ = [f"{axis}=l:pc" for axis in "xyz"]


@pytest.mark.parametrize(
    ("mappings", "match"),
    [
        (REST, "--map distance=distance:kpc"),
        ([*REST, "distance=none"], "it has: source_id, l, b"),
        ([*REST, "distance=none", "parallax=l:mas"], "parallax_error=COLUMN:mas"),
        ([*MAP[:4], "extinction_error=none"], "extinction_error=0.05:mag"),
        ([*REST, "distance=distance"], "no unit is given or in the file"),
        ([*REST, "distance=distance:parsecs"], "not understood"),
        ([*REST, "distance=distance:mag"], "not a unit of distance"),
        ([*REST, "distance=distance:mas"], "not a unit of distance"),
        ([*MAP, "l=b:deg"], "given twice"),
        ([*MAP, "ra=l:deg", "dec=b:deg"], "more than one position"),
        ([*MAP, "parallax=l:mas", "parallax_error=b:mas"], "more than one distance"),
        ([*MAP, "extinction_lower=l:mag"], "of no use.*counterpart"),
        ([*MAP, "extinction_lower=l:mag", "extinction_upper=b:mag"], "keep one"),
        ([*MAP, "parallax_error=b:mas"], "of no use"),
        ([*XYZ, *MAP[2:]], "distance=.* is of no use"),
    ],
)
def test_unfit_mappings_are_refused(mappings, match: str, catalogue, run) -> None:
    refuse(run, catalogue, match, mappings=mappings)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"keep": ["colour"]}, "no column 'colour'"),
        ({"keep": ["distance"]}, "cannot keep a column as 'distance'"),
        ({"preset": "gaia"}, "choose one of ananke, cluster-surveys"),
    ],
)
def test_unfit_choices_are_refused(options, match: str, catalogue, run) -> None:
    refuse(run, catalogue, match, **options)
