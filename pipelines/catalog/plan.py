"""What an ingestion is to read and how: decided before the first row is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pipelines.bands import Conversion, conversion, source_band
from pipelines.bands.source import UNKNOWN, known_band
from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter, parse_filter
from pipelines.catalog.mapping import (
    NAME,
    PRESET,
    Binding,
    Recipe,
    choose,
    parse_mappings,
)
from pipelines.catalog.options import IngestOptions
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
from pipelines.catalog.sources import Source, find_files, locate, open_source
from pipelines.catalog.units import parse_unit

# E(B-V), EBV, e_bv, ebv_mean, E_B_V and the like.
_EXCESS = re.compile(r"(?i)(^|_)e_?\(?b_?(-|min)?_?v\)?($|_|\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What is read from each source, in order, and the units of what comes out.

    ``catalogues`` are the names of what was given, each a file or a folder. ``band`` is
    that of all extinctions, as far as it is known, and ``first_band`` what those of the
    first source are; ``changes`` are the conversions that were needed, by catalogue.
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
        """How many objects two catalogues share, by their numbers, in words."""
        names = self.catalogues
        return [f"{n:,} in {names[a]} and {names[b]}" for (a, b), n in pairs.items()]


def make_plan(sources: Sequence[Path], options: IngestOptions) -> IngestPlan:
    """Open every source and decide what supplies which quantity.

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
    filters = {name: parse_filter(text) for name, text in cuts.items()}
    keep = _kept(survey, options.keep)
    user = parse_mappings(options.mappings)
    given = [Path(path) for path in sources]
    files = [
        (file, number) for number, path in enumerate(given) for file in find_files(path)
    ]
    readers, stated = [], []
    for path, number in files:
        source = open_source(path)
        carried = {
            name: item.column
            for name, item in keep.items()
            if not item.optional or item.column in source.columns
        }
        _check_columns(source, survey, filters, carried.values())
        try:
            recipe = choose(source, user, survey, positions_only=options.positions_only)
        except InputError as error:
            raise InputError(f"{error}{_offered(source, options)}") from error
        stated.append(_stated(source, recipe.get("extinction"), survey))
        if stated[-1] == UNKNOWN and options.declare_band is None:
            _ask_for_band(source, recipe)
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
        units=_units([item.source for item in readers], keep),
        catalogues=names,
        band=band,
        first_band=next(iter(bands), ""),
        changes=changes,
    )


def _stated(source: Source, binding: Binding | None, survey: Preset | None) -> str:
    """The band that is stated for the extinctions of a source."""
    if survey is not None and binding is not None and binding.origin == PRESET:
        return survey.band or UNKNOWN
    if survey is None and binding is not None and binding.origin == NAME:
        return stated_band(source.path)
    return UNKNOWN


def _bands(
    readers: Sequence[RowReader], stated: Sequence[str], options: IngestOptions
) -> list[str]:
    """The band of each source; of all that state the same, as they do."""
    known = [known_band(text) for text in stated]
    plain = [band or text for band, text in zip(known, stated, strict=True)]
    if len(set(plain)) == 1 and options.band is None and options.declare_band is None:
        return ["" if text == UNKNOWN else text for text in plain]
    # What is known among others is not declared anew.
    return [
        source_band(
            text,
            options.declare_band if all(known) or not band else None,
            of=reader.source.path.name,
        )
        for text, band, reader in zip(stated, known, readers, strict=True)
    ]


def preset_of(plan: IngestPlan, name: str) -> Preset:
    """What was mapped, as a preset for other files of this form."""
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
    # What a survey's preset says of it and of whom to cite stays.
    survey = plan.survey or Preset(
        name=name,
        title=f"Columns as in {first.source.path.name}",
        reference="",
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


def _offered(source: Source, options: IngestOptions) -> str:
    """Presets that describe these columns, if none was chosen."""
    if options.preset is not None:
        return ""
    folders = dict.fromkeys((Path.cwd(), source.path.parent.resolve()))
    found = fitting_presets(source.columns, folders)
    if not found:
        return ""
    return f". These columns are those of --preset {' or --preset '.join(found[:3])}"


def _ask_for_band(source: Source, recipe: Recipe) -> None:
    """Refuse a colour excess, by its name, that would pass for an extinction."""
    column = recipe["extinction"].column if "extinction" in recipe else None
    if column is not None and _EXCESS.search(column):
        raise InputError(
            f"{source.path}: column {column!r} is named like a colour excess: state "
            "its band by --declare-band 'E(B-V)', or --declare-band A_V if it is an "
            "extinction; --band A_V converts it"
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


def _check_columns(
    source: Source,
    preset: Preset | None,
    filters: Mapping[str, RowFilter],
    carried: Iterable[str],
) -> None:
    """Check what a preset, the filters and the kept columns ask of a source."""
    for name, width in (preset.widths if preset else {}).items():
        locate(source, f"{name}[0]")
        found = source.columns[name].width
        if preset is not None and found != width:
            raise InputError(
                f"{source.path}: column {name!r} has {found} values per row, but "
                f"{preset.title} has {width}: another release? Choose its preset"
            )
    filtered = [name for item in filters.values() for name in item.kinds]
    for column in (*filtered, *carried):
        locate(source, column)


def _units(sources: Sequence[Source], keep: Mapping[str, KeptColumn]) -> dict[str, str]:
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
