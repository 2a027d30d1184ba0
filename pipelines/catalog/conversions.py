"""Columns as a file holds them, shape ``(n,)``, to what is wanted of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipelines.base.errors import InputError


def _number(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind not in "fiu":
        raise InputError(f"{where} holds {_say(column)}, expected numbers")
    values = np.ma.getdata(column).astype(np.float64)
    values[np.ma.getmaskarray(column)] = np.nan
    return values


def _value(column: np.ndarray, where: str) -> np.ndarray:
    return _number(column.astype(np.int8) if column.dtype == bool else column, where)


def _string(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind not in "OUS":
        raise InputError(f"{where} holds {_say(column)}, but is compared with text")
    return _text(column)


def _identifier(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind == "f":
        raise InputError(
            f"{where} is stored as floating point, which cannot hold a 64-bit "
            "identifier exactly: write it as integer or text"
        )
    if column.dtype.kind in "OUS":
        text = _text(column)
        return np.ma.array(text, mask=[item is None for item in text])
    if column.dtype.kind not in "iu":
        raise InputError(f"{where} holds {_say(column)}, expected integers or text")
    if column.dtype == np.uint64 and len(column) and column.max() > 2**63 - 1:
        raise InputError(f"{where} exceeds 2^63: write it as text")
    return np.ma.array(column).astype(np.int64)


def _any(column: np.ndarray, where: str) -> np.ndarray:
    if column.dtype.kind == "f":
        return _number(column, where)
    return np.ma.array(_text(column)) if column.dtype.kind in "OUS" else column


def _text(column: np.ndarray) -> np.ndarray:
    text = np.empty(len(column), dtype=object)
    missing = np.ma.getmaskarray(column)
    for row, item in enumerate(np.ma.getdata(column)):
        if item is not None and not missing[row]:
            text[row] = item.decode() if isinstance(item, bytes) else str(item)
    return text


def _say(column: np.ndarray) -> str:
    names = {"b": "booleans", "O": "text", "U": "text", "S": "text", "c": "complex"}
    return names.get(column.dtype.kind, str(column.dtype))


CONVERSIONS: dict[str, Callable[[np.ndarray, str], np.ndarray]] = {
    "any": _any,
    "number": _number,
    "value": _value,
    "boolean": _value,
    "string": _string,
    "identifier": _identifier,
}
"""By kind: ``number`` (float64, NaN where missing), ``value`` (the same, booleans as 0
and 1), ``boolean``, ``string`` (object, None where missing), ``identifier`` (int64 or
strings, masked) or ``any``; the least convertible last."""
