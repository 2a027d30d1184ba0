"""Conversion of columns to canonical units, which are stated or read, never guessed."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError

_QUANTITIES = {
    "deg": "l b ra dec",
    "pc": "x y z distance distance_error distance_lower distance_upper "
    "distance_error_lower distance_error_upper",
    "mas": "parallax parallax_error",
    "mag": "extinction extinction_error extinction_lower extinction_upper "
    "extinction_error_lower extinction_error_upper "
    "distance_modulus distance_modulus_error",
}
INPUT_UNITS = {
    name: unit for unit, text in _QUANTITIES.items() for name in text.split()
}
"""Canonical units by quantity."""

# NumPy's letters of accepted types, and their description, by kind.
_TAKEN = {
    "own": ("", "anything"),
    "any": ("", "anything"),
    "kept": ("fiubOUS", "what parquet holds: real numbers, booleans or text"),
    "number": ("fiu", "numbers (05:34:32 has the unit hms, 22:00:52 dms)"),
    "dex": ("fiu", "numbers, decadic logarithms"),
    "value": ("fiub", "numbers"),
    "boolean": ("fiub", "numbers"),
    "hms": ("OUS", "text such as 05:34:32.1"),
    "dms": ("OUS", "text such as -05:23:28"),
    "string": ("OUS", "text, which it is compared with"),
    "identifier": ("iuOUS", "integers or text, which hold 64-bit identifiers exactly"),
}
KINDS = tuple(_TAKEN)
"""Kinds of columns, the least convertible last."""


def kind_of(unit: str | None) -> str:
    """Return ``hms``, ``dms`` or ``dex`` if a unit states it, else ``number``."""
    for kind, form in (("hms", "h:m:s"), ("dms", "d:m:s")):
        # The CDS writes the form in quotes.
        if unit in (kind, form, f'"{form}"'):
            return kind
    return "dex" if isinstance(parse_unit(unit or ""), u.DexUnit) else "number"


def parse_unit(text: str) -> u.UnitBase | None:
    """Return the unit named ``text``, or None if no standard defines it."""
    # The common logarithm in FITS and VOUnits, which astropy calls dex.
    logarithm = r"log(?:10)?\s*[(\[]\s*(.+?)\s*[)\]]"
    plain = re.sub(logarithm, r"dex(\1)", text.strip())
    for standard in (None, "fits", "vounit", "cds"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return u.Unit(plain, format=standard)
        except (ValueError, TypeError):
            continue
    return None


def convert(column: np.ndarray, kind: str, where: str) -> np.ndarray:
    """Return a column as one of `KINDS`.

    ``number`` is float64 with NaN for missing values, ``dex`` the same with 10 to the
    power of the values, ``hms`` and ``dms`` the same in degrees from
    sexagesimal text (NaN for other text), ``value`` and ``boolean`` the same with
    booleans as 0 and 1, ``string`` object with None for missing values, ``identifier``
    masked int64 or strings, ``any`` and ``kept`` unchanged but for floats and text, and
    ``own`` unchanged.

    Raises `InputError` if the column holds other types; ``where`` names the column.
    """
    held = column.dtype.kind
    taken, words = _TAKEN[kind]
    if kind == "own":
        return column
    if taken and held not in taken:
        others = {"b": "booleans", "c": "complex numbers", "f": "floating point"}
        found = "text" if held in "OUS" else others.get(held, str(column.dtype))
        raise InputError(f"{where} holds {found}, expected {words}")
    if held in "OUS":
        text = np.ma.getdata(column).astype(object)
        absent = np.array([item is None for item in text], dtype=bool)
        missing = np.ma.getmaskarray(column) | absent
        for row, item in enumerate(text):
            word = item.decode() if isinstance(item, bytes) else str(item)
            text[row] = None if missing[row] else word
        if kind in ("hms", "dms"):
            turn = 15.0 if kind == "hms" else 1.0
            return turn * np.array([_sexagesimal(item) for item in text], dtype=float)
        return text if kind == "string" else np.ma.array(text, mask=missing)
    if kind == "identifier":
        if held == "u" and len(column) and column.max() > np.iinfo(np.int64).max:
            raise InputError(f"{where} exceeds 2^63: write it as text")
        return np.ma.array(column).astype(np.int64)
    if kind in ("any", "kept") and held != "f":
        return column
    found = np.ma.filled(column.astype(np.float64), np.nan)
    return 10.0**found if kind == "dex" else found


def _sexagesimal(text: str | None) -> float:
    """Return ``-05:23:28.1``, ``5h34m32s`` or ``-5 23 28`` as a number, or NaN."""
    found = re.fullmatch(
        # Sign, whole, minutes and, maybe, seconds.
        r"""\s*([+-]?)\s*(\d+)\s*[:hd°\s]\s*(\d+(?:\.\d*)?)\s*[:m'′]?\s*"""
        r"""(?:(\d+(?:\.\d*)?)\s*[s"″]?)?\s*""",
        text or "",
    )
    if found is None:
        return math.nan
    whole, minutes, seconds = (float(part or 0.0) for part in found.groups()[1:])
    if minutes >= 60 or seconds >= 60:
        return math.nan
    size = whole + minutes / 60 + seconds / 3600
    return -size if found[1] == "-" else size
