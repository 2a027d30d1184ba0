"""The plan of an ingestion: options, a reader for each file, one band for all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pipelines.bands import (
    UNKNOWN,
    Conversion,
    conversion,
    known_band,
    parse_band,
    source_band,
)
from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter
from pipelines.catalog.mapping import NAME, PRESET, Recipe, choose, parse_mappings
from pipelines.catalog.presets import (
    MINIMUM_PARALLAX_SNR,
    KeptColumn,
    Preset,
    PresetColumn,
    fitting_presets,
    load_preset,
)
from pipelines.catalog.provenance import stated_band
from pipelines.catalog.rows import RowReader
from pipelines.catalog.schema import CANONICAL_UNITS, Stars
from pipelines.catalog.sources import Source, locate, open_source
from pipelines.catalog.tables import find_files
from pipelines.catalog.units import parse_unit

REPEATS = ("keep", "first", "error")
# E(B-V), EBV, e_bv, ebv_mean, E_B_V and the like.
_EXCESS = re.compile(r"(?i)(^|_)e_?\(?b_?(-|min)?_?v\)?($|_|\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Choices of the user.

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
        The band that extinctions are converted to, e.g. ``A_V`` or ``E(B-V)``
        (`pipelines.bands`); default that of the first catalogue.
    declare_band
        The band of extinctions that is stated neither by a preset nor by a table that
        was ingested before.
    any_range
        Whether to accept medians that look as if the unit were another
        (`pipelines.catalog.report.find_doubts`).
    repeats
        The fate of objects that are in more than one catalogue, by ``source_id``:
        ``keep`` all, keep the ``first``, or refuse them as an ``error``.

    Raises
    ------
    InputError
        If a choice is none of the possible ones.
    """

    preset: str | None = None
    mappings: Sequence[str] = ()
    where: str | None = None
    keep: Sequence[str] = ()
    positions_only: bool = False
    max_bad: float = 0.5
    min_parallax_snr: float | None = None
    band: str | None = None
    declare_band: str | None = None
    any_range: bool = False
    repeats: str = "keep"

    def __post_init__(self) -> None:
        for name in ("band", "declare_band"):
            if (given := getattr(self, name)) is not None:
                # By its own name: A0 is A_0.
                object.__setattr__(self, name, parse_band(given).name)
        if self.repeats not in REPEATS:
            raise InputError(
                f"--repeats is {', '.join(REPEATS[:-1])} or {REPEATS[-1]}, not "
                f"{self.repeats!r}"
            )
        if not 0 <= self.max_bad <= 1:
            raise InputError(f"--max-bad is a fraction from 0 to 1, not {self.max_bad}")
        if self.min_parallax_snr is not None and not self.min_parallax_snr > 0:
            raise InputError(
                f"the least parallax S/N is positive, not {self.min_parallax_snr}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """A reader for each file, in order, and the units of the table.

    ``catalogues`` are the names of what was given, each a file or a folder. ``band`` is
    that of all extinctions, as far as it is known, and ``first_band`` that of the first
    source; ``changes`` are the conversions that were needed, by catalogue.
    """

    options: IngestOptions
    survey: Preset | None
    readers: Sequence[RowReader]
    units: dict[str, str]
    catalogues: Sequence[str]
    band: str
    first_band: str
    changes: Sequence[tuple[str, Conversion]]

    def shared(self, pairs: Mapping[tuple[int, int], int]) -> list[str]:
        """Describe the numbers of objects that two catalogues share."""
        names = self.catalogues
        return [f"{n:,} in {names[a]} and {names[b]}" for (a, b), n in pairs.items()]


def make_plan(sources: Sequence[Path], options: IngestOptions) -> IngestPlan:
    """Open every source and decide which column supplies which quantity.

    Raises
    ------
    InputError
        If a source is no table, or a choice is missing or contradictory, or extinctions
        are of bands that cannot be converted to one.
    """
    survey = load_preset(options.preset) if options.preset else None
    default = survey.min_parallax_snr if survey else MINIMUM_PARALLAX_SNR
    cuts = dict(survey.cuts) if survey else {}
    if options.where is not None:
        cuts[f"not {options.where}"] = options.where
    filters = {name: RowFilter(text) for name, text in cuts.items()}
    keep = _kept(survey, options.keep)
    given = [Path(path) for path in sources]
    readers: list[RowReader] = []
    stated: list[str] = []
    for number, path in enumerate(given):
        for file in find_files(path):
            source = open_source(file)
            carried = {
                name: item.column
                for name, item in keep.items()
                if not item.optional or item.column in source.columns
            }
            for name, width in (survey.widths if survey else {}).items():
                locate(source, f"{name}[0]")
                width_there = source.columns[name].width
                if survey is not None and width_there != width:
                    raise InputError(
                        f"{source.path}: column {name!r} has {width_there} values per "
                        f"row, but {survey.title} has {width}: another release? Choose "
                        "its preset"
                    )
            filtered = [name for item in filters.values() for name in item.kinds]
            for column in (*filtered, *carried.values()):
                locate(source, column)
            recipe = _choose(source, survey, options)
            stated.append(_stated(source, recipe, survey, options))
            readers.append(
                RowReader(
                    source=source,
                    recipe=recipe,
                    filters=filters,
                    carried=carried,
                    min_parallax_snr=options.min_parallax_snr or default,
                    catalogue=number,
                )
            )
    names = [path.name for path in given]
    names = names if len(set(names)) == len(names) else list(map(str, given))
    bands = [] if options.positions_only else _bands(readers, stated, options)
    band = options.band or next(iter(bands), "")
    changes: list[tuple[str, Conversion]] = []
    for number, own in enumerate(bands):
        if own != band:
            change, reader = conversion(own, band), readers[number]
            recipe = {
                name: replace(binding, factor=binding.factor * change.factor)
                if name.startswith("extinction")
                else binding
                for name, binding in reader.recipe.items()
            }
            readers[number] = replace(reader, recipe=recipe)
            entry = (names[reader.catalogue], change)
            changes += [entry] if entry not in changes else []
    return IngestPlan(
        options=options,
        survey=survey,
        readers=readers,
        units=_units([reader.source for reader in readers], keep),
        catalogues=names,
        band=band,
        first_band=next(iter(bands), ""),
        changes=changes,
    )


def preset_of(plan: IngestPlan, name: str) -> Preset:
    """Return the mapping as a preset for other files of this form."""
    first, options = plan.readers[0], plan.options
    columns = {
        canonical: PresetColumn(
            column=binding.column,
            times=binding.times,
            value=binding.value,
            unit=None if canonical == "source_id" else binding.unit,
        )
        for canonical, binding in first.recipe.items()
    }
    # A survey's preset keeps its description and its references.
    survey = plan.survey or Preset(
        name=name,
        title=f"Columns as in {first.source.path.name}",
        band="",
        tested_on="real",
        notes=f"Saved from the mapping of {first.source.path.name}.",
        columns=columns,
    )
    changed = {
        "name": name,
        "band": plan.first_band,
        "columns": columns,
        "cuts": {name: item.text for name, item in first.filters.items()},
        "keep": _kept(survey, options.keep),
        "min_parallax_snr": first.min_parallax_snr,
    }
    return survey.model_copy(update=changed)


def _choose(source: Source, survey: Preset | None, options: IngestOptions) -> Recipe:
    """Choose the columns, or name the presets that describe those of the source."""
    user = parse_mappings(options.mappings)
    try:
        return choose(source, user, survey, positions_only=options.positions_only)
    except InputError as error:
        if survey is not None:
            raise
        folders = dict.fromkeys((Path.cwd(), source.path.parent.resolve()))
        found = fitting_presets(source.columns, folders)[:3]
        if not found:
            raise
        raise InputError(
            f"{error}. These columns are those of --preset "
            f"{' or --preset '.join(found)}"
        ) from error


def _stated(
    source: Source, recipe: Recipe, survey: Preset | None, options: IngestOptions
) -> str:
    """Return the band that is stated for the extinctions of a source.

    A column that bears the name of a colour excess must not pass for an extinction.
    """
    binding = recipe.get("extinction")
    stated = UNKNOWN
    if survey is not None and binding is not None and binding.origin == PRESET:
        stated = survey.band or UNKNOWN
    elif survey is None and binding is not None and binding.origin == NAME:
        stated = stated_band(source.path)
    column = binding.column if binding is not None else None
    bare = stated == UNKNOWN and options.declare_band is None
    if bare and column is not None and _EXCESS.search(column):
        raise InputError(
            f"{source.path}: column {column!r} is named like a colour excess: state "
            "its band by --declare-band 'E(B-V)', or --declare-band A_V if it is an "
            "extinction; --band A_V converts it"
        )
    return stated


def _bands(
    readers: Sequence[RowReader], stated: Sequence[str], options: IngestOptions
) -> list[str]:
    """Return the band of each source; if all state the same, as they state it."""
    known = [known_band(text) for text in stated]
    plain = [band or text for band, text in zip(known, stated, strict=True)]
    if len(set(plain)) == 1 and options.band is None and options.declare_band is None:
        return ["" if text == UNKNOWN else text for text in plain]
    # A known band among others is not declared anew.
    return [
        source_band(
            text,
            options.declare_band if all(known) or not band else None,
            of=reader.source.path.name,
        )
        for text, band, reader in zip(stated, known, readers, strict=True)
    ]


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


def _units(sources: Sequence[Source], keep: Mapping[str, KeptColumn]) -> dict[str, str]:
    """Return the units of canonical and kept columns, which must agree."""
    units = dict(CANONICAL_UNITS)
    for name, item in keep.items():
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
