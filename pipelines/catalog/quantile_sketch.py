"""Quantiles of any number of rows in a memory that stays small."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Bins are of 1% of a value and, around zero, of 1% of this.
_WIDTH, _SCALE = 0.01, 1e-3
# Up to 1e12 times that on either side; beyond it in the last bin.
_LAST = int(np.arcsinh(1e12) / _WIDTH)
LEVELS = (0.01, 0.5, 0.99)


@dataclass(slots=True)
class QuantileSketch:
    """Values in narrow bins, of which quantiles are known to 1%.

    ``counts`` has shape ``(bins,)``; they add up exactly, in any order.
    """

    counts: np.ndarray = field(
        default_factory=lambda: np.zeros(2 * _LAST + 1, dtype=np.int64)
    )

    def note(self, values: np.ndarray) -> None:
        """Count finite values, shape ``(n,)``."""
        place = np.rint(np.arcsinh(np.asarray(values, float) / _SCALE) / _WIDTH)
        bins = np.clip(place, -_LAST, _LAST).astype(np.int64) + _LAST
        self.counts += np.bincount(bins, minlength=len(self.counts))

    def quantiles(self) -> tuple[float, ...]:
        """Those of `LEVELS`, of one value or more."""
        below = np.cumsum(self.counts)
        bins = np.searchsorted(below, np.array(LEVELS) * below[-1])
        return tuple(float(v) for v in _SCALE * np.sinh(_WIDTH * (bins - _LAST)))
