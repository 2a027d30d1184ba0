"""What is counted of the rows of a catalogue on their way in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.rows import Tally
from pipelines.catalog.spread import RANGES, Spread

FEWEST_POSITIONS = 5
RADIAN_LIMITS = (2 * np.pi, np.pi / 2)


@dataclass(slots=True)
class Counts:
    """Rows read, kept and dropped; what tells sound catalogues from unsound ones.

    ``largest_angles`` are longitude and latitude [deg] as the source has them,
    ``farthest`` the largest distance [pc], ``places`` the first few distinct positions,
    shape ``(k, 3)``, ``identifier_kind`` text, integers or nothing so far, ``spreads``
    how distances [pc] and extinctions [mag] are spread.
    """

    tally: Tally = field(default_factory=Tally)
    rows_read: int = 0
    rows_kept: int = 0
    rows_filtered: int = 0
    negative_extinctions: int = 0
    largest_angles: tuple[float, float] | None = None
    farthest: float = 0.0
    places: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    identifier_kind: str = ""
    spreads: dict[str, Spread] = field(default_factory=dict)

    @property
    def distinct_positions(self) -> int:
        """Number of distinct positions among the kept rows, as far as it matters."""
        return len(self.places)

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
        self.rows_kept += len(columns["l"])
        if "extinction" in columns:
            self.negative_extinctions += int((columns["extinction"] < 0).sum())
        self.farthest = max(self.farthest, float(columns["distance"].max()))
        self._add_spreads(spreads_of(columns))
        longitude = next((values[n] for n in ("l", "ra") if n in values), None)
        latitude = next((values[n] for n in ("b", "dec") if n in values), None)
        if longitude is not None and latitude is not None:
            largest = np.abs(longitude).max(), np.abs(latitude).max()
            self._note_angles((float(largest[0]), float(largest[1])))
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
        self.tally.faults.update(other.tally.faults)
        self.tally.cuts.update(other.tally.cuts)
        self.rows_read += other.rows_read
        self.rows_kept += other.rows_kept
        self.rows_filtered += other.rows_filtered
        self.negative_extinctions += other.negative_extinctions
        self.farthest = max(self.farthest, other.farthest)
        if other.largest_angles is not None:
            self._note_angles(other.largest_angles)
        self._note_places(other.places)
        self._add_spreads(other.spreads)

    def recount(self, spreads: Iterable[Mapping[str, Spread]]) -> None:
        """Take spreads anew, without rows that were dropped after they were noted."""
        self.spreads = {}
        for each in spreads:
            self._add_spreads(each)

    def ranges(self) -> dict[str, tuple[float, ...]]:
        """The quantiles of distance and extinction; see `spread.LEVELS`."""
        found = {name: spread.quantiles() for name, spread in self.spreads.items()}
        return {name: values for name, values in found.items() if values is not None}

    def doubts(self) -> list[str]:
        """Which quantities are as large as if they were in another unit."""
        found = [RANGES[name].doubt(name, q) for name, q in self.ranges().items()]
        return [doubt for doubt in found if doubt is not None]

    def refuse_unsound(
        self, max_bad: float, *, positions_only: bool, any_range: bool = False
    ) -> None:
        """Raise `InputError` if the rows are none, mostly faulty or in one place.

        Or if their unit looks wrong, unless ``any_range``: of positions alone, which
        may lie anywhere, that is only told.
        """
        if not self.rows_read:
            raise InputError("the input has no rows")
        faults: Counter[str] = self.tally.faults
        faulty = sum(faults.values())
        examined = self.rows_read - self.rows_filtered
        if faulty > max_bad * examined:
            reasons = ", ".join(
                f"{n:,} {reason}" for reason, n in faults.most_common(5)
            )
            raise InputError(
                f"{faulty:,} of {examined:,} rows are faulty, more than the "
                f"fraction {max_bad:g} that --max-bad allows: {reasons}. Check the "
                "columns and units, or filter the rows with --where"
            )
        fewest = 1 if positions_only else FEWEST_POSITIONS
        if self.distinct_positions < fewest:
            cut = sum(self.tally.cuts.values())
            raise InputError(
                f"{self.distinct_positions} distinct positions are left of "
                f"{self.rows_read:,} rows ({cut:,} removed by quality cuts, "
                f"{faulty:,} faulty): a map needs at least {fewest}"
            )
        self._refuse_radians()
        doubts = self.doubts()
        if doubts and not (any_range or positions_only):
            raise InputError(
                " ".join(doubts) + ". If it is right as it is, pass --any-range"
            )

    def _refuse_radians(self) -> None:
        angles = self.largest_angles
        if angles is None or self.distinct_positions < FEWEST_POSITIONS:
            return
        if angles[0] <= RADIAN_LIMITS[0] and angles[1] <= RADIAN_LIMITS[1]:
            raise InputError(
                f"all angles look like radians: the largest are {angles[0]:.3g} and "
                f"{angles[1]:.3g} deg. If they are, say so, e.g. --map l=l:rad; if the "
                "field is really so small, map ra and dec instead of l and b"
            )

    def _add_spreads(self, spreads: Mapping[str, Spread]) -> None:
        for name, spread in spreads.items():
            self.spreads.setdefault(name, Spread()).add(spread)

    def _note_angles(self, angles: tuple[float, float]) -> None:
        before = self.largest_angles or (0.0, 0.0)
        self.largest_angles = (max(before[0], angles[0]), max(before[1], angles[1]))

    def _note_places(self, places: np.ndarray) -> None:
        if len(self.places) < FEWEST_POSITIONS:
            joined = np.concatenate([self.places, places])
            self.places = np.unique(joined, axis=0)[:FEWEST_POSITIONS]


def spreads_of(columns: Mapping[str, np.ndarray]) -> dict[str, Spread]:
    """How canonical columns, shape ``(n,)`` each, are spread."""
    spreads = {name: Spread() for name in RANGES if name in columns}
    for name, spread in spreads.items():
        spread.note(columns[name])
    return spreads
