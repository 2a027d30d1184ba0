"""Measurements are told alike by every script."""

import json
import math

from pipelines.base.measurement import plain, table


def test_a_table_has_a_column_for_every_key_and_a_text_for_every_value():
    rows = [
        {"a": 12345, "b": 0.123456, "c": True},
        {"b": 2e4, "c": False, "d": (3, 4), "e": "x|y", "f": None},
    ]
    assert table(rows).splitlines() == [
        "| a | b | c | d | e | f |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 12,345 | 0.1235 | yes | – | – | – |",
        "| – | 20,000 | no | 3×4 | x\\|y | – |",
    ]


def test_what_is_not_finite_is_null_in_strict_json():
    found = plain({1: [math.nan, 1.5], "b": {"c": (-math.inf, "x", None)}})
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "1": [None, 1.5],
        "b": {"c": [None, "x", None]},
    }
