"""Parsing of lengths and angles with a unit, or in sexagesimal form.

Astropy is imported in the functions, as plain numbers and ``--help`` do not need it.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.base.errors import InputError


def path_of(given: Any, expected: str = "a path") -> Path:
    """Return a path; raises `InputError` for what is none."""
    try:
        return Path(given)
    except TypeError:
        raise InputError(f"expected {expected}, got {type(given).__name__}") from None


def parsecs(text: str) -> float:
    """Read ``0.42kpc``, ``300 pc`` or ``300`` in pc.

    Raises `ValueError` if the text is not a length.
    """
    with suppress(ValueError):
        return float(text)
    from astropy import units as u

    try:
        quantity: Any = u.Quantity(text)
        return float(quantity.to_value(u.pc))
    except (TypeError, ValueError, u.UnitConversionError):
        raise ValueError(
            f"{text!r} is no length: expected a number in pc, or one with a unit, such "
            "as 0.42kpc"
        ) from None


def degrees(text: str, *, hours: bool = False) -> float:
    """Read ``83.63``, ``83.63deg``, ``5h34m32s`` or, if ``hours``, ``05:34:32`` in deg.

    Raises `ValueError` if the text is not an angle.
    """
    with suppress(ValueError):
        return float(text)
    from astropy import units as u
    from astropy.coordinates import Angle

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            angle: Any = Angle(text, unit=u.hourangle if hours else u.deg)
            return float(angle.deg)
    except Exception:  # astropy's errors of angles have no common base
        form = "05:34:32 or 5h34m32s" if hours else "-05:23:28 or -5d23m28s"
        raise ValueError(f"{text!r} is no angle: expected degrees, or {form}") from None


def numbers(values: Any, unit: Any) -> np.ndarray:
    """Return values in a unit as float64, NaN where they are masked.

    ``values`` are numbers, which are taken to have the ``unit``, or a quantity: plain,
    of `numpy.ma`, astropy's ``Masked`` and ``MaskedColumn``, or pandas' nullable types.

    Raises `TypeError`, `ValueError` or `astropy.units.UnitConversionError` if they are
    no numbers, or of another dimension.
    """
    from astropy import units as u

    found = u.Quantity(values, unit, dtype=np.float64)
    # Astropy keeps the mask of its own class, and drops that of NumPy's.
    mask = values.mask if np.ma.isMA(values) else getattr(found, "mask", False)
    return np.where(mask, np.nan, getattr(found, "unmasked", found).value)
