"""Tables of text, as archives, NumPy and spreadsheets write them.

The separator is a tab, ``;``, ``|``, a comma or white space. Names are in the first
line that is no comment or behind ``#``; lines of units and of dashes may follow.
Machine-readable tables of the AAS and the CDS, also with a ReadMe beside them, and IPAC
tables are parsed whole, by astropy.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pacsv
from astropy.io import ascii
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog.formats import (
    Batches,
    ColumnInfo,
    Kinds,
    Opened,
    from_astropy,
    unpacked,
)
from pipelines.catalog.frames import Frames, of_header
from pipelines.catalog.tables import to_numpy
from pipelines.catalog.units import parse_unit

NULLS = (
    *("", "null", "NULL", "nan", "NaN", "NAN", "NA", "N/A", "n/a", "None", "masked"),
    *("<NA>", "#N/A", "--", "---", "..."),
)
"""Marks of a missing value in text."""
_BLOCK_BYTES = 1 << 24
_SEPARATORS = "\t;|,"
# Also sexagesimal numbers.
_NUMERIC = re.compile(r"[-+]?(\d+:\d+:)?(\d+\.?\d*|\.\d+)([eEdD][-+]?\d+)?")
_BETWEEN_BLANKS = re.compile(r'"[^"]*"|\S+')
_DASHES = re.compile(r"[-=+|;,\s]*[-=]{3}[-=+|;,\s]*")
_DESCRIBED = re.compile(r"\s*Byte-by-byte Description of file\s*:\s*(.+)", re.I)
# Types of columns by kind; others, such as identifiers, are inferred from the first
# rows.
_ARROW_TYPES: dict[str, Any] = {"boolean": pa.bool_()}
_ARROW_TYPES |= dict.fromkeys(("number", "dex", "value"), pa.float64())
_ARROW_TYPES |= dict.fromkeys(("string", "hms", "dms"), pa.string())


class _Layout(NamedTuple):
    """Descriptions of the columns, and where their rows begin.

    ``skipped`` lines come before the rows, of which ``row`` is the first. If ``padded``
    there are blanks around the separators. ``decimal`` is the sign before the
    decimals; if ``odd``, some numbers are not as Arrow has them.
    """

    columns: list[tuple[str, ColumnInfo]]
    separator: str
    skipped: int
    row: str
    padded: bool = False
    decimal: str = "."
    odd: bool = False
    frames: Frames | None = None


def open_text(path: Path, _: str) -> Opened:
    """Open a table of text in any encoding, packed or not.

    Raises `InputError` if there are no names of columns, or an ECSV header is broken.
    """
    encoding = _encoding(path)
    with _lines(path, encoding) as file:
        # Enough for the comments of any archive.
        beginning = list(islice(file, 2000))
        described = _description(path)
        if described or any(map(_DESCRIBED.match, beginning)):
            form = "cds"
        else:
            plain = [line for line in beginning if line[0] not in "\\#\r\n"]
            bars = [bool(re.fullmatch(r"\|.*\|\s*", line)) for line in plain]
            # Only the header of IPAC is between bars.
            boxed = "basic" if all(bars) else "ipac"
            form = boxed if True in bars[:1] else ""
        if form:
            lines = [line.rstrip("\r\n") for line in (*described, *beginning, *file)]
            options: dict[str, Any] = {"guess": False}
            options["fill_values"] = [(mark, "0") for mark in NULLS]
            if form == "basic":
                lines = [line for line in lines if not _DASHES.fullmatch(line)]
                lines = [line.strip()[1:-1] for line in lines]
                options["delimiter"] = "|"
            # A lone dash is missing in numbers, and a sign in text.
            options["fill_values"].append(("-", "-0"))
            table: Any = ascii.read(lines, format=form, **options)
            for column in table.itercols():
                if column.dtype.kind in "OU" and np.ma.isMA(column):
                    dash = np.ma.getdata(column) == "-0"
                    column[dash & column.mask] = "-"
            return from_astropy(table)
    layout = _layout(path, beginning)
    # Arrow would round integers from 2^63 on.
    large = {
        name
        for line in beginning[layout.skipped :]
        for (name, _), word in zip(layout.columns, _fields(line, layout.separator))
        if re.fullmatch(r"1?\d{19}", word) and int(word) >= 2**63
    }
    reader = partial(_read, path, encoding, layout, large)
    return layout.columns, reader, layout.frames or {}


def _encoding(path: Path) -> str:
    """Return the encoding of a text, which is Latin-1 if it is no Unicode."""
    with unpacked(path) as file:
        start = file.read(2)
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        blocks = chain([start], iter(lambda: file.read(_BLOCK_BYTES), b""))
        try:
            any(text is None for text in codecs.iterdecode(blocks, "utf-8"))
        except UnicodeDecodeError:
            return "latin-1"
    return "utf-8-sig"


@contextmanager
def _lines(path: Path, encoding: str) -> Iterator[io.TextIOWrapper]:
    with unpacked(path) as file, io.TextIOWrapper(file, encoding=encoding) as lines:
        yield lines


def _description(path: Path) -> list[str]:
    """Return the description of a file of the CDS in the ReadMe beside it, if any."""
    name = path.name
    while Path(name).suffix in (".gz", ".bz2", ".xz", ".zip"):
        name = Path(name).stem
    for readme in sorted(path.parent.glob("[Rr][Ee][Aa][Dd][Mm][Ee]*")):
        lines = readme.read_text(encoding="latin-1").splitlines()
        ends = [n for n, line in enumerate(lines) if line.startswith("-----")]
        for number, line in enumerate(lines):
            found = _DESCRIBED.match(line)
            if found and any(fnmatch(name, p) for p in re.split("[, ]+", found[1])):
                # Lines of dashes are above the titles, below them, and at the end.
                end = [n for n in ends if n > number][2:3]
                return lines[number : (end or [len(lines)])[0] + 1]
    return []


def _layout(path: Path, beginning: Sequence[str]) -> _Layout:
    """Find names and units in the first lines."""
    lines = [(n, line.rstrip("\r\n")) for n, line in enumerate(beginning)]
    rows = [(n, text) for n, text in lines if text.strip() and text[0] != "#"]
    before = lines[: rows[0][0]] if rows else lines
    comments = [text[1:] for _, text in before if text.startswith("#")]
    if comments and comments[0].strip().startswith("%ECSV"):
        return _ecsv(path, comments, rows)
    if rows and re.fullmatch(r'"?sep=.{0,1}"?', rows[0][1]):
        # Spreadsheets are told the separator so.
        rows = rows[1:]
    if not rows:
        raise InputError(f"{path} has no rows, only comments")
    separator = _separator([line for _, line in rows[:4]])
    split = [_fields(line, separator) for _, line in rows[:4]]
    names, units, first = split[0], [], 1
    dashes = [bool(_DASHES.fullmatch(line)) for _, line in rows[1:3]]
    if _are_values(names):
        names, units = _behind_hash(comments, len(names))
        first = 0
        if not names:
            columns = separator.join(f"name{n}" for n in range(1, len(split[0]) + 1))
            raise InputError(
                f"{path} has no names of columns: its first row is "
                f"{rows[0][1].strip()[:70]!r}. Give names in a line before it, e.g. "
                f"(echo '{columns}'; cat {path.name}) > named.csv"
            )
    elif True in dashes:
        first = dashes.index(True) + 2
        units = split[1] if first == 3 else []
    elif (
        len(split) > 2
        and _are_units(split[1])
        and any(map(_NUMERIC.fullmatch, split[2]))
    ):
        first, units = 2, split[1]
    if {len(each) for each in split[first:]} == {len(names) + 1} and not any(
        each[-1] for each in split[first:]
    ):
        # Rows end with a separator, the names do not.
        names = [*names, ""]
        units = units and [*units, ""]
    units = [unit.strip("-") and unit for unit in units] or [""] * len(names)
    words = [w for _, line in rows[first:] for w in _fields(line, separator)]
    # Between tabs a comma before three digits may also separate thousands.
    comma = re.compile(r"[-+]?\d+,\d+")
    decimals = [word.rpartition(",")[2] for word in words if comma.fullmatch(word)]
    commas = separator == ";" and bool(decimals)
    commas |= separator == "\t" and any(len(digits) != 3 for digits in decimals)
    row = rows[first][1] if first < len(rows) else ""
    blank = rf" {re.escape(separator)}|{re.escape(separator)} |^ "
    point = re.compile(r"[-+]?\d*\.\d+")
    # What Arrow refuses in columns of numbers: exponents of Fortran's double precision,
    # the minus sign of typesetters, and a dash, which is missing there but text
    # elsewhere.
    odd = re.compile(
        r"[-+−]?[\d.,]*\d[\d.,]*[dD][-+]?\d+|−[\d.,]+([eE][-+−]?\d+)?|[-−]"
    )
    return _Layout(
        columns=[(n, ColumnInfo(unit=u or None)) for n, u in zip(names, units)],
        separator=separator,
        skipped=rows[first][0] if row else len(beginning),
        row=row,
        padded=True in dashes or any(re.search(blank, line) for _, line in rows),
        decimal="," if commas and not any(map(point.fullmatch, words)) else ".",
        odd=any(map(odd.fullmatch, words)),
    )


def _ecsv(
    path: Path, comments: Sequence[str], rows: Sequence[tuple[int, str]]
) -> _Layout:
    """Return the layout of ECSV, which has YAML in its comments."""
    try:
        header = get_header_from_yaml([line.removeprefix(" ") for line in comments][1:])
        fields = {item["name"]: item for item in header["datatype"]}
        separator = header.get("delimiter", " ")
        (names,) = csv.reader([rows[0][1]], delimiter=separator)
    except Exception as error:  # the YAML library's errors have no common base
        raise InputError(f"{path} has a broken ECSV header: {error}") from error
    known = ("unit", "description")
    own = [{k: v for k, v in fields.get(n, {}).items() if k in known} for n in names]
    columns = [(name, ColumnInfo(**item)) for name, item in zip(names, own)]
    row, stated = [*rows, (0, "")][1][1], of_header(header)
    return _Layout(columns, separator, rows[0][0] + 1, row, frames=stated)


def _separator(lines: Sequence[str]) -> str:
    """Return the sign that divides all lines alike, a blank for white space."""
    for sign in _SEPARATORS:
        if len({len(_fields(line, sign)) for line in lines} - {1}) == 1:
            return sign
    return next((sign for sign in _SEPARATORS if sign in lines[0]), " ")


def _fields(line: str, separator: str) -> list[str]:
    if separator == " ":
        return [word.strip('"') for word in _BETWEEN_BLANKS.findall(line)]
    return [field.strip() for field in next(csv.reader([line], delimiter=separator))]


def _are_values(fields: Sequence[str]) -> bool:
    """Return true for a row of data, false for names."""
    numbers = [text for text in fields if _NUMERIC.fullmatch(text)]
    # pandas names columns that have no name by their number.
    if numbers == [str(n) for n in range(len(numbers))]:
        return False
    missing = sum(text in NULLS for text in fields)
    return len(numbers) + missing == len(fields) or any("." in n for n in numbers)


def _are_units(fields: Sequence[str]) -> bool:
    """Return true for a line of units, of which some may be empty."""
    given = [text for text in fields if text.strip("-")]
    numbers = [text for text in given if _NUMERIC.fullmatch(text)]
    known = [text for text in given if parse_unit(text) is not None]
    return bool(given) and known == given and not numbers


def _behind_hash(comments: Sequence[str], count: int) -> tuple[list[str], list[str]]:
    """Return names, and maybe units, from the last comments with so many words."""
    found = []
    for comment in reversed(comments):
        split = [_fields(comment.strip(" #"), sign) for sign in (*_SEPARATORS, " ")]
        found += [f for f in split if len(f) == count and not _are_values(f)][:1]
    if len(found) > 1 and _are_units(found[0]):
        return found[1], found[0]
    return (found[0] if found else []), []


class _Cleaned(io.RawIOBase):
    """Lines as a file of UTF-8 for Arrow, each changed by a function."""

    def __init__(self, lines: io.TextIOWrapper, change: Callable[[str], str]) -> None:
        self._lines, self._change, self._left = lines, change, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return the number of bytes."""
        while not self._left and (lines := self._lines.readlines(len(buffer))):
            self._left = "".join(map(self._change, lines)).encode()
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _read(
    path: Path, encoding: str, layout: _Layout, large: Collection[str], kinds: Kinds
) -> Batches:
    separator, row, padded = layout.separator, layout.row, layout.padded
    names = [name for name, _ in layout.columns]
    types = dict.fromkeys(large, pa.uint64())
    types |= {n: _ARROW_TYPES[k] for n, k in kinds.items() if k in _ARROW_TYPES}
    # Arrow would read 007 as a number, and some names as dates.
    number = re.compile(r"(?!0\d)-?\d*(\.\d*)?([eE][-+]?\d+)?")
    for name, value in zip(names, _fields(row, separator)):
        if kinds.get(name) == "identifier" and not number.fullmatch(value):
            types[name] = pa.string()
    odd = [n for n in kinds if layout.odd and types.get(n) == pa.float64()]
    types |= dict.fromkeys(odd, pa.string())
    conversion = pacsv.ConvertOptions(
        column_types=types,
        include_columns=list(kinds),
        null_values=list(NULLS),
        strings_can_be_null=True,
        decimal_point=layout.decimal,
    )
    # With threads errors would not name the row.
    blocks = pacsv.ReadOptions(
        block_size=_BLOCK_BYTES,
        skip_rows=layout.skipped,
        use_threads=False,
        column_names=names,
    )
    white = separator == " " and padded
    around = re.compile(rf" *{re.escape(separator)} *")

    def change(line: str) -> str:
        if white:
            words = _BETWEEN_BLANKS.findall(line) if '"' in line else line.split()
            return "\t".join(words) + "\n"
        return around.sub(separator, line.strip(" ")) if padded else line

    parsing = pacsv.ParseOptions(
        delimiter="\t" if white else separator,
        invalid_row_handler=lambda row: "skip" if row.text[:1] == "#" else "error",
    )
    plain = encoding == "utf-8-sig" and not padded
    opened: Any = unpacked(path) if plain else _lines(path, encoding)
    with opened as file:
        stream = file if plain else _Cleaned(file, change)
        # Its functions are made when it is imported.
        compute: Any = pyarrow.compute
        with pacsv.open_csv(stream, blocks, parsing, conversion) as reader:
            for batch in reader:
                found = {name: batch.column(name) for name in kinds}
                for name in odd:
                    text = compute.replace_substring(found[name], "−", "-")
                    text = compute.if_else(compute.equal(text, "-"), None, text)
                    text = compute.replace_substring_regex(text, "([0-9.])[dD]", r"\1e")
                    if layout.decimal == ",":
                        text = compute.replace_substring(text, ",", ".")
                    found[name] = compute.cast(text, pa.float64())
                yield {name: to_numpy(column) for name, column in found.items()}
