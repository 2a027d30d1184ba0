"""Columns as a file holds them, shape ``(n,)``, to what is wanted of them."""

from __future__ import annotations

import math
import re

import numpy as np

from pipelines.base.errors import InputError

# By kind: NumPy's letters of the types that are taken, and these in words.
_TAKEN = {
    "any": ("", "anything"),
    "number": ("fiu", "numbers (05:34:32 has the unit hms, 22:00:52 dms)"),
    "value": ("fiub", "numbers"),
    "boolean": ("fiub", "numbers"),
    "hms": ("OUS", "text such as 05:34:32.1"),
    "dms": ("OUS", "text such as -05:23:28"),
    "string": ("OUS", "text, which it is compared with"),
    "identifier": ("iuOUS", "integers or text, which hold 64-bit identifiers exactly"),
}
# Sign, whole, minutes and, maybe, seconds.
_PARTS = re.compile(
    r"""\s*([+-]?)\s*(\d+)\s*[:hd°\s]\s*(\d+(?:\.\d*)?)\s*[:m'′]?\s*"""
    r"""(?:(\d+(?:\.\d*)?)\s*[s"″]?)?\s*"""
)
KINDS = tuple(_TAKEN)
"""What a column may be wanted as, the least convertible last."""
_WORDS = {"b": "booleans", "c": "complex numbers", "f": "floating point"}


def convert(column: np.ndarray, kind: str, where: str) -> np.ndarray:
    """Return a column as one of `KINDS`.

    ``number`` is float64, NaN where missing, ``hms`` and ``dms`` the same in degrees
    from sexagesimal text, NaN where it is none, ``value`` and ``boolean`` the same with
    booleans as 0 and 1, ``string`` object, None where missing, ``identifier`` int64
    or strings, masked, and ``any`` what is there.

    Raises
    ------
    InputError
        If the column holds something else; ``where`` says which column it is.
    """
    held = column.dtype.kind
    taken, words = _TAKEN[kind]
    if taken and held not in taken:
        found = "text" if held in "OUS" else _WORDS.get(held, str(column.dtype))
        raise InputError(f"{where} holds {found}, expected {words}")
    if held in "OUS":
        text = _text(column)
        if kind in ("hms", "dms"):
            turn = 15.0 if kind == "hms" else 1.0
            return turn * np.array([_sexagesimal(item) for item in text], dtype=float)
        if kind == "string":
            return text
        return np.ma.array(text, mask=[item is None for item in text])
    if kind == "identifier":
        if held == "u" and len(column) and column.max() > np.iinfo(np.int64).max:
            raise InputError(f"{where} exceeds 2^63: write it as text")
        return np.ma.array(column).astype(np.int64)
    if kind == "any" and held != "f":
        return column
    values = np.ma.getdata(column).astype(np.float64)
    if np.ma.isMaskedArray(column):
        values[np.ma.getmaskarray(column)] = np.nan
    return values


def _sexagesimal(text: str | None) -> float:
    """``-05:23:28.1``, ``5h34m32s`` or ``-5 23 28`` as a number; NaN if it is none."""
    found = _PARTS.fullmatch(text) if text else None
    if found is None:
        return math.nan
    whole, minutes, seconds = (float(part or 0.0) for part in found.groups()[1:])
    if minutes >= 60 or seconds >= 60:
        return math.nan
    size = whole + minutes / 60 + seconds / 3600
    return -size if found[1] == "-" else size


def _text(column: np.ndarray) -> np.ndarray:
    text = np.empty(len(column), dtype=object)
    missing = np.ma.getmaskarray(column)
    for row, item in enumerate(np.ma.getdata(column)):
        if item is not None and not missing[row]:
            text[row] = item.decode() if isinstance(item, bytes) else str(item)
    return text
