"""What every reader of a format offers, and how a column is found in it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError

ROWS_PER_BATCH = 1 << 18
_INDEXED = re.compile(r"(?P<base>.+)\[(?P<index>\d+)\]")
_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as the file describes it.

    ``unit`` and ``description`` as written there or None; ``width`` the values per
    row of a two-dimensional column, None for one.
    """

    unit: str | None = None
    width: int | None = None
    description: str | None = None


class Source(ABC):
    """One file with a table in it: its ``path`` and its ``columns`` by name, in order.

    A format reads the header in `_describe` and the rows in `_read`.

    Raises
    ------
    InputError
        If the file is broken, or two of its columns have one name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            described = list(self._describe())
        refuse_duplicates(path, [name for name, _ in described])
        self.columns: Mapping[str, ColumnInfo] = dict(described)

    def batches(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield some rows of the named columns, shapes ``(n,)`` or ``(n, width)``.

        ``kinds`` says what each is wanted as; only text, which has no types of its
        own, needs it. Missing values are masked, None in text, or NaN in floats.
        """
        with reading(self.path, list(self.columns)):
            yield from self._read(kinds)

    def parts(self, rows: int) -> Iterable[Source]:
        """Cut the table into parts of about ``rows`` rows, if the format can."""
        return [self]

    @abstractmethod
    def _describe(self) -> Iterable[tuple[str, ColumnInfo]]: ...

    @abstractmethod
    def _read(self, kinds: Mapping[str, str]) -> Iterator[dict[str, np.ndarray]]: ...


def locate(source: Source, reference: str) -> tuple[str, int | None]:
    """Return the column a reference names, and the index into a two-dimensional one.

    Raises
    ------
    InputError
        If there is no such column (the nearest by case is named), or the index is
        missing, not wanted or too large.
    """
    base, index = reference, None
    match = _INDEXED.fullmatch(reference)
    if match and reference not in source.columns:
        base, index = match["base"], int(match["index"])
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


def describe_absence(source: Source, name: str) -> str:
    """Say that a column is missing, and which ones are there."""
    near = [other for other in source.columns if other.lower() == name.lower()]
    if near:
        return f"has no column {name!r}, but {near[0]!r}: the case must match"
    shown = ", ".join(list(source.columns)[:_SHOWN])
    more = ", ..." if len(source.columns) > _SHOWN else ""
    return f"has no column {name!r}; it has: {shown}{more}"


def astropy_units(lines: Sequence[str]) -> dict[str, str]:
    """Units by column in the YAML header that astropy writes with its tables."""
    fields = get_header_from_yaml(lines)["datatype"]
    return {item["name"]: item["unit"] for item in fields if "unit" in item}


def refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if a name occurs twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{path} has more than one column {', '.join(map(repr, repeated))}: "
            "rename or drop the others"
        )


def is_gzipped(path: Path) -> bool:
    """Whether a file begins like one that gzip wrote."""
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextmanager
def reading(path: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn what a parser raises into an `InputError` that names the file.

    ``names`` are those of the file's columns.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # the parsers' errors have no common base
        raise unreadable(path, error, names) from error


def unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> InputError:
    """Return the error for a file that is broken, truncated or no table."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    if "conversion error" in reason:
        # Arrow numbers the columns of a CSV file, which is of no use.
        place = re.search(r"column #(\d+)", reason)
        if place and int(place[1]) < len(names):
            reason = reason.replace(f"#{place[1]}", repr(names[int(place[1])]))
        reason += " (an empty field or 'null' marks a missing value)"
    return InputError(f"{path} cannot be read: {reason}")
