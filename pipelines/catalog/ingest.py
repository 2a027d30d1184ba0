"""From survey files to the canonical table of stars."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipelines.catalog.filters import RowFilter, parse_filter
from pipelines.catalog.intake import (
    FEWEST_POSITIONS,
    RADIAN_LIMITS,
    Intake,
    Selection,
    check_kept,
)
from pipelines.catalog.mapping import Recipe, choose, parse_mappings
from pipelines.catalog.presets import (
    MINIMUM_PARALLAX_SNR,
    KeptColumn,
    Preset,
    load_preset,
)
from pipelines.catalog.readers import find_files, locate, open_source
from pipelines.catalog.report import IngestReport
from pipelines.catalog.schema import CANONICAL_UNITS, Stars
from pipelines.catalog.source import Source
from pipelines.catalog.tables import open_table
from pipelines.catalog.units import parse_unit
from pipelines.errors import InputError


def ingest(
    sources: Sequence[Path],
    output: Path,
    *,
    preset: str | None = None,
    mappings: Sequence[str] = (),
    where: str | None = None,
    keep: Sequence[str] = (),
    positions_only: bool = False,
    max_bad: float = 0.5,
    min_parallax_snr: float | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> IngestReport:
    """Read catalogues, drop faulty rows, and write the canonical table.

    Parameters
    ----------
    sources
        Files or folders of files, joined in the order given.
    output
        The parquet file to write; see `pipelines.catalog.schema.read_stars`.
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
    overwrite
        Whether an existing output may be replaced.
    progress
        Called with the number of rows after each batch.

    Returns
    -------
    The counts, which are saved in the table's provenance too.

    Raises
    ------
    InputError
        If the input is structurally unsound or mostly faulty, or a choice is missing
        or contradictory. Then nothing is written.
    """
    if not 0 <= max_bad <= 1:
        raise InputError(f"--max-bad is a fraction from 0 to 1, not {max_bad}")
    if min_parallax_snr is not None and not min_parallax_snr > 0:
        raise InputError(f"the least parallax S/N is positive, not {min_parallax_snr}")
    survey = load_preset(preset) if preset else None
    default = survey.min_parallax_snr if survey else MINIMUM_PARALLAX_SNR
    selection = Selection(
        filters=_filters(survey, where),
        keep=_kept(survey, keep),
        min_parallax_snr=default if min_parallax_snr is None else min_parallax_snr,
    )
    user = parse_mappings(mappings)
    files = find_files([Path(path) for path in sources])
    opened, recipes = [open_source(path) for path in files], []
    for source in opened:
        _check_layout(source, survey, selection)
        recipes.append(choose(source, user, survey, positions_only=positions_only))
    units = _units(opened, selection)
    with open_table(output, units=units, kind="stars", overwrite=overwrite) as table:
        intake = Intake(selection, table)
        for source, recipe in zip(opened, recipes):
            for rows in intake.take(source, recipe):
                if progress is not None:
                    progress(rows)
        _refuse_unsound(intake, max_bad, positions_only)
        report = _report(intake, files, recipes[0], survey)
        table.describe(
            {
                "program": f"dustmap {importlib.metadata.version('dustmap')}",
                "command": "ingest",
                "preset": survey.model_dump(mode="json") if survey else None,
                "map": list(mappings),
                "where": where,
                "inputs": [_identify(path) for path in files],
                "report": report.to_meta(),
            }
        )
    return report


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


def _refuse_unsound(intake: Intake, max_bad: float, positions_only: bool) -> None:
    if not intake.rows_read:
        raise InputError("the input has no rows")
    faults = intake.tally.faults
    examined = intake.rows_read - intake.rows_filtered
    if sum(faults.values()) > max_bad * examined:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in faults.most_common(5))
        raise InputError(
            f"{sum(faults.values()):,} of {examined:,} rows are faulty, more than the "
            f"fraction {max_bad:g} that --max-bad allows: {reasons}. Check the "
            "columns and units, or filter the rows with --where"
        )
    fewest = 1 if positions_only else FEWEST_POSITIONS
    if intake.distinct_positions < fewest:
        cut = sum(intake.tally.cuts.values())
        raise InputError(
            f"{intake.distinct_positions} distinct positions are left of "
            f"{intake.rows_read:,} rows ({cut:,} removed by quality cuts, "
            f"{sum(faults.values()):,} faulty): a map needs at least {fewest}"
        )
    angles = intake.largest_angles
    if angles is None or intake.distinct_positions < FEWEST_POSITIONS:
        return
    if angles[0] <= RADIAN_LIMITS[0] and angles[1] <= RADIAN_LIMITS[1]:
        raise InputError(
            f"all angles look like radians: the largest are {angles[0]:.3g} and "
            f"{angles[1]:.3g} deg. If they are, say so, e.g. --map l=l:rad; if the "
            "field is really so small, map ra and dec instead of l and b"
        )


def _report(
    intake: Intake, files: Sequence[Path], recipe: Recipe, preset: Preset | None
) -> IngestReport:
    notes = []
    if "parallax" in recipe.bindings:
        notes.append(
            f"distance = 1/parallax above {intake.selection.min_parallax_snr:g} times "
            "its error, zero point untouched"
        )
    for name in ("distance", "extinction"):
        if f"{name}_lower" in recipe.bindings:
            notes.append(f"{name}_error = ({name}_upper - {name}_lower) / 2")
    if "ra" in recipe.bindings:
        notes.append("ra and dec taken as ICRS")
    if preset is not None:
        notes.append(f"{preset.title} ({preset.reference}); band: {preset.band}")
        if preset.tested_on == "generated":
            notes.append("this preset was not tested on a sample of the real survey")
    return IngestReport(
        sources=tuple(path.name for path in files),
        rows_read=intake.rows_read,
        rows_kept=intake.rows_kept,
        faults=dict(intake.tally.faults),
        cuts=dict(intake.tally.cuts),
        negative_extinctions=intake.negative_extinctions,
        origins=recipe.describe(),
        notes=tuple(notes),
    )


def _identify(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}
