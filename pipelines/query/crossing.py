"""The distance at which an extinction is reached: the inverse of a query."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.query.places import Places
from pipelines.query.sky import Sky

CROSSING_FLAGS = np.dtype(
    [("not_reached", "?"), ("bounded", "?"), ("extrapolated", "?"), ("inside", "?")]
)
"""``not_reached``: the map ends before. ``bounded``: the upper distance is in the map.
``extrapolated``: the central one is beyond the last star. ``inside``: the map has a
curve in this direction."""


class Crossing(NamedTuple):
    """Where a sight line reaches an extinction [pc].

    With probability 68% it is between ``lower`` and ``upper``. What lies beyond the
    map is NaN; ``lower`` is then how far the map goes, if that is less.
    """

    distance: u.Quantity
    lower: u.Quantity
    upper: u.Quantity


def crossings(
    sky: Sky, places: Places, extinction: np.ndarray, centre: str
) -> tuple[np.ndarray, np.ndarray]:
    r"""Distance, lower and upper end [pc], shape ``(3, n)``, and flags ``(n,)``.

    Extinction grows along a ray, so that the distance D at which it reaches a has

    .. math:: P(D \le d) = P(A(d) \ge a),

    and its 16% quantile is where the 84% quantile of A(d) reaches a. Of a density that
    may be negative, and wherever else a curve falls, it is the first crossing.
    """
    if centre not in ("median", "mean"):
        raise InputError(f"centre is median or mean, got {centre!r}")
    names = ("p50" if centre == "median" else "mean", "p84", "p16")
    normal = "p50" not in sky.arrays
    found = np.full((3, len(places)), np.nan)
    for rows, curves in sky.curves(("mean", "std") if normal else names, places):
        if normal:
            mean, std = curves["mean"], curves["std"]
            curves = dict(zip(names, (mean, mean + std, mean - std)))
        for part, name in enumerate(names):
            found[part, rows] = _first(sky.nodes, curves[name], extinction[rows])
    known, reach = ~np.isnan(found[0]), sky.reach(places)
    found[1] = np.minimum(found[1], reach)
    found[found > reach] = np.nan
    flags = np.zeros(len(places), dtype=CROSSING_FLAGS)
    flags["inside"] = known
    flags["not_reached"] = known & np.isnan(found[0])
    flags["bounded"] = np.isfinite(found[2])
    flags["extrapolated"] = np.nan_to_num(found[0]) > sky.last_star(places)
    return found, flags


def check_extinction(
    extinction: u.Quantity | float | np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Extinctions [mag], flat, one for each coordinate.

    Raises
    ------
    InputError
        If one is not positive, the unit is none of extinction, or the shapes differ.
    """
    try:
        values = u.Quantity(extinction, u.mag, dtype=np.float64).value
        values = np.broadcast_to(values, shape).reshape(-1)
    except (u.UnitConversionError, ValueError) as error:
        raise InputError(
            "expected one extinction [mag], or one for each of the coordinates, of "
            f"shape {shape}: {error}"
        ) from error
    if not ((values > 0) & np.isfinite(values)).all():
        raise InputError(
            f"an extinction must be positive and finite [mag], got {extinction}"
        )
    return values


def _first(nodes: np.ndarray, curve: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Where curves ``(m, k)`` first reach ``value (m,)``; NaN of a NaN curve."""
    above = curve >= value[:, None]
    step = np.maximum(above.argmax(axis=1), 1)
    row = np.arange(len(curve))
    low, high = curve[row, step - 1], curve[row, step]
    reached = above.any(axis=1)
    share = (value - low) / np.where(reached, high - low, 1.0)
    distance = nodes[step - 1] + share * (nodes[step] - nodes[step - 1])
    distance = np.where(reached, distance, np.inf)
    return np.where(np.isnan(curve[:, -1]), np.nan, distance)
