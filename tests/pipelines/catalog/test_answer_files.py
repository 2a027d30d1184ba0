"""Columns of tables come out of every format as they went in, or are refused."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from astropy.table import Table

from pipelines.base.errors import InputError
from pipelines.catalog.answer_files import answer_file, check_columns
from pipelines.catalog.sources import all_columns, open_source, read_columns

FORMATS = (".parquet", ".csv", ".ecsv", ".fits", ".vot")
BIG, LARGE = 2**53 + 1, 2**63 + 5
# What a column holds, in what Arrow type, and formats that refuse it.
COLUMNS = {
    "text": (["\u00e9", "\u65e5\u672c", "b c"], pa.string(), {".fits"}),
    "no_text": ([None, None, None], pa.string(), ()),
    "uint64": ([LARGE, 2**64 - 1, 1], pa.uint64(), {".csv", ".vot"}),
    "some_uint64": ([LARGE, None, 0], pa.uint64(), {".csv", ".fits", ".vot"}),
    "small_uint64": ([BIG, None, 0], pa.uint64(), ()),
    "int64": ([BIG, -(2**63), 2**63 - 1], pa.int64(), ()),
    "some_int64": ([999999, None, -(2**63)], pa.int64(), ()),
    "no_int64": ([None, None, None], pa.int64(), ()),
    "int8": ([-128, None, 127], pa.int8(), ()),
    "uint8": ([255, None, 63], pa.uint8(), ()),
    "uint16": ([65535, None, 0], pa.uint16(), ()),
    "bool": ([True, False, True], pa.bool_(), ()),
    "some_bool": ([True, None, False], pa.bool_(), {".fits"}),
    "no_float": ([None, None, None], pa.float64(), ()),
    "float": ([0.1, None, -1e-300], pa.float64(), ()),
}


def own_columns(path):
    """The columns as the program reads them."""
    source = open_source(path)
    requests = {name: request for name, (request, _) in all_columns(source).items()}
    (batch,) = read_columns(source, requests.values())
    infos = {name: info for name, (_, info) in all_columns(source).items()}
    return infos, {name: batch[request] for name, request in requests.items()}


def written(path, columns, infos):
    check_columns(path, iter([columns]))
    with answer_file(
        path, infos, {}, {"map": "carte d'\u00e9t\u00e9"}, overwrite=False
    ) as write:
        write(columns)
    return path


def plain(values):
    """Values with None for what is missing, as some formats have empty text."""
    nothing = (v is None or v is np.ma.masked or v == "" or v != v for v in values)
    return [None if gone else v for gone, v in zip(nothing, values, strict=True)]


def read_back(path, name):
    """The column by the format's own libraries, and by the program."""
    if path.suffix in (".parquet", ".csv"):
        arrow, pandas = {
            ".parquet": (pq.read_table, pd.read_parquet),
            ".csv": (pacsv.read_csv, pd.read_csv),
        }[path.suffix]
        yield arrow(path)[name].to_pylist()
        series = pandas(path, dtype_backend="pyarrow")[name]
        yield series.astype(object).where(series.notna(), None).tolist()
    if path.suffix != ".parquet":
        # Booleans in CSV are text to astropy.
        words = {"true": True, "false": False}
        yield [words.get(value, value) for value in Table.read(path)[name].tolist()]
    yield own_columns(path)[1][name].tolist()


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_exact_or_refused_by_its_name(tmp_path, name, suffix):
    values, kind, refusing = COLUMNS[name]
    column, path = pa.array(values, kind), tmp_path / f"out{suffix}"
    pq.write_table(pa.table({name: column, "z": [1, 2, 3]}), tmp_path / "in.parquet")
    infos, columns = own_columns(tmp_path / "in.parquet")
    if suffix in refusing:
        with pytest.raises(InputError, match=f"{name!r}.*choose one of .parquet"):
            written(path, columns, infos)
        assert not path.exists()
        return
    for found in read_back(written(path, columns, infos), name):
        assert plain(found) == values


@pytest.mark.parametrize("suffix", FORMATS)
def test_dates_lists_and_bytes_become_exact_text(tmp_path, suffix):
    """And columns of several values become several."""
    noon = datetime(2020, 1, 2, 12, tzinfo=UTC)
    table = pa.table(
        {
            "ns": pa.array([1577966400123456789, None], pa.timestamp("ns")),
            "utc": pa.array([noon, noon], pa.timestamp("ms", tz="UTC")),
            "day": pa.array([noon.date(), None]),
            "list": pa.array([[0.1234567890123, 1.0], [2.0]]),
            "bytes": pa.array([b"ab", None]),
            "v": pa.FixedSizeListArray.from_arrays(pa.array([1.5, 2, 3, 4]), 2),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    infos, columns = own_columns(tmp_path / "in.parquet")
    expected = {
        "ns": ["2020-01-02T12:00:00.123456789", None],
        "utc": ["2020-01-02T12:00:00.000Z"] * 2,
        "day": ["2020-01-02", None],
        "list": ["[0.1234567890123, 1.0]", "[2.0]"],
        "bytes": ["ab", None],
        "v_0": [1.5, 3.0],
    }
    assert {name: columns[name].tolist() for name in expected} == expected
    path = written(tmp_path / f"out{suffix}", columns, infos)
    found = (
        pq.read_table(path).to_pydict() if suffix == ".parquet" else Table.read(path)
    )
    for name, values in expected.items():
        back = [str(v) if isinstance(v, str) else v for v in found[name]]
        assert plain(back) == values


@pytest.mark.parametrize("suffix", FORMATS)
def test_complex_numbers(tmp_path, suffix):
    values = np.array([1 + 2j, -0.1j])
    Table({"c": values, "z": [1, 2]}).write(tmp_path / "in.fits")
    infos, columns = own_columns(tmp_path / "in.fits")
    path = tmp_path / f"out{suffix}"
    if suffix not in (".fits", ".vot"):
        with pytest.raises(InputError, match=r"'c'.*choose one of .fits"):
            written(path, columns, infos)
    else:
        assert (
            Table.read(written(path, columns, infos))["c"].tolist() == values.tolist()
        )


@pytest.mark.parametrize("row", ["{}", "{},5", "x,{}"])
def test_integers_from_2_to_the_63_on_are_read_exactly_from_text(tmp_path, row):
    head = ",".join(["a", "b"][: row.count(",") + 1])
    lines = [head, row.format(7), row.format(LARGE), row.format("")]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n" + row.format(8) + "\n")
    found = [*own_columns(tmp_path / "a.csv")[1].values()][1 if row[0] == "x" else 0]
    assert LARGE in found.tolist() and found.dtype == np.uint64
