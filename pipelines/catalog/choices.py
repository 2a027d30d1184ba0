"""What an ingestion is to read and how: every choice made before the first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pipelines.bands.passbands import parse_band
from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter, parse_filter
from pipelines.catalog.intake import Selection, check_kept
from pipelines.catalog.mapping import Recipe, choose, parse_mappings
from pipelines.catalog.presets import (
    MINIMUM_PARALLAX_SNR,
    KeptColumn,
    Preset,
    load_preset,
)
from pipelines.catalog.readers import find_files, locate, open_source
from pipelines.catalog.schema import CANONICAL_UNITS, Stars
from pipelines.catalog.source import Source
from pipelines.catalog.units import parse_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for; see `pipelines.catalog.ingest.ingest`."""

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
class Choices:
    """The sources in order, what is read from each, and what is kept of the rows."""

    wanted: Wanted
    survey: Preset | None
    selection: Selection
    sources: Sequence[Source]
    recipes: Sequence[Recipe]
    units: dict[str, str]

    @property
    def files(self) -> list[Path]:
        """The files of the sources."""
        return [source.path for source in self.sources]


def make_choices(sources: Sequence[Path], wanted: Wanted) -> Choices:
    """Open every source and decide what supplies which quantity.

    Raises
    ------
    InputError
        If a source is no table, or a choice is missing or contradictory.
    """
    survey = load_preset(wanted.preset) if wanted.preset else None
    default = survey.min_parallax_snr if survey else MINIMUM_PARALLAX_SNR
    minimum = wanted.min_parallax_snr
    selection = Selection(
        filters=_filters(survey, wanted.where),
        keep=_kept(survey, wanted.keep),
        min_parallax_snr=default if minimum is None else minimum,
    )
    user = parse_mappings(wanted.mappings)
    opened = [open_source(p) for p in find_files([Path(path) for path in sources])]
    recipes = []
    for source in opened:
        _check_layout(source, survey, selection)
        recipes.append(
            choose(source, user, survey, positions_only=wanted.positions_only)
        )
    return Choices(
        wanted=wanted,
        survey=survey,
        selection=selection,
        sources=opened,
        recipes=recipes,
        units=_units(opened, selection),
    )


def _filters(preset: Preset | None, where: str | None) -> dict[str, RowFilter]:
    cuts = dict(preset.cuts) if preset else {}
    if where is not None:
        cuts[f"not {where}"] = where
    return {name: parse_filter(text) for name, text in cuts.items()}


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


def _check_layout(source: Source, preset: Preset | None, selection: Selection) -> None:
    """Check what a preset, the filters and the kept columns ask of a source."""
    for name, width in (preset.widths if preset else {}).items():
        locate(source, f"{name}[0]")
        found = source.columns[name].width
        if preset is not None and found != width:
            raise InputError(
                f"{source.path}: column {name!r} has {found} values per row, but "
                f"{preset.title} has {width}: another release? Choose its preset"
            )
    for row_filter in selection.filters.values():
        for column in row_filter.kinds:
            locate(source, column)
    check_kept(source, selection.keep)


def _units(sources: Sequence[Source], selection: Selection) -> dict[str, str]:
    units = dict(CANONICAL_UNITS)
    for name, item in selection.keep.items():
        stated = [item.unit] if item.unit else []
        for source in sources:
            base = item.column.split("[")[0]
            for column in (item.column, base):
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
