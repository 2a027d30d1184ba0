"""What is counted of the rows of a catalogue, and when that makes it unsound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.options import IngestOptions
from pipelines.catalog.schema import CANONICAL_UNITS

FEWEST_POSITIONS = 5
RADIAN_LIMITS = (2 * np.pi, np.pi / 2)
PLAUSIBLE = {"distance": (20.0, 1e5), "extinction": (-30.0, 30.0)}
"""Medians that are believed [pc, mag]: dust maps reach from tens of parsecs to the
Galaxy's end; stars behind 30 mag are seen by few surveys, and never by half of one."""

_ERROR = "extinction_error"
COUNTED = (*PLAUSIBLE, _ERROR)
"""What is counted in bins."""
# Bins are of 1% of a value and, around zero, of 1% of this.
_WIDTH, _SCALE = 0.01, 1e-3
# Up to 1e12 times that on either side; beyond it in the last bin.
_LAST = int(np.arcsinh(1e12) / _WIDTH)
LEVELS = (0.01, 0.5, 0.99)
# Medians of their errors that are believed, in standard deviations of extinctions of so
# many stars.
_ERRORS = (1 / 300, 3.0)
_FEWEST_SPREAD = 10


@dataclass(slots=True)
class Counts:
    """Rows read, kept and dropped by reason, and signs of an unsound catalogue.

    ``negative`` of the ``kept`` have a negative extinction; ``bins`` count their
    distances and extinctions in narrow bins, which give quantiles to 1% and add up
    exactly, in any order. ``largest_angles`` are longitude and latitude [deg] as the
    source has them, −1 if it has none, ``farthest`` is the largest distance [pc],
    ``places`` the first few distinct positions, shape ``(k, 3)``, ``identifier_kind``
    text, integers or nothing so far.
    """

    faults: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    rows_read: int = 0
    rows_filtered: int = 0
    kept: int = 0
    negative: int = 0
    bins: dict[str, np.ndarray] = field(default_factory=dict)
    largest_angles: np.ndarray = field(default_factory=lambda: np.full(2, -1.0))
    farthest: float = 0.0
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    identifier_kind: str = ""

    def agree_on(self, kind: str, path: Path) -> None:
        """Note of which kind identifiers are; raise `InputError` if they differ."""
        self.identifier_kind = self.identifier_kind or kind
        if kind and kind != self.identifier_kind:
            raise InputError(
                f"{path}: source_id is {kind} here but {self.identifier_kind} "
                "before: make them alike, or leave them out with --map source_id=none"
            )

    def note_kept(
        self, columns: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
    ) -> None:
        """Count kept rows, canonical and as the source has them, shape ``(n,)``."""
        self.count(columns, 1)
        self.farthest = max(self.farthest, float(columns["distance"].max()))
        for axis, names in enumerate((("l", "ra"), ("b", "dec"))):
            for angle in (values[name] for name in names if name in values):
                largest = max(self.largest_angles[axis], np.abs(angle).max())
                self.largest_angles[axis] = largest
        for rows in (slice(FEWEST_POSITIONS), slice(None)):
            new = [columns[n][rows] for n in ("l", "b", "distance")]
            self._note_places(np.stack(new, axis=1))

    def add(self, other: Counts, path: Path) -> None:
        """Add what was counted of a later piece, of the source ``path``.

        Raises
        ------
        InputError
            If its identifiers are of another kind.
        """
        self.agree_on(other.identifier_kind, path)
        self.faults.update(other.faults)
        self.cuts.update(other.cuts)
        for name in ("rows_read", "rows_filtered", "kept", "negative"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, counted in other.bins.items():
            self.bins[name] = self.bins.get(name, 0) + counted
        self.farthest = max(self.farthest, other.farthest)
        self.largest_angles = np.maximum(self.largest_angles, other.largest_angles)
        self._note_places(other.places)

    def ranges(self) -> dict[str, tuple[float, ...]]:
        """Quantiles of distance [pc], extinction and its error [mag] of rows kept."""
        if not self.kept:
            return {}
        return {name: _quantiles(counted) for name, counted in self.bins.items()}

    def doubts(self) -> list[str]:
        """Which quantities are as large as if they were in another unit."""
        doubts, ranges = [], self.ranges()
        for name, (least, most) in PLAUSIBLE.items():
            low, median, high = ranges.get(name, (most, most, most))
            if not least <= median <= most:
                unit = CANONICAL_UNITS[name]
                bound = f"below {least:g}" if median < least else f"beyond {most:g}"
                doubts.append(
                    f"{name} looks as if its unit were another: the median is "
                    f"{median:.2g} {unit} (1% to 99%: {low:.2g} to {high:.2g}), "
                    f"{bound} {unit}. Check the column and the unit that --map "
                    f"{name}=COLUMN:UNIT says"
                )
        if _ERROR in ranges and self.kept >= _FEWEST_SPREAD:
            spread, median = _spread(self.bins["extinction"]), ranges[_ERROR][1]
            least, most = (limit * spread for limit in _ERRORS)
            if spread and not least <= median <= most:
                bound = "below 1/300 of" if median < least else "beyond 3 times"
                doubts.append(
                    f"{_ERROR} looks as if its unit were another than that of the "
                    f"extinction, such as mmag beside mag: the median is {median:.2g} "
                    f"mag, {bound} the standard deviation of the extinctions, "
                    f"{spread:.2g} mag. Check the columns and the units that --map "
                    f"extinction=COLUMN:UNIT and {_ERROR}=COLUMN:UNIT say"
                )
        return doubts

    def refuse_unsound(self, options: IngestOptions) -> None:
        """Raise `InputError` if the rows are none, mostly faulty or in one place.

        Or if their unit looks wrong, unless ``any_range``: of positions alone, which
        may lie anywhere, this is only a note.
        """
        if not self.rows_read:
            raise InputError("the input has no rows")
        faulty = self.faults.total()
        examined = self.rows_read - self.rows_filtered
        if faulty > options.max_bad * examined:
            reasons = ", ".join(f"{n:,} {why}" for why, n in self.faults.most_common(5))
            raise InputError(
                f"{faulty:,} of {examined:,} rows are faulty, more than the "
                f"fraction {options.max_bad:g} that --max-bad allows: {reasons}. Check "
                "the columns and units, or filter the rows with --where"
            )
        fewest = 1 if options.positions_only else FEWEST_POSITIONS
        if len(self.places) < fewest:
            raise InputError(
                f"{len(self.places)} distinct positions are left of "
                f"{self.rows_read:,} rows ({self.cuts.total():,} removed by quality "
                f"cuts, {faulty:,} faulty): a map needs at least {fewest}"
            )
        self._refuse_radians()
        doubts = self.doubts()
        if doubts and not (options.any_range or options.positions_only):
            raise InputError(
                " ".join(doubts) + ". If it is right as it is, pass --any-range"
            )

    def _refuse_radians(self) -> None:
        l, b = self.largest_angles  # noqa: E741
        if min(l, b) < 0 or len(self.places) < FEWEST_POSITIONS:
            return
        if l <= RADIAN_LIMITS[0] and b <= RADIAN_LIMITS[1]:
            raise InputError(
                f"all angles look like radians: the largest are {l:.3g} and {b:.3g} "
                "deg. If they are, say so, e.g. --map l=l:rad; if the field is really "
                "so small, map ra and dec instead of l and b"
            )

    def count(self, columns: Mapping[str, np.ndarray], sign: int) -> None:
        """Count rows that are kept, canonical, or with ``sign`` -1 discount them."""
        self.kept += sign * len(columns["distance"])
        if "extinction" in columns:
            self.negative += sign * int((columns["extinction"] < 0).sum())
        for name in COUNTED:
            if name in columns:
                counted = sign * _count_in_bins(columns[name])
                self.bins[name] = self.bins.get(name, 0) + counted

    def _note_places(self, places: np.ndarray) -> None:
        if len(self.places) < FEWEST_POSITIONS:
            joined = np.concatenate([self.places, places])
            self.places = np.unique(joined, axis=0)[:FEWEST_POSITIONS]


def _count_in_bins(values: np.ndarray) -> np.ndarray:
    """How many finite values, shape ``(n,)``, lie in each bin, ``(bins,)``."""
    place = np.rint(np.arcsinh(np.asarray(values, float) / _SCALE) / _WIDTH)
    bins = np.clip(place, -_LAST, _LAST).astype(np.int64) + _LAST
    return np.bincount(bins, minlength=2 * _LAST + 1)


def _spread(counts: np.ndarray) -> float:
    """Standard deviation of all but the first and the last 1%, from the counts."""
    below, whole = np.cumsum(counts), counts.sum()
    inner = np.diff(np.clip(below, 0.01 * whole, 0.99 * whole), prepend=0.01 * whole)
    values = _SCALE * np.sinh(_WIDTH * (np.arange(len(counts)) - _LAST))
    used = inner > 0
    mean = np.average(values[used], weights=inner[used])
    return float(np.sqrt(np.average((values[used] - mean) ** 2, weights=inner[used])))


def _quantiles(counts: np.ndarray) -> tuple[float, ...]:
    """Those of `LEVELS`, from the counts of one value or more."""
    below = np.cumsum(counts)
    bins = np.searchsorted(below, np.array(LEVELS) * below[-1])
    return tuple(float(v) for v in _SCALE * np.sinh(_WIDTH * (bins - _LAST)))
