"""What an ingestion is to read and how: decided before the first row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pipelines.bands.passbands import parse_band
from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter, parse_filter
from pipelines.catalog.mapping import Recipe, choose, parse_mappings
from pipelines.catalog.presets import (
    MINIMUM_PARALLAX_SNR,
    KeptColumn,
    Preset,
    load_preset,
)
from pipelines.catalog.readers import find_files, open_source
from pipelines.catalog.schema import CANONICAL_UNITS, Stars
from pipelines.catalog.source import Source, locate
from pipelines.catalog.units import parse_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """What the user asks for.

    Parameters
    ----------
    preset
        Name of a survey's description, or the path of one.
    mappings
        ``CANONICAL=COLUMN[:UNIT]``; they go before the preset.
    where
        A further quality cut; see `pipelines.catalog.filters.RowFilter`.
    keep
        Further columns to carry along.
    positions_only
        Whether to leave extinctions out, for a table to predict at.
    max_bad
        The fraction of faulty rows, of those that pass the filters, beyond which the
        input is refused.
    min_parallax_snr
        Parallaxes below this signal-to-noise are cut; default the preset's, or 5.
    band
        What the extinctions are of, e.g. ``A_V`` or ``E(B-V)``
        (`pipelines.bands.passbands.parse_band`); default the preset's.
    any_range
        Whether to take medians of distance and extinction that look as if the unit
        were another (`pipelines.catalog.counts.PLAUSIBLE`).
    """

    preset: str | None = None
    mappings: Sequence[str] = ()
    where: str | None = None
    keep: Sequence[str] = ()
    positions_only: bool = False
    max_bad: float = 0.5
    min_parallax_snr: float | None = None
    band: str | None = None
    any_range: bool = False

    def __post_init__(self) -> None:
        if self.band is not None:
            parse_band(self.band)
        if not 0 <= self.max_bad <= 1:
            raise InputError(f"--max-bad is a fraction from 0 to 1, not {self.max_bad}")
        if self.min_parallax_snr is not None and not self.min_parallax_snr > 0:
            raise InputError(
                f"the least parallax S/N is positive, not {self.min_parallax_snr}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is wanted of the rows, whatever the source.

    ``filters`` are quality cuts by name, ``keep`` further columns by their name in
    the output.
    """

    filters: Mapping[str, RowFilter]
    keep: Mapping[str, KeptColumn]
    min_parallax_snr: float

    def kept_from(self, source: Source) -> dict[str, str]:
        """Columns of a source that are carried along, by their names in the output."""
        return {
            name: item.column
            for name, item in self.keep.items()
            if not item.optional or item.column in source.columns
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """The sources in order, what is read from each, and what is kept of the rows."""

    options: IngestOptions
    survey: Preset | None
    selection: Selection
    sources: Sequence[Source]
    recipes: Sequence[Recipe]
    units: dict[str, str]

    @property
    def files(self) -> list[Path]:
        """The files of the sources."""
        return [source.path for source in self.sources]


def make_plan(sources: Sequence[Path], options: IngestOptions) -> IngestPlan:
    """Open every source and decide what supplies which quantity.

    Raises
    ------
    InputError
        If a source is no table, or a choice is missing or contradictory.
    """
    survey = load_preset(options.preset) if options.preset else None
    default = survey.min_parallax_snr if survey else MINIMUM_PARALLAX_SNR
    cuts = dict(survey.cuts) if survey else {}
    if options.where is not None:
        cuts[f"not {options.where}"] = options.where
    selection = Selection(
        filters={name: parse_filter(text) for name, text in cuts.items()},
        keep=_kept(survey, options.keep),
        min_parallax_snr=options.min_parallax_snr or default,
    )
    user = parse_mappings(options.mappings)
    opened = [open_source(p) for p in find_files([Path(path) for path in sources])]
    recipes = []
    for source in opened:
        _check_columns(source, survey, selection)
        recipes.append(
            choose(source, user, survey, positions_only=options.positions_only)
        )
    return IngestPlan(
        options=options,
        survey=survey,
        selection=selection,
        sources=opened,
        recipes=recipes,
        units=_units(opened, selection),
    )


def _kept(preset: Preset | None, keep: Sequence[str]) -> dict[str, KeptColumn]:
    kept = dict(preset.keep) if preset else {}
    kept |= {name: KeptColumn(column=name) for name in keep}
    taken = set(kept) & {item.name for item in fields(Stars)}
    if taken:
        raise InputError(
            f"cannot keep a column as {sorted(taken)[0]!r}, which has a meaning of its "
            "own in the table of stars"
        )
    return kept


def _check_columns(source: Source, preset: Preset | None, selection: Selection) -> None:
    """Check what a preset, the filters and the kept columns ask of a source."""
    for name, width in (preset.widths if preset else {}).items():
        locate(source, f"{name}[0]")
        found = source.columns[name].width
        if preset is not None and found != width:
            raise InputError(
                f"{source.path}: column {name!r} has {found} values per row, but "
                f"{preset.title} has {width}: another release? Choose its preset"
            )
    filtered = [name for item in selection.filters.values() for name in item.kinds]
    for column in (*filtered, *selection.kept_from(source).values()):
        locate(source, column)


def _units(sources: Sequence[Source], selection: Selection) -> dict[str, str]:
    units = dict(CANONICAL_UNITS)
    for name, item in selection.keep.items():
        stated = [item.unit] if item.unit else []
        for source in sources:
            for column in dict.fromkeys((item.column, item.column.split("[")[0])):
                info = source.columns.get(column)
                stated += [info.unit] if info is not None and info.unit else []
        parsed = {str(parse_unit(unit) or unit) for unit in stated}
        if len(parsed) > 1:
            raise InputError(
                f"the kept column {item.column!r} has contradictory units: "
                f"{', '.join(sorted(parsed))}"
            )
        if stated:
            units[name] = stated[0]
    return units
