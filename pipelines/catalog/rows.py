"""From one batch of source columns to canonical rows, faulty ones counted out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

SENTINELS = (-99.0, -999.0, -9999.0, -99999.0)
ANGLES = ("l", "b", "ra", "dec")
TINY_EXTINCTION_ERROR = 1e-5
"""An extinction's error below this part of the batch's typical extinction or error."""
TINY_DISTANCE_ERROR = 1e-6
"""A distance's error below this part of the distance."""


@dataclass(slots=True)
class Tally:
    """How many rows were dropped, by reason."""

    faults: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)


class Screen:
    """The rows of a batch that are still standing.

    Each row is counted under the first reason that drops it.
    """

    def __init__(self, rows: int, tally: Tally) -> None:
        self.standing = np.ones(rows, dtype=bool)
        self._tally = tally

    def fault(self, bad: np.ndarray, reason: str) -> None:
        """Drop faulty rows, shape ``(n,)``."""
        self._drop(bad, reason, self._tally.faults)

    def cut(self, bad: np.ndarray, reason: str) -> None:
        """Drop rows that are sound and not wanted, shape ``(n,)``."""
        self._drop(bad, reason, self._tally.cuts)

    def _drop(self, bad: np.ndarray, reason: str, counter: Counter[str]) -> None:
        hit = self.standing & bad
        count = int(hit.sum())
        if count:
            counter[reason] += count
            self.standing &= ~bad


def screen_values(screen: Screen, values: dict[str, np.ndarray]) -> None:
    """Drop rows with a missing, infinite or sentinel value, as the file gives it.

    Parameters
    ----------
    values
        Canonical name to the column in the file's unit, shape ``(n,)``.
    """
    for name, column in values.items():
        screen.fault(np.isnan(column), f"{name} missing or not a number")
        screen.fault(np.isinf(column), f"{name} infinite")
        if name not in ("x", "y", "z"):
            screen.fault(np.isin(column, SENTINELS), f"{name} is a sentinel like -999")
    if "x" in values:
        # One coordinate may well be -99 pc; all three alike are a mark.
        alike = (values["x"] == values["y"]) & (values["x"] == values["z"])
        marked = alike & np.isin(values["x"], SENTINELS)
        screen.fault(marked, "position is a sentinel like -999")


def screen_quantities(
    screen: Screen, values: dict[str, np.ndarray], min_parallax_snr: float
) -> None:
    """Drop rows that cannot be, given columns in canonical units, shape ``(n,)``."""
    for name in ("b", "dec"):
        if name in values:
            screen.fault(np.abs(values[name]) > 90, f"|{name}| > 90 deg")
    for name in ("l", "ra"):
        if name in values:
            screen.fault(np.abs(values[name]) > 360, f"|{name}| > 360 deg")
    for name in ("distance", "parallax"):
        if name in values:
            screen.fault(values[name] <= 0, f"{name} not positive")
    for name in ("distance", "extinction"):
        lower, upper = values.get(f"{name}_lower"), values.get(f"{name}_upper")
        if lower is not None and upper is not None:
            screen.fault(lower > upper, f"{name}_lower > {name}_upper")
            values[f"{name}_error"] = (upper - lower) / 2
    for name in ("parallax_error", "distance_error", "extinction_error"):
        if name in values:
            screen.fault(values[name] == 0, f"{name} zero")
            screen.fault(values[name] < 0, f"{name} negative")
    if "parallax" in values:
        _invert_parallax(screen, values, min_parallax_snr)
    _screen_tiny_errors(screen, values)


def _invert_parallax(
    screen: Screen, values: dict[str, np.ndarray], minimum: float
) -> None:
    parallax, error = values["parallax"], values["parallax_error"]
    with np.errstate(all="ignore"):
        low = parallax < minimum * error
        screen.cut(low, f"parallax below {minimum:g} times its error")
        values["distance"] = 1000 / parallax
        values["distance_error"] = 1000 * error / parallax**2


def _screen_tiny_errors(screen: Screen, values: dict[str, np.ndarray]) -> None:
    if "distance_error" in values and "distance" in values:
        tiny = values["distance_error"] < TINY_DISTANCE_ERROR * values["distance"]
        screen.fault(tiny, "distance_error absurdly small")
    if "extinction_error" in values and screen.standing.any():
        error = values["extinction_error"]
        size = np.maximum(np.abs(values["extinction"]), error)[screen.standing]
        tiny = error < TINY_EXTINCTION_ERROR * np.median(size)
        screen.fault(tiny, "extinction_error absurdly small")


def to_canonical(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
    canonical = {"l": np.mod(l, 360.0), "b": b, "distance": values["distance"]}
    for name in ("extinction", "extinction_error", "distance_error"):
        if name in values:
            canonical[name] = values[name]
    return canonical
