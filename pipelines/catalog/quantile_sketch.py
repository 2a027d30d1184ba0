"""Quantiles of any number of values in a memory that stays small.

Values are counted in narrow bins; the counts of several pieces add up exactly, in any
order, and give the quantiles to 1%.
"""

from __future__ import annotations

import numpy as np

# Bins are of 1% of a value and, around zero, of 1% of this.
_WIDTH, _SCALE = 0.01, 1e-3
# Up to 1e12 times that on either side; beyond it in the last bin.
_LAST = int(np.arcsinh(1e12) / _WIDTH)
LEVELS = (0.01, 0.5, 0.99)


def count_in_bins(values: np.ndarray) -> np.ndarray:
    """How many of some finite values, shape ``(n,)``, lie in each bin, ``(bins,)``."""
    place = np.rint(np.arcsinh(np.asarray(values, float) / _SCALE) / _WIDTH)
    bins = np.clip(place, -_LAST, _LAST).astype(np.int64) + _LAST
    return np.bincount(bins, minlength=2 * _LAST + 1)


def quantiles(counts: np.ndarray) -> tuple[float, ...]:
    """Those of `LEVELS`, from the counts of one value or more."""
    below = np.cumsum(counts)
    bins = np.searchsorted(below, np.array(LEVELS) * below[-1])
    return tuple(float(v) for v in _SCALE * np.sinh(_WIDTH * (bins - _LAST)))
