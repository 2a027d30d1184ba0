"""CSV and ECSV, gzipped or not, with the Gaia archive's ``null``."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog.parquet_reader import to_numpy
from pipelines.catalog.source import ColumnInfo, Source, is_gzipped

NULLS = ("", "null", "NULL", "nan", "NaN", "NAN")
BLOCK_BYTES = 1 << 24
_ARROW = {
    "number": pa.float64(),
    "value": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "hms": pa.string(),
    "dms": pa.string(),
    "identifier": pa.string(),
}
_INTEGER = r"^\s*-?(0|[1-9][0-9]*)\s*$"
_DECIMAL = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"


class TextSource(Source):
    """A CSV or ECSV file."""

    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]:
        self._comments, self._delimiter, fields = self._header()
        self._types = {item["name"]: item["datatype"] for item in fields}
        with self._reader({}) as reader:
            names = reader.schema.names
        if fields and list(self._types) != names:
            raise InputError(
                f"{self.path}: the ECSV header describes {list(self._types)} but the "
                f"columns are {names}"
            )
        told = {item["name"]: item for item in fields}
        return [
            (
                name,
                ColumnInfo(
                    unit=told.get(name, {}).get("unit"),
                    description=told.get(name, {}).get("description"),
                ),
            )
            for name in names
        ]

    def _header(self) -> tuple[int, str, list[dict[str, str]]]:
        """Lines of comments, the delimiter, and what ECSV tells of the columns."""
        comments = []
        suffixes = [suffix.lower() for suffix in self.path.suffixes]
        delimiter = "\t" if ".tsv" in suffixes else ","
        opener = gzip.open if is_gzipped(self.path) else open
        with opener(self.path, "rt", encoding="utf-8-sig") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                comments.append(line[1:].removeprefix(" ").rstrip("\r\n"))
        if not comments or not comments[0].startswith("%ECSV"):
            return len(comments), delimiter, []
        try:
            header = get_header_from_yaml(comments[1:])
            fields = header["datatype"]
            assert all({"name", "datatype"} <= set(item) for item in fields)
        except Exception as error:  # the YAML library's errors have no common base
            raise InputError(
                f"{self.path} has a broken ECSV header: {error}"
            ) from error
        return len(comments), header.get("delimiter", " "), fields

    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        types = {name: _ARROW[k] for name, k in kinds.items() if k in _ARROW}
        integers: dict[str, bool] = {}
        with self._reader(types, list(kinds)) as reader:
            for batch in reader:
                columns = {name: batch.column(name) for name in kinds}
                for name in (n for n, kind in kinds.items() if kind == "identifier"):
                    columns[name] = self._identifiers(name, columns[name], integers)
                yield {name: to_numpy(column) for name, column in columns.items()}

    def _identifiers(
        self, name: str, text: pa.Array, integers: dict[str, bool]
    ) -> pa.Array:
        """Decide by the first batch whether identifiers are integers or names."""
        declared = self._types.get(name, "")
        whole = _all_match(text, _INTEGER)
        decimal = not declared and not whole and _all_match(text, _DECIMAL)
        if declared.startswith("float") or decimal:
            raise InputError(
                f"{self.path}, column {name!r} holds identifiers as floating point "
                f"(like {text.drop_null()[0]}): write them as integers or text"
            )
        if integers.setdefault(name, whole):
            return pc.cast(pc.call_function("utf8_trim_whitespace", [text]), pa.int64())
        return text

    @contextmanager
    def _reader(
        self, types: Mapping[str, pa.DataType], names: list[str] | None = None
    ) -> Iterator[Any]:
        read = pacsv.ReadOptions(block_size=BLOCK_BYTES, skip_rows=self._comments)
        convert = pacsv.ConvertOptions(
            column_types=dict(types),
            include_columns=names,
            null_values=list(NULLS),
            strings_can_be_null=True,
        )
        parse = pacsv.ParseOptions(delimiter=self._delimiter)
        compression = "gzip" if is_gzipped(self.path) else None
        with (
            pa.input_stream(str(self.path), compression=compression) as stream,
            pacsv.open_csv(stream, read, parse, convert) as reader,
        ):
            yield reader


def _all_match(text: pa.Array, pattern: str) -> bool:
    options = pc.MatchSubstringOptions(pattern)
    matches = pc.call_function("match_substring_regex", [text.drop_null()], options)
    return bool(matches.to_numpy(zero_copy_only=False).all())
