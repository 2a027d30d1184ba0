"""Text tables that readers of other programs are asked about again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.base.errors import InputError
from pipelines.catalog.sources import open_source, read_columns

NAN = np.nan
CDS = """Title: Stars
Table: Distances
=====================================================================
Byte-by-byte Description of file: stars.txt
---------------------------------------------------------------------
   Bytes Format Units  Label   Explanations
---------------------------------------------------------------------
   1-  4 F4.1   pc     d       ?=-9.9 Distance
   6-  6 A1     ---    l_AV    Limit flag on AV
   7- 10 F4.2   mag    AV      Extinction
  12- 14 I3     ---    n       ?="---" Number of spectra
---------------------------------------------------------------------
12.5  0.40   3
-9.9 <0.30 ---
"""
FILES = {
    "byte-order mark": ("\ufeff" + '"d",b\r\n1,2\r\n3,4\r\n', [1, 3]),
    "decimal commas later": ("d;b\n1;2\n3,25;4,5\n", [1, 3.25]),
    "decimal commas and tabs": ("d\tb\n1,5\t2\n3,25\t4,5\n", [1.5, 3.25]),
    "lists are no decimals": ("d\trefs\n1.5\t1,2\n3.5\t3,4\n", [1.5, 3.5]),
    "Fortran": ("d b\n1.5D+02 1\n2.5d-01 2\n-- 3\n", [150, 0.25, NAN]),
    "Fortran and commas": ("d;b\n1,5D+02;1\n2,5;2\n", [150, 2.5]),
    "minus of typesetters": ("d,b\n−2.5,1\n3,2\n", [-2.5, 3]),
    "dots": ("d,b\n...,1\n5,2\n", [NAN, 5]),
    "dashes": ("d b\n- 1\n5 2\n--- 3\n", [NAN, 5, NAN]),
    "pandas' and astropy's marks": ("b,d\n1,<NA>\n2,#N/A\n3,masked\n", [NAN] * 3),
    "commas at the ends of rows": ("d,b\n1,2,\n3,4,\n", [1, 3]),
    "commas at all ends": ("d,b,\n1,2,\n3,4,\n", [1, 3]),
    "bars": ("| d | b |\n| 1.5 | 2 |\n| 3 |   |\n", [1.5, 3]),
    "Markdown": ("| d | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n", [1, 3]),
    "quoted newline": ('d,n\n1,"two\nlines"\n3,x\n', [1, 3]),
    "sep=": ("sep=;\nd;b\n1;2\n3;4\n", [1, 3]),
    "units before integers and text": ("d,n\npc,\n1,a\n3,b\n", [1, 3]),
    "carriage returns": ("d,b\r1,2\r3,4\r", [1, 3]),
    "null of the CDS": (CDS, [12.5, NAN]),
}


def read(path: Path, name: str, kind: str) -> list:
    batches = read_columns(open_source(path), [(name, kind)])
    return np.concatenate([batch[name, kind] for batch in batches]).tolist()


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_numbers_are_read_as_they_are_meant(content, expected, tmp_path: Path) -> None:
    path = tmp_path / "stars.txt"
    path.write_text(content, encoding="utf-8", newline="")
    np.testing.assert_array_equal(read(path, "d", "number"), expected)


def test_limits_nulls_and_signs_of_the_cds_are_text(tmp_path: Path) -> None:
    (tmp_path / "stars.txt").write_text(CDS)
    assert read(tmp_path / "stars.txt", "l_AV", "string") == [None, "<"]
    np.testing.assert_array_equal(read(tmp_path / "stars.txt", "n", "value"), [3, NAN])
    # A lone dash is no number of the CDS, but a sign.
    dashes = CDS.replace("12.5  0.40   3", "12.5 -   -   -")
    (tmp_path / "stars.txt").write_text(dashes)
    assert read(tmp_path / "stars.txt", "l_AV", "string") == ["-", "<"]
    for name, expected in (("AV", [NAN, 0.3]), ("n", [NAN, NAN])):
        numbers = read(tmp_path / "stars.txt", name, "value")
        np.testing.assert_array_equal(numbers, expected)
    # As in the column DE-: missing as a number, but not as a text.
    (tmp_path / "a.csv").write_text("DE-,d\n-,1\n+,2\n")
    assert read(tmp_path / "a.csv", "DE-", "string") == ["-", "+"]


@pytest.mark.parametrize("content", ['d\n"1,234.5"\n', "d,b\n5%,1\n", "d,b\n1\n"])
def test_what_has_two_meanings_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError):
        read(tmp_path / "a.csv", "d", "number")
