"""Tables of every shape that people have, and what is said of those that do not do."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.base.errors import InputError
from pipelines.regress import regress_table
from pipelines.regress.table import read_any, split

ROWS = 40
X = np.linspace(0, 1, ROWS)


def write(path, columns, delimiter=","):
    lines = [delimiter.join(columns)]
    lines += [delimiter.join(map(str, row)) for row in zip(*columns.values())]
    path.write_text("\n".join(lines) + "\n")
    return path


def table(path, **columns):
    plain = {"a": X, "b": X**2, "y": np.sin(X)}
    return read_any(write(path / "t.csv", {**plain, **columns}))


def chosen(read, **choices):
    return split(read, **{"target": "y", **choices})


def some(value, at=(3, 7)):
    values = X.astype(object).copy()
    values[list(at)] = value
    return values


def test_all_forms_of_a_table_hold_the_same(tmp_path):
    columns = {"a": X, "n": np.arange(ROWS), "y": X**2}
    comma = write(tmp_path / "t.csv", columns)
    write(tmp_path / "semicolon.csv", columns, ";")
    write(tmp_path / "tab.tsv", columns, "\t")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(comma.read_bytes()))
    (tmp_path / "mark.csv").write_text(comma.read_text(), encoding="utf-8-sig")
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for path in sorted(tmp_path.iterdir()):
        read = read_any(path)
        assert read.rows == ROWS
        assert read.numeric == ("a", "n", "y"), path
        np.testing.assert_array_equal(read.columns["y"], X**2)


def test_a_table_without_names_gets_some_and_says_so(tmp_path):
    path = tmp_path / "t.csv"
    np.savetxt(path, np.c_[X, X**2], delimiter=",")
    read = read_any(path)
    assert read.numeric == ("column_1", "column_2") and read.rows == ROWS
    assert "column_1 to column_2" in read.notes[0]


def test_booleans_are_numbers_and_unnamed_columns_are_not_taken(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",flag,y\n0,true,1.5\n1,false,2.5\n")
    read = read_any(path)
    assert read.numeric == ("flag", "y")
    assert read.columns["flag"].tolist() == [1.0, 0.0]
    assert "without a name" in read.notes[0]


def test_all_other_numbers_are_inputs_and_text_is_said_to_be_left_out(tmp_path):
    data = chosen(table(tmp_path, name=["x"] * ROWS))
    assert data.inputs == ("a", "b")
    assert data.notes == ("columns without numbers are left out: name",)
    assert chosen(table(tmp_path), inputs=("b",)).inputs == ("b",)


@pytest.mark.parametrize("value", ["", "NaN", "NA", "null", "inf", "-inf"])
def test_rows_with_gaps_are_counted_by_column_and_left_out(tmp_path, value):
    data = chosen(table(tmp_path, a=some(value), y=some(value, at=(7, 9))))
    assert data.missing == {"a": 2, "y": 2}
    assert data.left_out == 3
    assert not set(data.row) & {3, 7, 9}
    assert len(data.x) == ROWS - 3


def test_a_constant_input_is_dropped_and_named(tmp_path):
    data = chosen(table(tmp_path, b=[7.5] * ROWS))
    assert data.inputs == ("a",) and data.x.shape == (ROWS, 1)
    assert data.notes == ("constant inputs are left out: b",)


def test_the_split_is_by_seed_or_by_column(tmp_path):
    read = table(tmp_path, s=[1] * 5 + [0] * (ROWS - 5))
    once, again, other = (chosen(read, seed=s).test for s in (1, 1, 2))
    assert once.sum() == 8 and (once == again).all() and (once != other).any()
    by_column = chosen(read, split_column="s")
    assert by_column.test.tolist() == [True] * 5 + [False] * (ROWS - 5)
    assert "s" not in by_column.inputs


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"], ("no", "yes")),
        ([False, True], ("0", "1")),
        ([1, 2], ("1", "2")),
        ([-1.0, 1.0], ("-1", "1")),
    ],
)
def test_two_values_of_any_kind_are_classes(tmp_path, values, classes):
    column = [str(v).lower() for v in values] * (ROWS // 2)
    data = chosen(table(tmp_path, y=column), classes=True)
    assert data.classes == classes
    assert data.y.tolist() == [0.0, 1.0] * (ROWS // 2)
    said = f"classes of y: {classes[0]} is 0, {classes[1]} is 1"
    assert (said in data.notes) == (classes != ("0", "1"))


MISTAKES = [
    ({}, {"target": "z"}, "has no column 'z' for the target: there are a, b, y"),
    ({}, {"inputs": ("a", "c")}, "has no column 'c' for the input"),
    ({}, {"inputs": ("a", "a")}, "names a twice"),
    ({}, {"inputs": ("a", "y")}, "'y' is among the inputs"),
    ({"y": ["x"] * ROWS}, {}, "target 'y' must hold numbers, but row 1 holds 'x'"),
    ({"a": some("oops")}, {"inputs": ("a",)}, "row 4 holds 'oops'"),
    ({"y": ["u", "v"] * 20}, {}, "--likelihood bernoulli"),
    ({"a": [""] * ROWS}, {}, "missing by column: 40 in a"),
    ({"y": ["nan"] * ROWS}, {}, "missing by column: 40 in y"),
    ({"y": [3.0] * ROWS}, {}, "the target is 3 in every row to fit"),
    ({"a": [1.0] * ROWS, "b": [2.0] * ROWS}, {}, "every input is constant (a, b)"),
    ({}, {"likelihood": "bernoulli"}, "two values, it has 40"),
    ({"y": ["u"] * ROWS}, {"likelihood": "bernoulli"}, "it has 1: u"),
    ({"s": [0] * ROWS}, {"split_column": "s"}, "40 rows to fit and 0 to test"),
    ({"s": [1] * ROWS}, {"split_column": "s"}, "0 rows to fit and 40 to test"),
    ({"s": X}, {"split_column": "s"}, "38 rows hold something else, the first 0.025"),
    ({}, {"split_column": "t"}, "has no column 't' for the split column"),
    ({}, {"test_fraction": 0.9}, "4 rows to fit, at least 10"),
    ({}, {"test_fraction": 1.0}, "test fraction lies between 0 and 1"),
    ({}, {"method": "magic"}, "method takes auto, exact, neighbours, svgp"),
    ({}, {"likelihood": "cauchy"}, "likelihood takes gaussian, student-t, bern"),
    ({}, {"method": "exact", "likelihood": "bernoulli"}, "use svgp"),
]


@pytest.mark.parametrize(("columns", "choices", "said"), MISTAKES)
def test_a_mistake_is_named(tmp_path, columns, choices, said):
    source = table(tmp_path, **columns).path
    with pytest.raises(InputError) as caught:
        regress_table(source, tmp_path / "run", **{"target": "y", **choices})
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a,y\n", "has no rows"),
        (b"a,y,a\n1,2,3\n", "more than one column 'a'"),
        (b"a,y\n1,2\n1,2,3\n", "cannot be read"),
        (b"PAR1 and nothing more", "cannot be read"),
        (b"\xff\xfe\x00\x01", "cannot be read"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, said):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_any(path)
