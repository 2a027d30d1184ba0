"""The integral of a cube along an axis, and how much of a wide box is looked into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from astropy import units as u

from pipelines.figures.box import array_axis
from pipelines.maps.columns import Columns
from pipelines.maps.cube import Cube

# Of boxes wider than this only what lies near the Sun is seen from the side [pc].
_WIDE, _NEAR = 2000.0, 500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """A cube's cells between two ends along an axis [pc]; the density is linear between
    their centres, so that a column ends at the centres of the outermost cells."""

    cube: Cube
    along: str
    low: float
    high: float

    @classmethod
    def of(
        cls, cube: Cube, along: str, ends: Columns | tuple[float, float] | None
    ) -> Through:
        """Between the ends of columns, or others, or of the whole cube."""
        centres = getattr(cube, along)
        if isinstance(ends, Columns):
            ends = (ends.low, ends.high)
        low, high = ends or (centres[0], centres[-1])
        return cls(cube=cube, along=along, low=float(low), high=float(high))

    @property
    def weights(self) -> np.ndarray:
        """What every plane of cells adds to the integral [pc]."""
        centres = getattr(self.cube, self.along)
        within = centres[(centres > self.low) & (centres < self.high)]
        nodes = np.concatenate([[self.low], within, [self.high]])
        halves = np.diff(nodes) / 2
        share = np.append(halves, 0.0) + np.insert(halves, 0, 0.0)
        hats = [np.interp(nodes, centres, one) for one in np.eye(len(centres))]
        return np.stack(hats) @ share

    def integral(self, name: str) -> np.ndarray:
        """Of an array [mag], shape (up, across)."""
        array = np.moveaxis(self.cube.arrays[name], array_axis(self.along), -1)
        return array @ self.weights * (u.Unit(self.cube.unit) * u.pc).to(u.mag)

    @property
    def seen(self) -> np.ndarray | None:
        """Whether sight lines pass through any of the cells; ``None`` if not known."""
        if "support" not in self.cube.arrays:
            return None
        axis = array_axis(self.along)
        within = np.flatnonzero(self.weights > 0)
        return self.cube.arrays["support"].take(within, axis=axis).sum(axis=axis) > 0


def near_the_sun(
    cube: Cube, along: str, within: float | None = None
) -> tuple[float, float]:
    """Ends of columns along x or y [pc]: a wide box is cut to 500 pc on either side.

    Through kiloparsecs every column meets some star's sight line, and the plane's
    dust: such a picture tells little. ``within`` is another distance from the Sun.
    """
    centres = getattr(cube, along)
    low, high = float(centres[0]), float(centres[-1])
    if within is None:
        within = _NEAR if high - low > _WIDE else np.inf
    ends = max(low, -within), min(high, within)
    return ends if ends[0] < ends[1] else (low, high)


def density_name(cube: Cube) -> str:
    """The array that is shown as a cube's density: median, mean or truth."""
    for name in ("p50", "mean", "density"):
        if name in cube.arrays:
            return name
    raise ValueError(
        f"the cube has arrays {sorted(cube.arrays)}; expected p50, mean or density"
    )
