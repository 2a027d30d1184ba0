"""The ingestion of survey files of any size into the canonical table of stars.

Batches of the sources are validated and staged in a DuckDB database
(`pipelines.catalog.staging`), which finds repeated identifiers and sorts: into one file
in the order of the sources, or into a folder in the order of the sky, by HEALPix pixel
(NESTED, Galactic ``l, b``) and then by source order. Memory is bounded: the database
spills to disk, beside the output.

A folder holds ``part-NNNNN.parquet``, named in the order of the sky,
``provenance.json`` and a manifest of all. The output appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dustmap import __version__
from pipelines.base.errors import InputError
from pipelines.catalog.plan import IngestOptions, make_plan
from pipelines.catalog.presets import write_preset
from pipelines.catalog.provenance import identify
from pipelines.catalog.report import IngestReport, make_report
from pipelines.catalog.rows import Progress, Tally
from pipelines.catalog.staging import Staging
from pipelines.catalog.tables import PROVENANCE, open_table
from pipelines.storage import atomic

STARS_PER_PARTITION = 1 << 20


def ingest(
    sources: Sequence[Path],
    output: Path,
    *,
    overwrite: bool = False,
    workers: int = 1,
    progress: Progress = None,
    save_preset: str | Path | None = None,
    **options: Any,
) -> IngestReport:
    """Read catalogues, drop faulty rows, and write the canonical table.

    ``sources`` are files or folders of files, joined in the order given. ``output`` has
    the suffix ``.parquet`` for one file in their order, and none for a folder of
    partitions in the order of the sky. ``workers`` is the number of threads that sort
    and find repeated identifiers; the result is the same for any. ``progress`` receives
    the number of rows after each batch. ``save_preset`` is a TOML file to write after
    the table: the mapping, for other files of this form. ``options`` are those of
    `IngestOptions`. Returns the counts, also saved in the table's provenance.

    Raises `InputError` if the input is structurally unsound or mostly faulty, an option
    is missing or contradictory, or the output has the suffix of another format. Nothing
    is written then.
    """
    chosen, output = IngestOptions(**options), Path(output)
    if not sources:
        raise InputError("no source is given: name a file, a folder or several")
    if output.suffix not in (".parquet", ""):
        raise InputError(
            f"{output}: expected a .parquet file or, without a suffix, a folder"
        )
    if save_preset is not None:
        atomic.check_output(Path(save_preset), overwrite=overwrite)
    atomic.check_output(output, overwrite=overwrite)
    if not output.suffix:
        atomic.check_output_folder(output, PROVENANCE, overwrite=overwrite)
    plan = make_plan(sources, chosen)
    prefix = f".{output.name}."
    with (
        TemporaryDirectory(prefix=prefix, suffix=".part", dir=output.parent) as work,
        Staging(Path(work), workers) as stars,
    ):
        tally = Tally()
        for number, reader in enumerate(plan.readers):
            place = {"file": number, "catalogue": reader.catalogue}
            for rows, columns, suspects in reader.batches(tally, progress):
                stars.add(rows, columns, suspects=suspects, **place)
        if tiny := stars.drop_tiny_errors():
            tally.faults["extinction_error absurdly small"] += tiny
        if not chosen.any_range:
            tally.faults += stars.drop_fill_values(tally.fill_values(), plan.catalogues)
        repeats = stars.drop_repeats(across=chosen.repeats == "first")
        names, pairs = plan.catalogues, repeats.pairs.items()
        shared = [f"{n:,} in {names[a]} and {names[b]}" for (a, b), n in pairs]
        if repeats.within:
            tally.faults["source_id repeated"] += repeats.within
        if repeats.across and chosen.repeats == "first":
            tally.cuts["source_id in an earlier catalogue"] += repeats.across
        report = make_report(plan, stars, tally, shared)
        survey = plan.survey
        record: dict[str, Any] = {
            "program": f"dustmap {__version__}",
            "command": "ingest",
            "preset": survey.model_dump(mode="json") if survey else None,
            "map": list(chosen.mappings),
            "where": chosen.where,
            "band": plan.band or None,
            "conversions": [
                {"catalogue": name, **change.as_dict()} for name, change in plan.changes
            ],
            "repeats": chosen.repeats,
            "inputs": [identify(reader.source.path) for reader in plan.readers],
        }
        if output.suffix:
            with open_table(output, units=plan.units, overwrite=overwrite) as table:
                for batch, _ in stars.sorted("file, row"):
                    table.write(batch)
                table.meta = {**record, "report": asdict(report)}
        else:
            with atomic.atomic_directory(output, overwrite=overwrite) as folder:
                parts = 0
                for batch in stars.partitions(STARS_PER_PARTITION):
                    path = folder / f"part-{parts:05d}.parquet"
                    with open_table(path, units=plan.units, overwrite=False) as table:
                        table.write(batch)
                    parts += 1
                note = f"{parts} partitions in the order of the sky"
                report = replace(report, notes=(*report.notes, note))
                record["report"] = asdict(report)
                text = json.dumps(record, indent=1, allow_nan=False) + "\n"
                (folder / PROVENANCE).write_text(text, encoding="utf-8")
                atomic.write_manifest(folder)
    if save_preset is not None:
        place = Path(save_preset)
        named = plan.mapped.model_copy(update={"name": place.stem})
        write_preset(place, named, overwrite=overwrite)
    return report
