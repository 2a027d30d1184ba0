"""From one batch of source columns to canonical rows, faulty ones counted out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

SENTINELS = (-99.0, -999.0, -9999.0, -99999.0)
LIMITS = {"b": 90, "dec": 90, "l": 360, "ra": 360}
ERRORS = ("parallax_error", "distance_error", "extinction_error")
TINY_EXTINCTION_ERROR = 1e-5
"""An extinction's error below this part of the batch's typical extinction or error."""
TINY_DISTANCE_ERROR = 1e-6
"""A distance's error below this part of the distance."""

Columns = dict[str, np.ndarray]
"""Canonical name to a column of shape ``(n,)``."""


class RowMask:
    """Which rows of a batch are still kept, shape ``(n,)``.

    Each row is counted under the first reason that drops it.
    """

    def __init__(self, rows: int, faults: Counter[str], cuts: Counter[str]) -> None:
        self.kept = np.ones(rows, dtype=bool)
        self._faults, self._cuts = faults, cuts

    def fault(self, bad: np.ndarray, reason: str) -> None:
        """Drop faulty rows, shape ``(n,)``."""
        self._drop(bad, reason, self._faults)

    def cut(self, bad: np.ndarray, reason: str) -> None:
        """Drop rows that are sound and not wanted, shape ``(n,)``."""
        self._drop(bad, reason, self._cuts)

    def _drop(self, bad: np.ndarray, reason: str, counter: Counter[str]) -> None:
        count = int((self.kept & bad).sum())
        if count:
            counter[reason] += count
            self.kept &= ~bad


def check_values(mask: RowMask, values: Columns) -> None:
    """Drop rows with a missing, infinite or sentinel value, in the file's units."""
    for name, column in values.items():
        mask.fault(np.isnan(column), f"{name} missing or not a number")
        mask.fault(np.isinf(column), f"{name} infinite")
        if name not in ("x", "y", "z"):
            mask.fault(np.isin(column, SENTINELS), f"{name} is a sentinel like -999")
    if "x" in values:
        # One coordinate may well be -99 pc; all three alike are a mark.
        alike = (values["x"] == values["y"]) & (values["x"] == values["z"])
        marked = alike & np.isin(values["x"], SENTINELS)
        mask.fault(marked, "position is a sentinel like -999")


def check_quantities(mask: RowMask, values: Columns, min_parallax_snr: float) -> None:
    """Drop rows that cannot be, in canonical units; add errors and distances."""
    if "x" in values:
        values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
    for name, limit in LIMITS.items():
        if name in values:
            mask.fault(np.abs(values[name]) > limit, f"|{name}| > {limit} deg")
    for name in ("distance", "parallax"):
        if name in values:
            mask.fault(values[name] <= 0, f"{name} not positive")
    for name in ("distance", "extinction"):
        if f"{name}_lower" in values:
            lower, upper = values[f"{name}_lower"], values[f"{name}_upper"]
            mask.fault(lower > upper, f"{name}_lower > {name}_upper")
            values[f"{name}_error"] = (upper - lower) / 2
    for name in ERRORS:
        if name in values:
            mask.fault(values[name] == 0, f"{name} zero")
            mask.fault(values[name] < 0, f"{name} negative")
    if "parallax" in values:
        parallax, error = values["parallax"], values["parallax_error"]
        low = parallax < min_parallax_snr * error
        mask.cut(low, f"parallax below {min_parallax_snr:g} times its error")
        values["distance"] = 1000 / parallax
        values["distance_error"] = 1000 * error / parallax**2
    _check_tiny_errors(mask, values)


def _check_tiny_errors(mask: RowMask, values: Columns) -> None:
    if "distance_error" in values:
        tiny = values["distance_error"] < TINY_DISTANCE_ERROR * values["distance"]
        mask.fault(tiny, "distance_error absurdly small")
    if "extinction_error" in values and mask.kept.any():
        error = values["extinction_error"]
        size = np.maximum(np.abs(values["extinction"]), error)[mask.kept]
        tiny = error < TINY_EXTINCTION_ERROR * np.median(size)
        mask.fault(tiny, "extinction_error absurdly small")


def to_canonical(values: Columns) -> Columns:
    """Return ``l, b`` [deg] and ``distance`` [pc] and what else there is, float64.

    Equatorial coordinates are taken as ICRS.
    """
    if "ra" in values:
        icrs = SkyCoord(ra=values["ra"] * u.deg, dec=values["dec"] * u.deg)
        galactic: Any = icrs.galactic
        l, b = np.asarray(galactic.l.deg), np.asarray(galactic.b.deg)  # noqa: E741
    elif "x" in values:
        x, y, z = (values[axis] for axis in "xyz")
        l = np.rad2deg(np.arctan2(y, x))  # noqa: E741
        b = np.rad2deg(np.arctan2(z, np.hypot(x, y)))
    else:
        l, b = values["l"], values["b"]  # noqa: E741
    names = ("distance", "extinction", "extinction_error", "distance_error")
    rest = {name: values[name] for name in names if name in values}
    return {"l": np.mod(l, 360.0), "b": b, **rest}
