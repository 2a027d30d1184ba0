"""Signs of an unsound catalogue, by which an ingestion refuses it."""

from __future__ import annotations

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.plan import IngestOptions
from pipelines.catalog.rows import Tally
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.staging import Staging

_FEWEST_POSITIONS = 5
_RADIAN_LIMITS = (2 * np.pi, np.pi / 2)
_PLAUSIBLE = {"distance": (20.0, 1e5), "extinction": (-30.0, 30.0)}
"""Plausible medians [pc, mag]: dust maps reach from tens of parsecs to the Galaxy's
end; stars behind 30 mag are seen by few surveys, and never by half of one."""
_ERROR = "extinction_error"
_PLAUSIBLE_ERRORS = (1 / 300, 3.0)
"""Plausible medians of the errors, in standard deviations of the extinctions."""
_FEWEST_SPREAD = 10
_PERCENTS = (1, 50, 99)

Ranges = dict[str, tuple[float, ...]]
"""Quantiles, 1%, 50% and 99%, of distance [pc], extinction and its error [mag]."""


def ranges_of(stars: Staging) -> Ranges:
    """Return the quantiles of the columns that there are."""
    if not stars.count():
        return {}
    names = [n for n in (*_PLAUSIBLE, _ERROR) if n in stars.schema.names]
    return {name: stars.quantiles(name, _PERCENTS) for name in names}


def find_doubts(stars: Staging, ranges: Ranges) -> list[str]:
    """Name the quantities that are as large as if they were in another unit."""
    doubts = []
    for name, (least, most) in _PLAUSIBLE.items():
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
    if _ERROR in ranges and sum(stars.count().values()) >= _FEWEST_SPREAD:
        # The outermost 1% on either side may be anything.
        low, _, high = ranges["extinction"]
        spread = stars.spread("extinction", low, high)
        median = ranges[_ERROR][1]
        least, most = (limit * spread for limit in _PLAUSIBLE_ERRORS)
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


def refuse_unsound(
    stars: Staging, tally: Tally, doubts: list[str], options: IngestOptions
) -> None:
    """Refuse rows that are none, mostly faulty, in one place or of a wrong unit.

    Doubts about units are only notes with ``any_range``, and of positions alone, which
    may lie anywhere.

    Raises
    ------
    InputError
        With the reason and a remedy.
    """
    if not tally.rows_read:
        raise InputError("the input has no rows")
    faulty = tally.faults.total()
    examined = tally.rows_read - tally.filtered
    if faulty > options.max_bad * examined:
        reasons = ", ".join(f"{n:,} {why}" for why, n in tally.faults.most_common(5))
        raise InputError(
            f"{faulty:,} of {examined:,} rows are faulty, more than the "
            f"fraction {options.max_bad:g} that --max-bad allows: {reasons}. Check "
            "the columns and units, or filter the rows with --where"
        )
    fewest = 1 if options.positions_only else _FEWEST_POSITIONS
    places = stars.places(_FEWEST_POSITIONS)
    if places < fewest:
        raise InputError(
            f"{places} distinct positions are left of "
            f"{tally.rows_read:,} rows ({tally.cuts.total():,} removed by quality "
            f"cuts, {faulty:,} faulty): a map needs at least {fewest}"
        )
    l, b = tally.largest_angles  # noqa: E741
    small = l <= _RADIAN_LIMITS[0] and b <= _RADIAN_LIMITS[1]
    if min(l, b) >= 0 and small and places >= _FEWEST_POSITIONS:
        raise InputError(
            f"all angles look like radians: the largest are {l:.3g} and {b:.3g} "
            "deg. If they are, say so, e.g. --map l=l:rad; if the field is really "
            "so small, map ra and dec instead of l and b"
        )
    if doubts and not (options.any_range or options.positions_only):
        raise InputError(
            " ".join(doubts) + ". If it is right as it is, pass --any-range"
        )
