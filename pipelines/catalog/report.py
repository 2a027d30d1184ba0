"""The outcome of an ingestion, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.bands import parse_band
from pipelines.catalog.plan import IngestPlan
from pipelines.catalog.rows import Tally
from pipelines.catalog.schema import CANONICAL_UNITS
from pipelines.catalog.soundness import Ranges
from pipelines.catalog.staging import Repeats, Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """Rows read, kept and dropped by reason.

    Parameters
    ----------
    sources
        The files, in the order they were read.
    rows_read, rows_kept
        Numbers of rows; the difference is in ``faults`` and ``cuts``.
    catalogues
        Name of each, a file or a folder, to the number of its rows kept.
    repeats
        Objects that are in two catalogues, in words, by pair.
    faults
        Reason to the number of faulty rows, each counted once.
    cuts
        Quality cut to the number of rows it removed.
    negative_extinctions
        How many of the kept rows have a negative extinction, which is noise.
    origins
        Canonical quantity to the column it came from.
    ranges
        Canonical quantity to the 1%, 50% and 99% quantiles of the rows kept.
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
    repeats: Repeats,
    ranges: Ranges,
    notes: Sequence[str],
) -> IngestReport:
    """Report the counts, the plan's assumptions, further ``notes``, then warnings."""
    kept, names = stars.count(), plan.catalogues
    return IngestReport(
        sources=tuple(reader.source.path.name for reader in plan.readers),
        rows_read=tally.rows_read,
        rows_kept=sum(kept.values()),
        catalogues={name: kept.get(i, 0) for i, name in enumerate(names) if names[1:]},
        repeats=tuple(plan.shared(repeats.pairs)),
        faults=dict(tally.faults),
        cuts=dict(tally.cuts),
        negative_extinctions=stars.negative("extinction"),
        origins={n: str(binding) for n, binding in plan.readers[0].recipe.items()},
        ranges=ranges,
        notes=(*_assumptions(plan), *notes),
    )


def _assumptions(plan: IngestPlan) -> list[str]:
    first, preset = plan.readers[0], plan.survey
    assumed = []
    if "parallax" in first.recipe:
        assumed.append(
            f"distance = 1/parallax above {first.min_parallax_snr:g} times its error, "
            "zero point untouched"
        )
    for name in ("distance", "extinction"):
        if f"{name}_lower" in first.recipe:
            assumed.append(f"{name}_error = ({name}_upper - {name}_lower) / 2")
    if "ra" in first.recipe:
        assumed.append("ra and dec taken as ICRS")
    assumed += [f"{name}: {change.summary()}" for name, change in plan.changes]
    if plan.options.declare_band or plan.changes:
        band = parse_band(plan.band)
        terms = ", ".join(f"{name} at {nm:g} nm" for name, nm, _ in band.terms)
        assumed.append(f"band: {band.name}, in conversions {terms}")
    if preset is not None:
        cited = f" ({'; '.join(preset.references)})" if preset.references else ""
        assumed.append(f"{preset.title}{cited}; band: {preset.band}")
        if preset.tested_on == "generated":
            assumed.append("this preset was not tested on a sample of the real survey")
    return assumed


def warnings_of(plan: IngestPlan, doubts: Sequence[str]) -> list[str]:
    """Warn of what a map needs and the catalogue does not state, and of doubts."""
    recipe, found = plan.readers[0].recipe, []
    if "extinction" in recipe and not plan.band:
        found.append(
            "the band of the extinction is not known: state it, e.g. "
            "--declare-band A_V; without it maps cannot be converted or compared"
        )
    known = {"distance_error", "distance_lower", "parallax", "parallax_error"}
    if "extinction" in recipe and not known & set(recipe):
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
