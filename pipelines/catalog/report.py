"""The outcome of an ingestion in numbers and words, and signs of unsound input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelines.bands import parse_band
from pipelines.base.errors import InputError
from pipelines.catalog.plan import IngestPlan
from pipelines.catalog.rows import Tally
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.staging import Staging

_FEWEST_POSITIONS = 5
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """Rows read, kept and dropped by reason.

    Parameters
    ----------
    sources
        The files, in the order they were read.
    catalogues
        Number of rows kept of each catalogue, a file or a folder.
    repeats
        Objects that are in two catalogues, in words, by pair.
    faults, cuts
        Number of rows by the reason or the quality cut that dropped them, each row
        counted once.
    negative_extinctions
        Number of kept rows with a negative extinction, which is noise.
    origins, ranges
        Column that a quantity came from; its 1%, 50% and 99% quantiles in the rows
        kept.
    notes
        Assumptions and warnings.
    """

    sources: tuple[str, ...]
    rows_read: int
    rows_kept: int
    catalogues: dict[str, int] = field(default_factory=dict)
    repeats: tuple[str, ...] = ()
    faults: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    negative_extinctions: int = 0
    origins: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def faulty(self) -> int:
        """Number of faulty rows."""
        return sum(self.faults.values())

    @property
    def cut(self) -> int:
        """Number of rows that quality cuts removed."""
        return sum(self.cuts.values())

    def __str__(self) -> str:
        """Render the report as lines of text."""
        files = f"{len(self.sources)} file" + "s" * (len(self.sources) != 1)
        lines = [
            f"{self.rows_read:,} rows read from {files}, {self.rows_kept:,} kept",
            *(f"  {n:,} of {name}" for name, n in self.catalogues.items()),
            *_listing("faulty", self.faulty, self.faults),
            *_listing("removed by quality cuts", self.cut, self.cuts),
        ]
        if self.repeats:
            lines += ["objects in two catalogues:", *(f"  {n}" for n in self.repeats)]
        if self.negative_extinctions:
            lines.append(f"{self.negative_extinctions:,} negative extinctions kept")
        lines += [f"{name} from {origin}" for name, origin in self.origins.items()]
        for name, quantiles in self.ranges.items():
            unit = CANONICAL_UNITS[name]
            low, median, high = (f"{float(f'{v:.2g}'):,g}" for v in quantiles)
            lines.append(
                f"{name}: median {median} {unit}, 1% to 99%: {low} to {high} {unit}"
            )
        return "\n".join([*lines, *self.notes])


def make_report(
    plan: IngestPlan,
    stars: Staging,
    tally: Tally,
    shared: Sequence[str],
    ranges: Ranges,
    notes: Sequence[str],
) -> IngestReport:
    """Report the counts, the plan's assumptions and further ``notes``."""
    kept, names = stars.count(), plan.catalogues
    negative = 0
    if "extinction" in stars.schema.names:
        expression = "count(*) FILTER (WHERE {0} < 0)"
        negative = int(stars.aggregate(expression, "extinction"))
    return IngestReport(
        sources=tuple(reader.source.path.name for reader in plan.readers),
        rows_read=tally.rows_read,
        rows_kept=sum(kept.values()),
        catalogues={name: kept.get(i, 0) for i, name in enumerate(names) if names[1:]},
        repeats=tuple(shared),
        faults=dict(tally.faults),
        cuts=dict(tally.cuts),
        negative_extinctions=negative,
        origins={n: str(origin) for n, origin in plan.readers[0].recipe.items()},
        ranges=ranges,
        notes=(*_assumptions(plan), *notes),
    )


def _assumptions(plan: IngestPlan) -> Iterator[str]:
    first, survey = plan.readers[0], plan.survey
    if "parallax" in first.recipe:
        yield (
            f"distance = 1/parallax above {first.min_parallax_snr:g} times its error, "
            "zero point untouched"
        )
    for name in ("distance", "extinction"):
        if f"{name}_lower" in first.recipe:
            yield f"{name}_error = ({name}_upper - {name}_lower) / 2"
    if "ra" in first.recipe:
        yield "ra and dec taken as ICRS"
    for name, change in plan.changes:
        yield f"{name}: {change.summary()}"
    if plan.options.declare_band or plan.changes:
        band = parse_band(plan.band)
        terms = ", ".join(f"{name} at {nm:g} nm" for name, nm, _ in band.terms)
        yield f"band: {band.name}, in conversions {terms}"
    if survey is not None:
        cited = f" ({'; '.join(survey.references)})" if survey.references else ""
        yield f"{survey.title}{cited}; band: {survey.band}"
        if survey.tested_on == "generated":
            yield "this preset was not tested on a sample of the real survey"


def warnings_of(plan: IngestPlan, doubts: Sequence[str]) -> list[str]:
    """Warn of what a map needs and the catalogue does not state, and of doubts."""
    recipe, found = plan.readers[0].recipe, []
    if "extinction" in recipe and not plan.band:
        found.append(
            "the band of the extinction is not known: state it, e.g. "
            "--declare-band A_V; without it maps cannot be converted or compared"
        )
    if "extinction" in recipe and not recipe.keys() & {
        "distance_error",
        "distance_lower",
        "parallax",
    }:
        found.append(
            "no distance errors: the distances are taken as exact; map "
            "distance_error, or distance_lower and distance_upper"
        )
    return [f"warning: {text}" for text in (*found, *doubts)]


def _listing(title: str, total: int, reasons: Mapping[str, int]) -> list[str]:
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return [f"{total:,} {title}" + ":" * bool(ordered)] + [
        f"  {count:,} {reason}" for reason, count in ordered
    ]


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
        within = f"{{0}} BETWEEN {low!r} AND {high!r}"
        spread = stars.aggregate(
            f"stddev_pop({{0}}) FILTER (WHERE {within})", "extinction"
        )
        median = ranges[_ERROR][1]
        least, most = (limit * spread for limit in _PLAUSIBLE_ERRORS)
        if spread and not least <= median <= most:
            bound = "below 1/300 of" if median < least else "beyond 3 times"
            doubts.append(
                f"{_ERROR} looks as if its unit were another than that of the "
                f"extinction, such as mmag beside mag: the median is {median:.2g} "
                f"mag, {bound} the standard deviation of the extinctions, "
                f"{spread:.2g} mag. Check the units that --map says"
            )
    return doubts


def refuse_unsound(
    plan: IngestPlan, stars: Staging, tally: Tally, doubts: Sequence[str]
) -> None:
    """Refuse rows that are none, mostly faulty, in one place or of a wrong unit.

    Doubts about units are only notes with ``any_range``, and of positions alone, which
    may lie anywhere.

    Raises
    ------
    InputError
        With the reason and a remedy.
    """
    options = plan.options
    if not tally.rows_read:
        raise InputError("the input has no rows")
    faulty = tally.faults.total()
    # Rows that a quality cut by name removed are not examined.
    named = sum(tally.cuts[name] for name in plan.readers[0].filters)
    examined = tally.rows_read - named
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
    small = 0 <= l <= 2 * np.pi and 0 <= b <= np.pi / 2
    if small and places >= _FEWEST_POSITIONS:
        raise InputError(
            f"all angles look like radians: the largest are {l:.3g} and {b:.3g} "
            "deg. If they are, say so, e.g. --map l=l:rad; if the field is really "
            "so small, map ra and dec instead of l and b"
        )
    if doubts and not (options.any_range or options.positions_only):
        raise InputError(
            " ".join(doubts) + ". If it is right as it is, pass --any-range"
        )
