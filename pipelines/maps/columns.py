"""Extinction through the whole box: one value, with its error, per column of cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Ends = tuple[float, float]

# Of boxes wider than this only what lies near the Sun is seen from the side [pc].
_WIDE, _NEAR = 2000.0, 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The *integral* of the density along one axis of the box, with its own error.

    Parameters
    ----------
    along
        ``x``, ``y`` or ``z``: the axis that is integrated over.
    low, high
        Where the columns begin and end [pc].
    arrays
        ``mean``, ``std`` and, of a positive density, ``p2_5`` to ``p97_5`` [mag]:
        of the integral, in which errors of neighbouring cells that cancel do cancel.
        Of shape (up, across): (y, x) along z, (z, x) along y, (z, y) along x.
    """

    along: str
    low: float
    high: float
    arrays: dict[str, np.ndarray]


def near_the_sun(centres: np.ndarray, within: float | None = None) -> Ends:
    """Ends of columns along x or y [pc]: a wide box is cut to 500 pc on either side.

    Through kiloparsecs every column meets some star's sight line, and the plane's
    dust: such a picture tells little. ``within`` is another distance from the Sun.
    """
    low, high = float(centres[0]), float(centres[-1])
    if within is None:
        within = _NEAR if high - low > _WIDE else np.inf
    ends = max(low, -within), min(high, within)
    return ends if ends[0] < ends[1] else (low, high)


def usual_ends(y: np.ndarray) -> dict[str, Ends | None]:
    """Ends of the columns that are shown unless told otherwise, by axis.

    ``None`` is the whole box; ``y`` are the centres of its cells.
    """
    return {"z": None, "y": near_the_sun(y)}
