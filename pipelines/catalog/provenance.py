"""Where a table comes from, as it is recorded with it."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.bands import joined_bands
from pipelines.base.errors import InputError
from pipelines.catalog.presets import references_of
from pipelines.catalog.tables import METADATA_KEY, PROVENANCE, read_footer
from pipelines.storage.digests import digest_of

if TYPE_CHECKING:
    from pipelines.catalog.plan import IngestPlan
    from pipelines.catalog.report import IngestReport

_STATED: tuple[str, ...] = ("name", "title", "band")
# Folders between a partition and the provenance of its table, at most.
_DEPTH = 4


def make_record(plan: IngestPlan, report: IngestReport) -> dict[str, Any]:
    """Return the table's provenance, JSON-serialisable."""
    survey, options = plan.survey, plan.options
    return {
        "program": f"dustmap {importlib.metadata.version('dustmap')}",
        "command": "ingest",
        "preset": survey.model_dump(mode="json") if survey else None,
        "map": list(options.mappings),
        "where": options.where,
        "band": plan.band or None,
        "conversions": [
            {"catalogue": name, **change.as_dict()} for name, change in plan.changes
        ],
        "repeats": options.repeats,
        "inputs": [identify(reader.source.path) for reader in plan.readers],
        "report": asdict(report),
    }


def identify(path: Path) -> dict[str, Any]:
    """Return name, size [bytes] and SHA-256 of one input file.

    Of a table that was ingested before, `surveys` too: it is what they are cited by.
    """
    digest = digest_of(path)
    found = {"name": path.name, "bytes": digest.size, "sha256": digest.sha256}
    record = _own_record(path)
    return found if record is None else {**found, "surveys": surveys(record)}


def stated_band(path: Path) -> str:
    """Return the bands that a table states which was ingested before, in one line."""
    record = _own_record(path)
    named = [] if record is None else surveys(record)
    return joined_bands([one["band"] for one in named])


def surveys(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name, title, band and references of the surveys in a provenance.

    ``record`` is by `make_record`, or that of a folder of such tables. A table whose
    survey is not known has an entry of empty values, and a band is empty where the
    extinction was taken from another column than the survey's own and nobody said of
    which band that is.
    """
    if "partitions" in record:
        named = [one for part in record["partitions"].values() for one in surveys(part)]
    else:
        # An input that is no table of ours is of an unknown survey.
        inputs = [item.get("surveys", [{}]) for item in record.get("inputs", [])]
        found = [[record["preset"]]] if record.get("preset") else inputs
        named = [_stated(one) for each in found or [[{}]] for one in each]
    mapped = {text.split("=")[0].strip() for text in record.get("map", [])}
    band = record.get("band")
    if band or "extinction" in mapped:
        named = [{**one, "band": band or ""} for one in named]
    return list({json.dumps(one): one for one in named}.values())


def _stated(survey: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a preset, in the form of any version."""
    stated: dict[str, Any] = {key: str(survey.get(key, "")) for key in _STATED}
    return {**stated, "references": references_of(survey)}


def _own_record(path: Path) -> dict[str, Any] | None:
    """Return the provenance that a table of this program carries or lies beside."""
    try:
        record = json.loads(read_footer(path).metadata[METADATA_KEY])["meta"]
    except (InputError, TypeError, KeyError):
        return None  # no parquet, or of another program
    if "command" not in record:
        # A partition: its folder has the provenance.
        for folder in path.parents[:_DEPTH]:
            if (folder / PROVENANCE).is_file():
                return json.loads((folder / PROVENANCE).read_text("utf-8"))
    return record
