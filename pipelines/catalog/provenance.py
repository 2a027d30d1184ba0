"""What an ingestion tells of itself: a report for people, a record for the table."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.catalog.choices import Choices
from pipelines.catalog.counts import Counts
from pipelines.catalog.report import IngestReport


def make_report(
    choices: Choices, counts: Counts, notes: Sequence[str] = ()
) -> IngestReport:
    """What was counted, with what was assumed; further ``notes`` go last."""
    recipe, preset = choices.recipes[0], choices.survey
    assumed = []
    if "parallax" in recipe.bindings:
        assumed.append(
            f"distance = 1/parallax above {choices.selection.min_parallax_snr:g} times "
            "its error, zero point untouched"
        )
    for name in ("distance", "extinction"):
        if f"{name}_lower" in recipe.bindings:
            assumed.append(f"{name}_error = ({name}_upper - {name}_lower) / 2")
    if "ra" in recipe.bindings:
        assumed.append("ra and dec taken as ICRS")
    if preset is not None:
        assumed.append(f"{preset.title} ({preset.reference}); band: {preset.band}")
        if preset.tested_on == "generated":
            assumed.append("this preset was not tested on a sample of the real survey")
    return IngestReport(
        sources=tuple(path.name for path in choices.files),
        rows_read=counts.rows_read,
        rows_kept=counts.rows_kept,
        faults=dict(counts.tally.faults),
        cuts=dict(counts.tally.cuts),
        negative_extinctions=counts.negative_extinctions,
        origins=recipe.describe(),
        notes=(*assumed, *notes),
    )


def make_record(
    choices: Choices, inputs: Sequence[dict[str, Any]], report: IngestReport
) -> dict[str, Any]:
    """The table's provenance, JSON-serialisable; ``inputs`` are by `identify`."""
    survey, wanted = choices.survey, choices.wanted
    return {
        "program": f"dustmap {importlib.metadata.version('dustmap')}",
        "command": "ingest",
        "preset": survey.model_dump(mode="json") if survey else None,
        "map": list(wanted.mappings),
        "where": wanted.where,
        "inputs": list(inputs),
        "report": report.to_meta(),
    }


def identify(path: Path) -> dict[str, Any]:
    """Name, size [bytes] and SHA-256 of one input file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}
