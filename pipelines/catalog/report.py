"""The report of an ingestion, and checks for unsound input."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from pipelines.bands import SCALES
from pipelines.base.errors import InputError
from pipelines.catalog.mapping import restated, written
from pipelines.catalog.plan import IngestPlan
from pipelines.catalog.rows import RowReader, Tally
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.staging import UNMATCHED, Staging

_PLAUSIBLE = {"distance": (20.0, 1e5), "extinction": (-30.0, 30.0)}
"""Plausible medians [pc, mag]: dust maps reach from tens of parsecs to the Galaxy's
end; stars behind 30 mag are seen by few surveys, and never by half of one."""
_FEWEST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """Rows read, kept and dropped by reason, each row counted once."""

    sources: tuple[str, ...]
    """The files, in the order they were read."""
    rows_read: int
    rows_kept: int
    catalogues: dict[str, int] = field(default_factory=dict)
    """Number of rows kept of each catalogue (file or folder), if there are several."""
    repeats: tuple[str, ...] = ()
    """Descriptions of objects shared by two catalogues, by pair."""
    faults: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    negative_extinctions: int = 0
    """Number of kept rows with a negative extinction, due to noise."""
    origins: dict[str, str] = field(default_factory=dict)
    """Source column of each quantity."""
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Quantiles of 1%, 50% and 99% in kept rows."""
    notes: tuple[str, ...] = ()
    """Assumptions and warnings."""

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
        lines = [f"{self.rows_read:,} rows read from {files}, {self.rows_kept:,} kept"]
        lines += [f"  {n:,} of {name}" for name, n in self.catalogues.items()]
        for total, title, reasons in (
            (self.faulty, "faulty", self.faults),
            (self.cut, "removed by quality cuts", self.cuts),
        ):
            lines.append(f"{total:,} {title}" + ":" * bool(reasons))
            ordered = sorted(reasons.items(), key=lambda item: -item[1])
            lines += [f"  {count:,} {reason}" for reason, count in ordered]
        if self.repeats:
            lines += ["objects in two catalogues:", *(f"  {n}" for n in self.repeats)]
        if self.negative_extinctions:
            lines.append(f"{self.negative_extinctions:,} negative extinctions kept")
        lines += [f"{name} from {origin}" for name, origin in self.origins.items()]
        for name, quantiles in self.ranges.items():
            unit = CANONICAL_UNITS[name]
            low, mid, high = (f"{float(f'{v:.2g}'):,g}" for v in quantiles)
            between = f"1% to 99%: {low} to {high} {unit}"
            lines.append(f"{name}: median {mid} {unit}, {between}")
        return "\n".join([*lines, *self.notes])


def make_report(
    plan: IngestPlan, stars: Staging, tally: Tally, repeats: Sequence[str]
) -> IngestReport:
    """Report the counts and the assumptions, or refuse unsound input.

    Raises `InputError` if rows are mostly faulty or in one place, or a unit seems
    wrong; the latter is only a note with ``any_range``.
    """
    options, faulty = plan.options, tally.faults.total()
    for name, outside in tally.outside.items():
        if 2 * outside > (rows := tally.bounded[name]):
            raise InputError(
                f"{name}_lower and {name}_upper do not enclose {name} in {outside:,} "
                f"of {rows:,} rows: they look like offsets from it, errors below and "
                "above. Bounds are values, such as 16th and 84th percentiles; map "
                f"offsets as {name}_error_lower and {name}_error_upper"
            )
    # Rows removed by named quality cuts are not examined.
    examined = tally.rows_read - sum(tally.cuts[name] for name in plan.mapped.cuts)
    if faulty > options.max_bad * examined:
        reasons = ", ".join(f"{n:,} {why}" for why, n in tally.faults.most_common(5))
        raise InputError(
            f"{faulty:,} of {examined:,} rows are faulty, more than --max-bad "
            f"{options.max_bad:g} allows: {reasons}. Check columns and units, or use "
            "--where"
        )
    kept = stars.count()
    distinct = f"(SELECT DISTINCT l, b, distance FROM stars LIMIT {_FEWEST_PLACES})"
    places = stars.aggregate("count(*)", distinct) if kept else 0
    if places < _FEWEST_PLACES:
        raise InputError(
            f"{places} distinct positions are left of {tally.rows_read:,} rows "
            f"({tally.cuts.total():,} removed by quality cuts, {faulty:,} faulty): a "
            f"map needs at least {_FEWEST_PLACES}"
        )
    reader, ends = plan.readers[0], np.array(tally.angles or [(0, 0), (360, 90)])
    pair = [name for name in ("l", "b", "ra", "dec") if name in reader.recipe]
    l, b = np.abs(ends).max(axis=0)  # noqa: E741
    if l <= 2 * np.pi and b <= np.pi / 2 and not options.any_range:
        maps = (restated(reader.source, n, reader.recipe[n], "rad") for n in pair)
        raise InputError(
            f"all angles look like radians, the largest {l:.3g} and {b:.3g} deg: state "
            f"this, {' '.join(maps)}, or if they are degrees, pass --any-range"
        )
    shown = (*_PLAUSIBLE, "extinction_error")
    ranges = {name: stars.quantiles(name, (1, 50, 99)) for name in shown}
    doubts = list(_doubts(reader, stars, ranges))
    (width, height) = ends[1] - ends[0]
    if "ra" in pair and 18 < width <= l <= 24 and height > 90:
        hours = restated(reader.source, "ra", reader.recipe["ra"], "hourangle")
        fault = "ra looks like hours, as it ends at 24 over the whole sky"
        doubts.append(f"{fault}: state this, {hours}")
    if doubts and not options.any_range:
        fault = f"{' '.join(doubts)}. If it is right as it is, pass --any-range"
        raise InputError(fault)
    notes = [f"warning: {text}" for text in _clumps(plan, stars)]
    notes += [
        f"{rows:,} rows in the frame {text}, as their file states: transformed to "
        "Galactic, at their own epoch (proper motions are not applied)"
        for text, rows in tally.stated.items()
    ]
    notes += _assumptions(plan)
    notes += [f"{name}: {what}" for name, what in stars.widened.items()]
    for name, rows in stars.gaps().items():
        exact = ": their distances are taken as exact" * (name == "distance_error")
        notes.append(f"{rows:,} rows of files without {name} have none{exact}")
    for reader in plan.readers:
        for name, (column, factor) in reader.carried.items():
            if factor != 1:
                place = f"{reader.source.path.name}, times {factor:g}"
                notes.append(f"{name} [{plan.units[name]}] from {column} of {place}")
    if "source_id" in stars.schema.names:
        unmatched = stars.aggregate(f"count(*) FILTER ({UNMATCHED})")
        line = f"{unmatched:,} rows without a source_id (0, -1 or missing) are kept"
        notes += [line] if unmatched else []
    negative = stars.aggregate("count(*) FILTER (WHERE extinction < 0)")
    several = enumerate(plan.catalogues if len(plan.catalogues) > 1 else ())
    return IngestReport(
        sources=tuple(reader.source.path.name for reader in plan.readers),
        rows_read=tally.rows_read,
        rows_kept=sum(kept.values()),
        catalogues={name: kept.get(n, 0) for n, name in several},
        repeats=tuple(repeats),
        faults=dict(tally.faults),
        cuts=dict(tally.cuts),
        negative_extinctions=int(negative),
        origins={n: str(origin) for n, origin in plan.mapped.columns.items()},
        ranges=ranges,
        notes=(*notes, *(f"warning: {text}" for text in doubts)),
    )


def _doubts(
    reader: RowReader, stars: Staging, ranges: Mapping[str, tuple[float, ...]]
) -> Iterator[str]:
    """Yield doubts about quantities whose values suggest another unit."""
    for name, (least, most) in _PLAUSIBLE.items():
        low, median, high = ranges[name]
        if not least <= median <= most:
            unit = CANONICAL_UNITS[name]
            bound = f"below {least:g}" if median < least else f"beyond {most:g}"
            advice, origin = "", reader.recipe.get(name)
            other = "mmag" if unit == "mag" else "kpc" if median < least else "pc"
            if origin is not None and origin.column:
                advice = f", e.g. {restated(reader.source, name, origin, other)}"
            yield (
                f"{name} looks as if its unit were another: the median is "
                f"{median:.2g} {unit} (1% to 99%: {low:.2g} to {high:.2g}), "
                f"{bound} {unit}. Check the column and the unit{advice}"
            )
    # Fewer rows do not show how far extinctions spread.
    if sum(stars.count().values()) >= 10:
        # The outermost 1% on either side may be outliers.
        low, _, high = ranges["extinction"]
        within = f"FILTER (WHERE extinction BETWEEN {low!r} AND {high!r})"
        spread = stars.aggregate(f"stddev_pop(extinction) {within}")
        median = ranges["extinction_error"][1]
        least, most = spread / 300, 3 * spread
        if spread and not least <= median <= most:
            bound = "below 1/300 of" if median < least else "beyond 3 times"
            yield (
                "extinction_error looks as if its unit were another than that of the "
                f"extinction, such as mmag beside mag: the median is {median:.2g} "
                f"mag, {bound} the standard deviation of the extinctions, "
                f"{spread:.2g} mag. Check the units in --map"
            )


def _clumps(plan: IngestPlan, stars: Staging) -> Iterator[str]:
    """Yield warnings of values that may stand for unknown ones, such as 1e5 ± 0.5 pc.

    They are above all others by more than the range of these, and within 1% of that.
    """
    readers = {reader.catalogue: reader for reader in plan.readers}
    names = [n for n in stars.schema.names if n in CANONICAL_UNITS and n not in "lb"]
    for (number, reader), name in product(readers.items(), names):
        rows, least, below, low, top = stars.halves(name, number)
        if rows < 3 or not 0 < 100 * (top - low) < low - below > below - least:
            continue
        text = f"{rows:,} rows have {name} = {low:g} to {top:g} {CANONICAL_UNITS[name]}"
        text += f" in {plan.catalogues[number]}, far above all others"
        if (origin := reader.recipe.get(name)) and origin.column:
            most = (below + low) / 2 / reader.factors[name]
            where = shlex.quote(f"{written(reader.source, origin)} < {most:.3g}")
            text += f": if they are unknown, drop them by --where {where}"
        yield text


def _assumptions(plan: IngestPlan) -> Iterator[str]:
    """Yield the assumptions, and warnings about missing statements."""
    recipe, survey = plan.mapped.columns, plan.survey
    if "parallax" in recipe:
        yield (
            f"distance = 1/parallax above {plan.mapped.min_parallax_snr:g} times its "
            "error, zero point untouched"
        )
    if "distance_modulus" in recipe:
        yield "distance = 10^(1 + distance_modulus/5) pc, its error to first order"
    for name in ("distance", "extinction"):
        if f"{name}_lower" in recipe:
            yield f"{name}_error = ({name}_upper - {name}_lower) / 2"
        if f"{name}_error_lower" in recipe:
            yield f"{name}_error = ({name}_error_lower + {name}_error_upper) / 2"
    if any("ra" in reader.recipe and not reader.frame for reader in plan.readers):
        yield "ra and dec taken as ICRS"
    for name, change in plan.changes:
        yield f"{name}: {change.summary()}"
    if plan.options.declare_band or plan.changes:
        scale = SCALES.get(plan.band)
        terms = f", of which A_V is {scale['a_v']:g} times" if scale else ""
        yield f"band: {plan.band}{terms}"
    if survey is not None:
        cited = f" ({'; '.join(survey.references)})" if survey.references else ""
        yield f"{survey.title}{cited}; band: {survey.band}"
        if survey.tested_on == "generated":
            yield "this preset was not tested on a sample of the real survey"
    if not plan.band:
        yield (
            "warning: the band of the extinction is not known: state it, e.g. "
            "--declare-band A_V; without it maps cannot be converted or compared"
        )
    bounds = {"distance_lower", "distance_error_lower"}
    errors = {"distance_error", "distance_modulus_error", "parallax"}
    if not any(set(reader.recipe) & (errors | bounds) for reader in plan.readers):
        yield (
            "warning: no distance errors: the distances are taken as exact; map "
            "distance_error, or distance_lower and distance_upper"
        )
