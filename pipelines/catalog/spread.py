"""How a quantity is spread over any number of rows, in a memory that stays small."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Bins are of 1% of a value and, around zero, of 1% of this.
_WIDTH, _SCALE = 0.01, 1e-3
# Up to 1e12 times that on either side; beyond it in the last bin.
_LAST = int(np.arcsinh(1e12) / _WIDTH)
LEVELS = (0.01, 0.5, 0.99)


@dataclass(slots=True)
class Spread:
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

    def add(self, other: Spread) -> None:
        """Add the values of another."""
        self.counts += other.counts

    def quantiles(self) -> tuple[float, ...] | None:
        """Those of `LEVELS`; ``None`` without values."""
        below = np.cumsum(self.counts)
        if not below[-1]:
            return None
        bins = np.searchsorted(below, np.array(LEVELS) * below[-1])
        return tuple(float(v) for v in _SCALE * np.sinh(_WIDTH * (bins - _LAST)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What medians of a quantity are believed, and what else they may come from."""

    least: float
    most: float
    unit: str
    advice: str

    def doubt(self, name: str, quantiles: tuple[float, ...]) -> str | None:
        """Why the unit looks wrong; ``None`` if it does not."""
        low, median, high = quantiles
        if self.least <= median <= self.most:
            return None
        side = "below" if median < self.least else "beyond"
        bound = self.least if median < self.least else self.most
        return (
            f"{name} looks as if its unit were another: the median is {median:.2g} "
            f"{self.unit} (1% to 99%: {low:.2g} to {high:.2g}), {side} {bound:g} "
            f"{self.unit}. {self.advice}"
        )


RANGES = {
    "distance": Range(
        least=20.0,
        most=1e5,
        unit="pc",
        advice="Check the column and the unit that --map distance=COLUMN:UNIT says",
    ),
    "extinction": Range(
        least=-30.0,
        most=30.0,
        unit="mag",
        advice="Check the column and the unit that --map extinction=COLUMN:UNIT says",
    ),
}
"""Dust maps reach from tens of parsecs to the Galaxy's end; stars behind 30 mag are
seen by few surveys, and never by half of one."""
