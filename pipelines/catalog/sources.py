"""Source tables of every format, read in batches of rows.

The first bytes determine the format, not the name. Text, FITS, parquet and HDF5 are
read in pieces. VOTables, packed FITS files and machine-readable tables are parsed
whole: for many millions of rows request plain FITS or parquet from the archive.
"""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog import formats
from pipelines.catalog.filters import Expression
from pipelines.catalog.frames import Frames
from pipelines.catalog.tables import reading, split_part
from pipelines.catalog.text import open_text
from pipelines.catalog.units import KINDS, convert

Request = tuple[str, str]
"""A column's reference, or an expression, and the kind needed (`convert`)."""
_SHOWN = 30
_INDEXED = re.compile(r"(.+)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Source:
    """A table with columns by name, in order, and a reader as for `batches`."""

    path: Path
    columns: Mapping[str, formats.ColumnInfo]
    read: Callable[[formats.Kinds], formats.Batches]
    frames: Frames = field(default_factory=dict)

    @property
    def masks(self) -> dict[str, str]:
        """Columns with the masks of others, by these, as astropy writes them."""
        names = self.columns.keys()
        return {name: f"{name}.mask" for name in names if f"{name}.mask" in names}

    def batches(self, kinds: formats.Kinds) -> formats.Batches:
        """Yield batches of the named columns, shapes ``(n,)`` or ``(n, width)``.

        ``kinds`` maps each column to its required kind; it matters only for text files,
        which have no types. Missing values are masked, None in text, or NaN.
        """
        with reading(self.path, list(self.columns)):
            yield from self.read(kinds)


# First bytes and opener of each format.
_FORMATS = (
    ((b"PAR1",), formats.open_parquet),
    ((b"\x89HDF\r\n\x1a\n",), formats.open_hdf5),
    ((b"SIMPLE  =",), formats.open_fits),
    ((b"<?xml", b"<VOTABLE"), formats.open_votable),
    ((b"",), open_text),
)


def open_source(path: Path) -> Source:
    """Open one file, or ``FILE[TABLE]``, and read its columns' names and units.

    Raises `InputError` if the file is empty, truncated or not a table, or if two of its
    columns have one name.
    """
    path, part = split_part(path)
    with reading(path), formats.unpacked(path) as file:
        start = file.read(512)
    head = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise InputError(f"{path} is empty")
    opener = next(opener for starts, opener in _FORMATS if head.startswith(starts))
    unicode = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if opener is open_text and b"\x00" in start and not unicode:
        raise InputError(
            f"{path} is not text, a FITS, VOTable, parquet or HDF5 file, or one of "
            "these packed by gzip, bzip2, xz or zip"
        )
    if part and opener in (open_text, formats.open_parquet):
        raise InputError(f"{path} holds one table: name it without [{part}]")
    with reading(path), warnings.catch_warnings():
        # Ignore odd headers, but refuse truncated files.
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*may have been truncated")
        described, read, stated = opener(path, part)
    formats.refuse_duplicates(path, [name for name, _ in described])
    return Source(path, dict(described), read, stated)


def locate(source: Source, reference: str) -> tuple[str, int | None]:
    """Return the column of a reference, and the index into a two-dimensional one.

    Raises `InputError` if there is no such column (a match in other case is suggested),
    or the index is missing, superfluous or too large.
    """
    base, index = reference, None
    match = _INDEXED.fullmatch(reference)
    if match and reference not in source.columns:
        base, index = match[1], int(match[2])
    info = source.columns.get(base)
    if info is None:
        raise InputError(f"{source.path} {describe_absence(source, base)}")
    if info.width is None and index is not None:
        raise InputError(f"{source.path}: column {base!r} has one value per row")
    if info.width is not None and (index is None or index >= info.width):
        raise InputError(
            f"{source.path}: column {base!r} has {info.width} values per row: name "
            f"one, {base}[0] to {base}[{info.width - 1}], not {reference!r}"
        )
    return base, index


def expression_in(source: Source, reference: str) -> Expression | None:
    """Return the expression that a reference is, or None if it names a column."""
    match = _INDEXED.fullmatch(reference)
    if {reference, match and match[1]} & source.columns.keys():
        return None
    try:
        found = Expression(reference)
    except InputError:
        return None
    return None if reference in found.kinds else found


def all_columns(source: Source) -> dict[str, tuple[Request, formats.ColumnInfo]]:
    """Return request and description of each column by name.

    One with several values per row is several, ``NAME_0``, ``NAME_1`` and so on. The
    mask of another column is no column.
    """
    found = {}
    masks = source.masks.values()
    for name, info in source.columns.items():
        if name in masks:
            continue
        if info.width is None:
            found[name] = (name, "own"), info
        for n in range(info.width or 0):
            found[f"{name}_{n}"] = (f"{name}[{n}]", "own"), info
    return found


def describe_absence(source: Source, name: str) -> str:
    """Describe a missing column: one of other case, or the columns there are."""
    near = [other for other in source.columns if other.lower() == name.lower()]
    if near and name not in near:
        return f"has no column {name!r}, but {near[0]!r}: the case must match"
    shown = ", ".join(list(source.columns)[:_SHOWN])
    more = ", ..." if len(source.columns) > _SHOWN else ""
    return f"has no column {name!r}; it has: {shown}{more}"


def read_columns(
    source: Source, requests: Collection[Request]
) -> Iterator[dict[Request, np.ndarray]]:
    """Yield batches of the requested columns, each of shape ``(n,)``, by request.

    Raises `InputError` if a column is not there or not of the kind, or the file breaks
    off.
    """
    derived = {each: expression_in(source, each[0]) for each in requests}
    needed = dict.fromkeys(each for each, found in derived.items() if found is None)
    for expression in derived.values():
        needed |= dict.fromkeys(expression.kinds.items() if expression else ())
    places = {request: locate(source, request[0]) for request in needed}
    # A column may be needed twice: text is then read as the least convertible kind.
    order = sorted(needed, key=lambda request: (KINDS.index(request[1]), request[0]))
    kinds = {places[request][0]: request[1] for request in order}
    masks = {base: mask for base, mask in source.masks.items() if base in kinds}
    kinds |= dict.fromkeys(masks.values(), "boolean")
    for batch in source.batches(kinds):
        for base, mask in masks.items():
            batch[base] = np.ma.array(batch[base], mask=batch[mask].astype(bool))
        chosen = {}
        for request, (base, index) in places.items():
            column = batch[base] if index is None else batch[base][:, index]
            where = f"{source.path}, column {request[0]!r}"
            chosen[request] = convert(column, request[1], where)
        for request, expression in derived.items():
            if expression is not None:
                values = expression.values(lambda *name, held=chosen: held[name])
                chosen[request] = convert(values, request[1], repr(request[0]))
        yield chosen
