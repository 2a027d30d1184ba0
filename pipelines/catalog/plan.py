"""The plan of an ingestion: options, a reader for each file, one band for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

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
from pipelines.catalog.mapping import choose, frame_of, parse_mappings
from pipelines.catalog.presets import KeptColumn, Preset, load_preset
from pipelines.catalog.provenance import stated_band
from pipelines.catalog.rows import RowReader
from pipelines.catalog.schema import CANONICAL_UNITS, Stars
from pipelines.catalog.sources import Source, locate, open_source
from pipelines.catalog.tables import find_files
from pipelines.catalog.units import parse_unit

# What a file may lack that another one has.
_OPTIONAL = re.compile(r"source_id|survey|distance_(modulus_)?(error|lower|upper)")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Options of an ingestion; `InputError` if one is invalid."""

    preset: str | None = None
    """Name or path of a survey's description."""
    mappings: Sequence[str] = ()
    """``CANONICAL=COLUMN[:UNIT]``; they take precedence over the preset."""
    where: str | None = None
    """A further quality cut (`pipelines.catalog.filters.RowFilter`)."""
    keep: Sequence[str] = ()
    """Further columns to keep."""
    max_bad: float = 0.5
    """Largest fraction of faulty rows among those that pass the filters."""
    band: str | None = None
    """Band of the output (`pipelines.bands`), by default the first catalogue's."""
    declare_band: str | None = None
    """Band of the input, if neither a preset nor an earlier ingestion states it."""
    any_range: bool = False
    """True to accept medians that suggest a wrong unit, and values that look like marks
    of missing ones (`pipelines.catalog.rows.Tally.fill_values`)."""
    repeats: str = "keep"
    """Objects in more than one catalogue, by ``source_id``: ``keep`` or ``first``."""

    def __post_init__(self) -> None:
        for name in ("band", "declare_band"):
            if (given := getattr(self, name)) is not None:
                # Normalize the name: A0 is A_0.
                object.__setattr__(self, name, parse_band(given).name)
        if self.repeats not in ("keep", "first"):
            raise InputError(f"--repeats must be keep or first, got {self.repeats!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """A reader for each file, in order, and the units of the table.

    ``mapped`` is the mapping of the first file as a preset for others of this form.
    ``catalogues`` are the names of the inputs, files or folders, ``band`` is the band
    of all extinctions, if known, and ``changes`` are the conversions by catalogue.
    """

    options: IngestOptions
    survey: Preset | None
    mapped: Preset
    readers: Sequence[RowReader]
    units: dict[str, str]
    catalogues: Sequence[str]
    band: str
    changes: Sequence[tuple[str, Conversion]]


def make_plan(sources: Sequence[Path], options: IngestOptions) -> IngestPlan:
    """Open every source and choose the column of each quantity.

    Raises `InputError` if a source is not a table, or an option is missing or
    contradictory, or extinctions cannot be converted to one band.
    """
    survey = load_preset(options.preset) if options.preset else None
    blank = {"name": "", "title": "", "band": "", "notes": "", "columns": {}}
    described = survey or Preset(**blank, tested_on="real")
    user = parse_mappings(options.mappings)
    cuts = dict(described.cuts)
    if options.where is not None:
        cuts[f"not {options.where}"] = options.where
    filters = {name: RowFilter(text) for name, text in cuts.items()}
    keep = described.keep | {name: KeptColumn(column=name) for name in options.keep}
    for name in sorted(set(keep) & {item.name for item in fields(Stars)}):
        fault = "the table has its own, choose another name"
        raise InputError(f"cannot keep a column as {name!r}: {fault}")
    readers: list[RowReader] = []
    stated: list[str] = []
    given = [Path(path) for path in sources]
    names = [path.name for path in given]
    names = names if len(set(names)) == len(names) else list(map(str, given))
    files = [(n, file) for n, path in enumerate(given) for file in find_files(path)]
    opened = [open_source(file) for _, file in files]
    units = dict(CANONICAL_UNITS)
    for (number, file), source in zip(files, opened):
        for name, width in described.widths.items():
            locate(source, f"{name}[0]")
            if (found := source.columns[name].width) != width:
                raise InputError(
                    f"{file}: column {name!r} has {found} values per row, but "
                    f"{described.title} has {width}: another release? Choose its preset"
                )
        lacked = {n for each in opened for n in each.columns} - source.columns.keys()
        carried = {
            name: (item.column, _factor(source, item, name, units))
            for name, item in keep.items()
            if item.column in source.columns
            or not (item.optional or item.column in lacked)
        }
        here = {
            name: origin
            for name, origin in user.items()
            if not (_OPTIONAL.match(name) and origin and origin.column in lacked)
        }
        resolved = choose(source, here, survey)
        recipe = {name: origin for name, (origin, _) in resolved.items()}
        readers.append(
            RowReader(
                source=source,
                recipe=recipe,
                frame=frame_of(source, recipe),
                factors={name: factor for name, (_, factor) in resolved.items()},
                filters=filters,
                carried=carried,
                min_parallax_snr=described.min_parallax_snr,
                catalogue=number,
            )
        )
        band = survey.band if survey else stated_band(file)
        stated.append(UNKNOWN if "extinction" in user else band or UNKNOWN)
    if options.repeats == "first" and not any(
        "source_id" in reader.recipe for reader in readers
    ):
        raise InputError(
            "--repeats first needs identifiers: map them, e.g. --map source_id=COLUMN"
        )
    if len(names) > 1 or any("survey" in reader.recipe for reader in readers):
        # Sources without such a column have their own name.
        own_names = [Path(name).stem.partition(".")[0] for name in names]
        readers = [replace(r, survey=own_names[r.catalogue]) for r in readers]
    bands = _bands(readers, stated, options)
    band = options.band or bands[0]
    changes: list[tuple[str, Conversion]] = []
    for own, reader in zip(bands, readers):
        if own != band:
            change = conversion(own, band)
            for name in reader.factors:
                if name.startswith("extinction"):
                    reader.factors[name] *= change.factor
            entry = (names[reader.catalogue], change)
            changes += [entry] if entry not in changes else []
    first = readers[0]
    mapped: dict[str, Any] = {"band": bands[0], "columns": dict(first.recipe)}
    mapped |= {"cuts": cuts, "keep": keep}
    if survey is None:
        mapped["title"] = f"Columns as in {first.source.path.name}"
    return IngestPlan(
        options=options,
        survey=survey,
        mapped=described.model_copy(update=mapped),
        readers=readers,
        units=units,
        catalogues=names,
        band=band,
        changes=changes,
    )


def _bands(
    readers: Sequence[RowReader], stated: Sequence[str], options: IngestOptions
) -> list[str]:
    """Return the band of each source, in original form if all agree.

    A column with the name of a colour excess is refused as an extinction.
    """
    declared = options.declare_band
    # E(B-V), EBV, e_bv, ebv_mean, E_B_V and the like.
    excess = re.compile(r"(?i)(^|_)e_?\(?b_?(-|min)?_?v\)?($|_|\d)")
    for text, reader in zip(stated, readers):
        column = reader.recipe["extinction"].column or ""
        if text == UNKNOWN and declared is None and excess.search(column):
            raise InputError(
                f"{reader.source.path}: {column!r} is named like a colour excess: use "
                "--declare-band 'E(B-V)', or --declare-band A_V if it is none"
            )
    known = [known_band(text) for text in stated]
    plain = {band or text for band, text in zip(known, stated)}
    if len(plain) == 1 and options.band is None and declared is None:
        return ["" if text == UNKNOWN else text for text in stated]
    found = []
    for text, band, reader in zip(stated, known, readers):
        # A declared band does not replace a known one.
        own = declared if all(known) or not band else None
        found.append(source_band(text, own, of=reader.source.path.name))
    return found


def _factor(
    source: Source, item: KeptColumn, name: str, units: dict[str, str]
) -> float:
    """Return the factor to a kept column's unit: the stated or the first file's."""
    said = source.columns[locate(source, item.column)[0]].unit or item.unit
    if not said:
        return 1.0
    wanted = units.setdefault(name, item.unit or said)
    if said == wanted:
        return 1.0
    own, other = parse_unit(said), parse_unit(wanted)
    if own is None or other is None or not own.is_equivalent(other):
        raise InputError(
            f"the kept column {item.column!r} has contradictory units: {said}, {wanted}"
        )
    return float(np.real(own.to(other)))
