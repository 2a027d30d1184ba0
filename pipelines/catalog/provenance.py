"""The surveys and bands of previously ingested tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.bands import joined_bands
from pipelines.catalog.tables import METADATA_KEY, PROVENANCE
from pipelines.storage.digests import digest_of


def identify(path: Path) -> dict[str, Any]:
    """Return name, size [bytes] and SHA-256 of one input file.

    For a previously ingested table it includes `surveys`, for citations.
    """
    digest, record = digest_of(path), _own_record(path)
    found = {"name": path.name, "bytes": digest.size, "sha256": digest.sha256}
    return found if record is None else {**found, "surveys": surveys(record)}


def stated_band(path: Path) -> str:
    """Return the bands stated in a previously ingested table, in one line."""
    record = _own_record(path)
    named = [] if record is None else surveys(record)
    return joined_bands([one["band"] for one in named])


def surveys(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return name, title, band and references of the surveys in a provenance.

    ``record`` is that of a table, or of a folder of such tables. A table of an unknown
    survey has an entry of empty values, and the band is empty if the extinction came
    from another column than the survey's own, without a declared band.
    """
    if "partitions" in record:
        named = [one for part in record["partitions"].values() for one in surveys(part)]
    else:
        # Inputs other than our own tables have no known survey.
        inputs = [item.get("surveys", [{}]) for item in record.get("inputs", [])]
        found = [[record["preset"]]] if record.get("preset") else inputs
        empty = {"name": "", "title": "", "band": "", "references": []}
        named = [
            {key: one.get(key, default) for key, default in empty.items()}
            for each in found or [[{}]]
            for one in each
        ]
    mapped = {text.split("=")[0].strip() for text in record.get("map", [])}
    band = record.get("band")
    if band or "extinction" in mapped:
        named = [{**one, "band": band or ""} for one in named]
    return list({json.dumps(one): one for one in named}.values())


def _own_record(path: Path) -> dict[str, Any] | None:
    """Return the provenance in or beside a table of this program."""
    try:
        record = json.loads(pq.read_metadata(path).metadata[METADATA_KEY])["meta"]
    except (OSError, pa.ArrowException, TypeError, KeyError):
        return None  # not parquet, or from another program
    if "command" not in record:
        # The provenance of a partition is in its folder, or at most three above.
        for folder in path.parents[:4]:
            if (folder / PROVENANCE).is_file():
                return json.loads((folder / PROVENANCE).read_text("utf-8"))
    return record
