"""Tables are told alike by every verb and script."""

import csv
import json
import math

import numpy as np
import pytest

from pipelines.base.table import Table, strict_json


def test_a_table_has_a_column_for_every_key_and_a_text_for_every_value():
    rows = [
        {"a": 12345, "b": 0.123456, "c": True},
        {"b": 2e4, "c": False, "d": (3, 4), "e": "x|y", "f": None},
    ]
    assert Table.of_rows(rows).text().splitlines() == [
        "| a | b | c | d | e | f |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 12,345 | 0.1235 | yes | – | – | – |",
        "| – | 20,000 | no | 3×4 | x\\|y | – |",
    ]


def test_csv_has_six_digits_and_nothing_for_what_is_unknown(tmp_path):
    numbers = np.array([1 / 3, math.nan], dtype=np.float32)
    table = Table(columns={"x, y": numbers, "n": np.arange(2), "why": ["a,b", None]})
    table.write(tmp_path / "a.csv")
    text = (tmp_path / "a.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))
    assert rows == [["x, y", "n", "why"], ["0.333333", "0", "a,b"], ["", "1", ""]]
    assert len(table) == 2 and table.text(1).count("\n") == 3


def test_columns_of_other_lengths_are_not_a_table():
    with pytest.raises(ValueError, match="shorter"):
        Table(columns={"a": [1, 2], "b": [1]}).text()


def test_a_row_is_listed_by_name_and_escaped_in_a_notebook():
    table = Table.of_rows([{"run": "a<b", "verdict": "usable"}], "dustmap run")
    assert table.listed().splitlines() == [
        "dustmap run",
        "  run      a<b",
        "  verdict  usable",
    ]
    assert "a&lt;b</td>" in table.html() and "<b>dustmap run</b>" in table.html()


def test_what_is_not_finite_is_null_in_strict_json():
    found = strict_json({1: [math.nan, 1.5], "b": {"c": (-math.inf, "x", None)}})
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "1": [None, 1.5],
        "b": {"c": [None, "x", None]},
    }
