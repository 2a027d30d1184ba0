"""Tables of every shape that people have, and what is said of those that do not do."""

import numpy as np
import pytest
from astropy.table import MaskedColumn, Table

from pipelines.base.errors import InputError
from pipelines.regress import regress_table
from pipelines.regress.table import read_rows

ROWS = 40
X = np.linspace(0, 1, ROWS)


def table(folder, **columns):
    """Save a table of two inputs and a target, and more columns."""
    columns = {"a": X, "b": X**2, "y": np.sin(X), **columns}
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values())]
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def chosen(path, **choices):
    return read_rows(path, "y", **choices)


def some(value, at=(3, 7)):
    values = X.astype(object).copy()
    values[list(at)] = value
    return values


def test_all_forms_of_a_table_hold_the_same(tmp_path):
    flags = X > 0.5
    gaps = MaskedColumn(X, mask=np.arange(ROWS) == 4)
    columns = {"a": X, "n": np.arange(ROWS), "gaps": gaps, "flag": flags, "y": X**2}
    for name in ("t.csv", "t.tsv", "t.ecsv", "t.fits", "t.parquet"):
        form = {"t.tsv": "ascii.tab", "t.csv": "csv"}.get(name)
        Table(columns).write(tmp_path / name, format=form)
        rows = chosen(tmp_path / name, inputs=["n", "gaps"])
        assert rows.missing == {"gaps": 1}, name
        assert rows.row.tolist() == [i for i in range(ROWS) if i != 4]
        np.testing.assert_allclose(rows.x[:, 1], gaps[rows.row])
        np.testing.assert_allclose(rows.y, X[rows.row] ** 2)
        if name in ("t.fits", "t.parquet"):
            assert chosen(tmp_path / name).inputs == ("a", "n", "gaps", "flag")


def test_unnamed_columns_are_not_taken(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",a,y\n" + "".join(f"{i},{i}.5,{i}\n" for i in range(5)))
    rows = chosen(path)
    assert rows.inputs == ("a",) and rows.notes[0].endswith("left out: (unnamed)")


def test_all_other_numbers_are_inputs_and_text_is_said_to_be_left_out(tmp_path):
    data = chosen(table(tmp_path, name=["x"] * ROWS))
    assert data.inputs == ("a", "b")
    (note,) = data.notes
    assert note.endswith("left out: name")
    assert chosen(table(tmp_path), inputs=("b",)).inputs == ("b",)


def test_copies_of_rows_are_counted_and_are_not_among_those_to_test(tmp_path):
    once = chosen(table(tmp_path))
    both = {"a": [*X, *X], "b": [*X**2, *X**2], "y": [*np.sin(X), *np.sin(X)]}
    twice = chosen(table(tmp_path, **both))
    assert (once.repeated, twice.repeated, twice.left_out) == (0, ROWS, 0)
    for name in ("x", "y", "row", "test"):
        np.testing.assert_array_equal(getattr(twice, name), getattr(once, name))


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
    path = table(tmp_path, s=[1] * 5 + [0] * (ROWS - 5))
    once, again, other = (chosen(path, seed=s).test for s in (1, 1, 2))
    assert once.sum() == 8 and (once == again).all() and (once != other).any()
    by_column = chosen(path, split_column="s")
    assert by_column.test.tolist() == [True] * 5 + [False] * (ROWS - 5)
    assert "s" not in by_column.inputs


MISTAKES = [
    ({}, {"target": "z"}, "has no column 'z'; it has: a, b, y"),
    ({}, {"inputs": ("a", "c")}, "has no column 'c'"),
    ({}, {"inputs": ("a", "a")}, "names a twice"),
    ({}, {"inputs": ("a", "y")}, "'y' is target or noise"),
    ({"y": ["x"] * ROWS}, {}, "t.csv: 'y' must hold numbers, but row 1 holds 'x'"),
    ({"a": some("oops")}, {"inputs": ("a",)}, "row 4 holds 'oops'"),
    ({"a": [""] * ROWS}, {}, "missing by column: 40 in a"),
    ({"y": ["nan"] * ROWS}, {}, "missing by column: 40 in y"),
    ({"y": [3.0] * ROWS}, {}, "the target is 3 in every row to fit"),
    ({"a": [1.0] * ROWS, "b": [2.0] * ROWS}, {}, "every input is constant (a, b)"),
    ({"s": [0] * ROWS}, {"split_column": "s"}, "40 rows to fit and 0 to test"),
    ({"s": X}, {"split_column": "s"}, "38 rows hold something else, the first 0.025"),
    ({}, {"split_column": "t"}, "has no column 't'"),
    ({}, {"test_fraction": 0.9}, "4 rows to fit, at least 10"),
    ({}, {"test_fraction": 1.0}, "test fraction lies between 0 and 1"),
    ({}, {"method": "magic"}, "method takes auto, exact, neighbours, grid, svgp"),
    ({}, {"likelihood": "cauchy"}, "likelihood takes gaussian, student-t, got"),
]


@pytest.mark.parametrize(("columns", "choices", "said"), MISTAKES)
def test_a_mistake_is_named(tmp_path, columns, choices, said):
    source = table(tmp_path, **columns)
    with pytest.raises(InputError) as caught:
        regress_table(source, tmp_path / "run", **{"target": "y", **choices})
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a,y\n", "has no rows"),
        (b"a,y\n1,2\n1,2,3\n", "cannot be read"),
        (None, "is not a file"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, said):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        chosen(path)
