"""Extinction through the whole box: one value, with its error, per column of cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
