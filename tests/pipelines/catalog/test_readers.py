"""Every format gives the same stars, and says so when it cannot."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from astropy import units as u
from astropy.io import fits
from astropy.table import MaskedColumn, Table
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from small_catalogue import MAP, UNITS, write_csv

from pipelines.base.errors import InputError
from pipelines.catalog.ingest import ingest
from pipelines.catalog.sources import open_source, read_columns
from pipelines.catalog.tables import write_table


def as_table(catalogue) -> Table:
    table = Table(catalogue)
    for name, unit in UNITS.items():
        table[name].unit = unit
    return table


def write_csv_gz(path: Path, catalogue) -> list[str]:
    plain = write_csv(path.with_name("plain.csv"), catalogue)
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return MAP


def written(form: str):
    """Return a function that writes a catalogue by astropy, and needs no mapping."""

    def write(path: Path, catalogue) -> list[str]:
        as_table(catalogue).write(path, format=form)
        return []

    return write


def write_gaia_ecsv(path: Path, catalogue) -> list[str]:
    """Comma-separated with ``null``, gzipped, as the archive's bulk files are."""
    table = as_table(catalogue)
    table["ruwe"] = MaskedColumn(np.ones(len(table)), mask=np.arange(len(table)) < 3)
    plain = path.with_name("gaia.ecsv")
    table.write(plain, format="ascii.ecsv", delimiter=",", fill_values=[("", "null")])
    text = plain.read_text()
    path.write_bytes(gzip.compress(text.replace(",\n", ",null\n").encode()))
    assert text.count(",\n") == 3
    return []


def write_parquet(path: Path, catalogue) -> list[str]:
    write_table(path, catalogue, units=UNITS, meta={}, overwrite=False)
    return []


def write_hdf5(path: Path, catalogue) -> list[str]:
    with h5py.File(path, "w") as file:
        for name, column in catalogue.items():
            file[name] = column
            file[name].attrs["unit"] = UNITS.get(name, "")
    return []


def write_compound_hdf5(path: Path, catalogue) -> list[str]:
    with h5py.File(path, "w") as file:
        file["table"] = as_table(catalogue).as_array()
    return MAP


FORMATS = {
    "a.csv.gz": write_csv_gz,
    "a.ecsv": written("ascii.ecsv"),
    "a.csv.gz ": write_gaia_ecsv,
    "a.fits": written("fits"),
    "a.fits.gz": written("fits"),
    "a.vot": written("votable"),
    "a.parquet": write_parquet,
    "b.parquet": written("parquet"),
    "a.h5": write_hdf5,
    "b.hdf5": write_compound_hdf5,
}


@pytest.mark.parametrize(("name", "write"), FORMATS.items())
def test_every_format_gives_the_same_stars(
    name: str, write, tmp_path: Path, catalogue, run
) -> None:
    path = tmp_path / name.strip()
    stars, report = run(path, mappings=write(path, catalogue))
    assert report.rows_kept == 20
    for column in catalogue:
        np.testing.assert_allclose(stars.columns()[column], catalogue[column])
    assert stars.source_id is not None and stars.source_id.dtype == np.int64


@settings(max_examples=20, deadline=None)
@given(
    values=arrays(np.float64, (2, 6), elements=st.floats(-1e8, 1e8)),
    kind=st.sampled_from([">f8", "<f8", ">f4"]),
    suffix=st.sampled_from(["fits", "h5", "parquet"]),
)
def test_numbers_of_any_byte_order_and_size_are_read(
    tmp_path_factory, values, kind, suffix
) -> None:
    path = tmp_path_factory.mktemp("numbers") / f"a.{suffix}"
    columns = {name: row.astype(kind) for name, row in zip("ab", values)}
    if suffix == "fits":
        Table(columns).write(path)
    elif suffix == "h5":
        with h5py.File(path, "w") as file:
            file.update(columns)
    else:
        native = {n: c.astype(c.dtype.newbyteorder("=")) for n, c in columns.items()}
        pq.write_table(pa.table(native), path)
    batch = next(read_columns(open_source(path), [("b", "number")]))
    assert batch["b", "number"].dtype == np.dtype("=f8")
    np.testing.assert_array_equal(batch["b", "number"], columns["b"].astype(float))


def test_masked_values_are_missing_in_every_format(
    tmp_path: Path, catalogue, run
) -> None:
    mask = np.arange(20) < 4
    masked = {**catalogue, "distance": MaskedColumn(catalogue["distance"], mask=mask)}
    table = as_table(masked)
    table["whole"] = MaskedColumn(np.arange(20), mask=mask)
    for name, options in (
        ("a.ecsv", {"format": "ascii.ecsv"}),
        ("a.vot", {"format": "votable"}),
        ("a.fits", {}),
        ("a.parquet", {"format": "parquet"}),
        ("a.h5", {"path": "stars", "serialize_meta": True}),
    ):
        if name == "a.fits":
            table["whole"].fill_value = -1
        table.write(tmp_path / name, **options)
        _, report = run(tmp_path / name)
        assert report.faults == {"distance missing or not a number": 4}, name
        batch = next(read_columns(open_source(tmp_path / name), [("whole", "number")]))
        assert np.isnan(batch["whole", "number"]).sum() == 4, name


def test_columns_of_vectors_are_read_by_index(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(4, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = values
    Table({"v": values}).write(tmp_path / "a.fits")
    Table({"v": values}).write(tmp_path / "a.vot", format="votable")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)
    pq.write_table(pa.table({"v": vectors}), tmp_path / "a.parquet")
    for path in sorted(tmp_path.iterdir()):
        source = open_source(path)
        batch = next(read_columns(source, [("v[2]", "number")]))
        np.testing.assert_array_equal(
            batch["v[2]", "number"], values[:, 2], err_msg=path.name
        )
        for reference in ("v", "v[3]"):
            with pytest.raises(InputError, match="3 values per row"):
                next(read_columns(source, [(reference, "number")]))


def test_a_folder_of_partitions_is_read_in_order(
    tmp_path: Path, catalogue, run
) -> None:
    folder = tmp_path / "survey"
    for part, rows in enumerate((slice(0, 12), slice(12, 20))):
        (folder / f"pixel={part}").mkdir(parents=True)
        piece = {name: column[rows] for name, column in catalogue.items()}
        write_parquet(folder / f"pixel={part}" / "0.parquet", piece)
    (folder / "_SUCCESS").touch()
    stars, report = run(folder)
    np.testing.assert_array_equal(stars.source_id, catalogue["source_id"])
    assert report.rows_read == 20 and len(report.sources) == 2


def test_an_unreadable_partition_among_good_ones_is_named(
    tmp_path: Path, catalogue, run
) -> None:
    folder = tmp_path / "survey"
    folder.mkdir()
    write_parquet(folder / "0.parquet", catalogue)
    whole = (folder / "0.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"1\.parquet cannot be read"):
        run(folder)
    assert not (tmp_path / "stars.parquet").exists()


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "a.ecsv"])
def test_truncated_files_are_refused(name: str, tmp_path: Path, catalogue, run) -> None:
    path = tmp_path / name.strip()
    many = {column: np.tile(values, 300) for column, values in catalogue.items()}
    mappings = FORMATS[name](path, many)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.6)])
    match = "truncated" if name == "a.fits" else "cannot be read"
    with pytest.raises(InputError, match=match):
        run(path, mappings=mappings)


@pytest.mark.parametrize("name", ["a.csv", "a.fits", "a.parquet", "a.h5", "a.vot"])
@pytest.mark.parametrize("content", [b"", b"  \n", b"\x89PNG\r\n\x1a\n\x00\x00\x00"])
def test_empty_files_and_files_that_are_no_table_are_refused(
    name: str, content: bytes, tmp_path: Path, run
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is"):
        run(tmp_path / name)


def test_a_header_without_rows_is_refused(tmp_path: Path, catalogue, run) -> None:
    empty = {name: column[:0] for name, column in catalogue.items()}
    with pytest.raises(InputError, match="of 0 rows"):
        run(empty)
    for name in ("a.fits", "a.h5", "a.parquet"):
        mappings = FORMATS[name](tmp_path / name, empty)
        with pytest.raises(InputError, match="of 0 rows"):
            run(tmp_path / name, mappings=mappings)


def test_several_tables_in_one_file_are_not_chosen_from(
    tmp_path: Path, catalogue, run
) -> None:
    table = fits.table_to_hdu(as_table(catalogue))
    fits.HDUList([fits.PrimaryHDU(), table, table]).writeto(tmp_path / "a.fits")
    with pytest.raises(InputError, match="2 tables"):
        run(tmp_path / "a.fits")
    fits.PrimaryHDU(np.zeros((3, 3))).writeto(tmp_path / "b.fits")
    with pytest.raises(InputError, match="only images"):
        run(tmp_path / "b.fits")


def test_data_sets_of_different_lengths_are_refused(
    tmp_path: Path, catalogue, run
) -> None:
    mappings = write_hdf5(tmp_path / "a.h5", catalogue)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["distance"]
        file["distance"] = catalogue["distance"][:-1]
        file["distance"].attrs["unit"] = "pc"
    with pytest.raises(InputError, match="different lengths"):
        run(tmp_path / "a.h5", mappings=mappings)


def test_units_in_the_file_are_converted(tmp_path: Path, catalogue, run) -> None:
    table = as_table(catalogue)
    table["distance"] = (catalogue["distance"] / 1000) * u.kpc
    table["l"] = np.deg2rad(catalogue["l"]) * u.rad
    for form in ("ascii.ecsv", "fits", "votable", "parquet"):
        path = tmp_path / f"a.{form.removeprefix('ascii.')}"
        table.write(path, format=form)
        stars, _ = run(path)
        np.testing.assert_allclose(stars.distance, catalogue["distance"])
        np.testing.assert_allclose(stars.l, catalogue["l"])


@pytest.mark.parametrize("first", ["007", "2020-01-01", "NGC 188"])
def test_identifiers_in_text_are_kept_as_written(
    first: str, tmp_path: Path, catalogue
) -> None:
    names = [first, *(f"0{n}" for n in range(1, len(catalogue["distance"])))]
    path = write_csv(tmp_path / "a.csv", {**catalogue, "source_id": names})
    ingest([path], tmp_path / "o.parquet", mappings=MAP)
    found = pq.read_table(tmp_path / "o.parquet")["source_id"].to_pylist()
    assert set(found) == set(names)
