"""CSV and ECSV, gzipped or not, with the Gaia archive's ``null``."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog.parquet_reader import to_numpy
from pipelines.catalog.source import ColumnInfo, refuse_duplicates, unreadable

NULLS = ("", "null", "NULL", "nan", "NaN", "NAN")
BLOCK_BYTES = 1 << 24
_ARROW = {
    "number": pa.float64(),
    "value": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "identifier": pa.string(),
}
_INTEGER = r"^\s*-?(0|[1-9][0-9]*)\s*$"
_DECIMAL = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"


@dataclass(frozen=True, slots=True)
class _Header:
    lines: int
    delimiter: str
    fields: list[dict[str, str]]
    """ECSV's description of the columns; empty for CSV."""


class TextSource:
    """A CSV or ECSV file; see `pipelines.catalog.source.Source`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._header = _read_header(path)
            with self._reader({}) as reader:
                names = reader.schema.names
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            raise _explain(path, error, []) from error
        refuse_duplicates(path, names)
        units = {item["name"]: item.get("unit") for item in self._header.fields}
        if units and list(units) != names:
            raise InputError(
                f"{path}: the ECSV header describes {list(units)} but the columns are "
                f"{names}"
            )
        self.columns = {name: ColumnInfo(unit=units.get(name)) for name in names}
        self._types = {f["name"]: f["datatype"] for f in self._header.fields}

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        types = {name: _ARROW[k] for name, k in kinds.items() if k in _ARROW}
        integers: dict[str, bool] = {}
        try:
            with self._reader(types, list(kinds)) as reader:
                for batch in reader:
                    columns = {}
                    for name, kind in kinds.items():
                        column = batch.column(name)
                        if kind == "identifier":
                            column = self._identifiers(name, column, integers)
                        columns[name] = to_numpy(column)
                    yield columns
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _explain(self.path, error, list(self.columns)) from error

    def _identifiers(
        self, name: str, text: pa.Array, integers: dict[str, bool]
    ) -> pa.Array:
        """Decide by the first batch whether identifiers are integers or names."""
        declared = self._types.get(name, "")
        if declared.startswith("float") or (
            not declared
            and not _all_match(text, _INTEGER)
            and _all_match(text, _DECIMAL)
        ):
            raise InputError(
                f"{self.path}, column {name!r} holds identifiers as floating point "
                f"(like {text.drop_null()[0]}): write them as integers or text"
            )
        if integers.setdefault(name, _all_match(text, _INTEGER)):
            return pc.cast(pc.utf8_trim_whitespace(text), pa.int64())
        return text

    @contextmanager
    def _reader(
        self, types: Mapping[str, pa.DataType], names: list[str] | None = None
    ) -> Iterator[pacsv.CSVStreamingReader]:
        options = pacsv.ConvertOptions(
            column_types=dict(types),
            include_columns=names,
            null_values=list(NULLS),
            strings_can_be_null=True,
        )
        compression = "gzip" if _gzipped(self.path) else None
        with (
            pa.input_stream(str(self.path), compression=compression) as stream,
            pacsv.open_csv(
                stream,
                read_options=pacsv.ReadOptions(
                    block_size=BLOCK_BYTES, skip_rows=self._header.lines
                ),
                parse_options=pacsv.ParseOptions(delimiter=self._header.delimiter),
                convert_options=options,
            ) as reader,
        ):
            yield reader


def _read_header(path: Path) -> _Header:
    comments = []
    delimiter = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else ","
    opener = gzip.open if _gzipped(path) else open
    with opener(path, "rt", encoding="utf-8-sig") as file:
        for line in file:
            if not line.startswith("#"):
                break
            comments.append(line[1:].removeprefix(" ").rstrip("\r\n"))
    if not comments or not comments[0].startswith("%ECSV"):
        return _Header(len(comments), delimiter, [])
    try:
        header = get_header_from_yaml(comments[1:])
        fields = header["datatype"]
        assert all({"name", "datatype"} <= set(item) for item in fields)
    except Exception as error:  # the YAML library's errors have no common base
        raise InputError(f"{path} has a broken ECSV header: {error}") from error
    return _Header(len(comments), header.get("delimiter", " "), fields)


def _gzipped(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _all_match(text: pa.Array, pattern: str) -> bool:
    matches = pc.match_substring_regex(text.drop_null(), pattern)
    return bool(pc.all(matches, min_count=0).as_py())


def _explain(path: Path, error: Exception, names: list[str]) -> InputError:
    message = unreadable(path, error).args[0]
    if "conversion error" in message:
        # Arrow counts the columns of the file, which help nobody.
        place = message.split("column #")[-1].split(":")[0]
        if place.isdigit() and int(place) < len(names):
            message = message.replace(f"#{place}", repr(names[int(place)]))
        message += " (an empty field or 'null' marks a missing value)"
    elif "Expected" in message:
        message += ": the rows have different numbers of fields"
    return InputError(message)
