"""The canonical table survives the disk, and refuses what is not one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipelines.base.errors import InputError
from pipelines.catalog.schema import (
    CANONICAL_UNITS,
    Stars,
    read_stars,
    read_table,
    write_stars,
    write_table,
)
from pipelines.catalog.tables import whole_column


def make_stars(n: int = 5, **changes) -> Stars:
    values = {
        "l": np.linspace(0, 300, n),
        "b": np.linspace(-60, 60, n),
        "distance": np.linspace(100, 2000, n),
        "extinction": np.linspace(-0.1, 2, n),
        "extinction_error": np.full(n, 0.05),
    }
    return Stars(**{**values, **changes})


def assert_same(a: Stars, b: Stars) -> None:
    assert list(a.columns()) == list(b.columns())
    for name, column in a.columns().items():
        np.testing.assert_array_equal(column, b.columns()[name])


@settings(max_examples=25, deadline=None)
@given(
    values=arrays(
        np.float64, st.tuples(st.just(5), st.integers(1, 20)), elements=st.floats(-9, 9)
    ),
    names=st.booleans(),
)
def test_stars_survive_the_disk(tmp_path_factory, values, names) -> None:
    ids = np.arange(values.shape[1])
    stars = Stars(
        l=values[0],
        b=values[1],
        distance=values[2],
        extinction=values[3],
        extinction_error=values[4],
        source_id=np.array([f"star {i} é" for i in ids]) if names else ids + 2**62,
        extra={"density_true": values[0] * 2},
        units={"density_true": "mag pc-1"},
        meta={"seed": 3, "nested": {"a": [1, None]}},
    )
    path = tmp_path_factory.mktemp("stars") / "stars.parquet"
    write_stars(path, stars, overwrite=False)
    again = read_stars(path)
    assert_same(stars, again)
    assert again.meta == stars.meta
    assert again.units["density_true"] == "mag pc-1"
    assert again.units["distance"] == "pc"
    assert pq.read_schema(path).field("distance").metadata == {b"unit": b"pc"}


def test_positions_point_to_the_axes_of_the_galaxy() -> None:
    stars = make_stars(
        3,
        l=np.array([0.0, 90.0, 123.0]),
        b=np.array([0.0, 0.0, 90.0]),
        distance=np.array([1.0, 2.0, 3.0]),
    )
    np.testing.assert_allclose(stars.positions(), np.diag([1.0, 2, 3]), atol=1e-12)


def test_a_folder_of_partitions_is_one_table(tmp_path: Path) -> None:
    stars = make_stars(source_id=np.arange(5))
    folder = tmp_path / "parts"
    folder.mkdir()
    write_stars(folder / "0.parquet", stars.select(slice(0, 2)), overwrite=False)
    write_stars(folder / "1.parquet", stars.select(slice(2, 5)), overwrite=False)
    assert_same(read_stars(folder), stars)


def test_partitions_with_other_columns_are_refused(tmp_path: Path) -> None:
    write_stars(tmp_path / "0.parquet", make_stars(), overwrite=False)
    more = make_stars(distance_error=np.ones(5))
    write_stars(tmp_path / "1.parquet", more, overwrite=False)
    with pytest.raises(InputError, match=r"1\.parquet has columns"):
        read_stars(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": np.zeros(4)}, "shape"),
        ({"distance": np.ones(5, np.float32)}, "float32"),
        ({"extinction_error": None}, "together"),
        ({"extra": {"l": np.zeros(5)}}, "shadow"),
        ({"units": {"distance": "kpc"}}, "expected 'pc'"),
    ],
)
def test_malformed_stars_are_refused(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_stars(**changes)


def test_a_table_of_something_else_is_no_table_of_stars(tmp_path: Path) -> None:
    path = tmp_path / "prediction.parquet"
    columns = {"density_mean": np.ones(2)}
    units = {"density_mean": "mag pc-1"}
    write_table(path, columns, units=units, meta={}, overwrite=False)
    assert read_table(path)[1] == units
    with pytest.raises(InputError, match="lacks the columns"):
        read_stars(path)


def test_gaps_in_a_column_of_integers_survive(tmp_path: Path) -> None:
    column = np.ma.array([1, 2, 3], mask=[False, True, False])
    path = tmp_path / "s.parquet"
    write_table(path, {"n": column}, units={}, meta={}, overwrite=False)
    np.testing.assert_array_equal(read_table(path)[0]["n"], [1, np.nan, 3])


def test_text_of_any_length_is_one_column() -> None:
    # Sixty arrays that share 40 MB, behind a missing value: one array of all of it
    # would need more than the 2 GiB that Arrow allows.
    size = 40_000_000
    text = pa.py_buffer(bytes(size) + b"abc")
    ends = pa.py_buffer(np.array([0, size, size + 3], dtype=np.int32))
    valid = pa.py_buffer(bytes([0b10]))
    part = pa.Array.from_buffers(pa.string(), 2, [valid, ends, text])
    found = whole_column(pa.chunked_array([part] * 60))
    assert found.tolist() == [None, "abc"] * 60


def test_ranks_without_identifiers_read_all_that_a_fit_needs(tmp_path: Path) -> None:
    one = np.ones(3)
    columns = dict.fromkeys(CANONICAL_UNITS, one) | {"merged": 2 * one}
    stars = Stars(**columns, source_id=np.arange(3), extra={"m": one})
    write_stars(tmp_path / "s.parquet", stars, overwrite=False)
    found = read_stars(tmp_path / "s.parquet", canonical_only=True)
    assert found.source_id is None and not found.extra
    np.testing.assert_array_equal(found.distance_std, stars.distance_std)


def test_files_that_are_no_tables_of_stars_are_refused_by_name(tmp_path: Path) -> None:
    foreign = pa.table({"l": [1.0], "b": [1.0], "distance": [1.0]})
    pq.write_table(foreign, tmp_path / "foreign.parquet")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 cut short")
    (tmp_path / "folder").mkdir()
    for name, match in (
        ("foreign.parquet", r"foreign\.parquet.*dustmap ingest"),
        ("empty.parquet", r"empty\.parquet"),
        ("cut.parquet", r"cut\.parquet"),
        ("none.parquet", "does not exist"),
        ("folder", r"holds no \.parquet"),
    ):
        with pytest.raises(InputError, match=match):
            read_stars(tmp_path / name)
