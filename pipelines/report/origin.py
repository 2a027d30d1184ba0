"""Where a map comes from, what it cannot say, and how it is cited."""

from __future__ import annotations

import json
from typing import Any

from pipelines.formats.citation import cited_papers
from pipelines.report.blocks import Block, Listing, Section, Table, Text, facts
from pipelines.report.data import ReportData
from pipelines.report.numbers import count, plain, significant


def limits(data: ReportData) -> Section:
    """What the map does not show."""
    plan = data.run.plan
    cell = plain(max(plan.grid.spacing))
    length = significant(min(plan.lengthscale))
    text = (
        "Where no star's sight line passes (support is zero) the map is the prior: its "
        "mean is not a measurement, and its standard deviation is the prior's.",
        "Behind the last star of a direction extinctions are extrapolated: dust there "
        "is the prior's, whatever the map shows.",
        f"Nothing smaller than a grid step of {cell} pc is resolved; clouds much "
        f"smaller than the lengthscale of {length} pc are smeared out along the sight "
        "line, where distances decide, more than across.",
        "Elongated features that point at the Sun are where errors of distances and "
        "gaps between stars go first; do not take them for filaments.",
        "Intervals are those of the model. Errors that the catalogue understates, and "
        "stars it selects by their extinction, are not in them.",
    )
    title = "What the map cannot say"
    return Section(key="limits", title=title, blocks=(Text(text),))


def origin(data: ReportData) -> Section:
    """Inputs with hashes, catalogues, faults, configuration, citation."""
    run = data.run
    recorded, cited = run.provenance, data.origin["citation"]
    blocks: list[Block] = [
        Table(
            caption="Inputs",
            header=("file", "SHA-256"),
            rows=tuple((i["name"], i["sha256"]) for i in recorded["inputs"]),
        ),
        *_catalogue(recorded.get("catalogue") or {}),
        Text((str(cited["message"]),)),
        facts("How to cite", _citation_rows(cited)),
        Listing(
            title="Configuration as it was used",
            content=(run.path / "config.toml").read_text(),
        ),
        Listing(
            title="Everything that is recorded (run.json)",
            content=json.dumps(
                {"summary": run.summary, "provenance": recorded}, indent=1
            ),
        ),
    ]
    title = "Where it comes from"
    return Section(key="origin", title=title, blocks=tuple(blocks), folded=True)


def _catalogue(recorded: dict[str, Any]) -> list[Block]:
    """What ingestion counted and assumed, table by table."""
    blocks: list[Block] = []
    for name, table in recorded.get("partitions", {"": recorded}).items():
        report = table.get("report")
        if not report:
            continue
        rows = [
            ("rows read", count(report["rows_read"])),
            ("rows kept", count(report["rows_kept"])),
            *((f"fault: {what}", count(n)) for what, n in report["faults"].items()),
            *((f"cut: {what}", count(n)) for what, n in report["cuts"].items()),
            ("negative extinctions kept", count(report["negative_extinctions"])),
            *((f"input {i['name']}", i["sha256"]) for i in table.get("inputs", ())),
            *(("note", note) for note in report["notes"]),
        ]
        blocks.append(facts(f"Ingestion {name}".strip(), rows))
    return blocks


def _citation_rows(block: dict[str, Any]) -> list[tuple[str, str]]:
    software = block["software"]
    rows = [("software", f"{software['title']}, version {software['version']}")]
    for work in block["references"]:
        who = ", ".join(name["family-names"] for name in work["authors"])
        where = work.get("conference", {}).get("name", "")
        rows.append(("method", f"{who} ({work['year']}): {work['title']}. {where}"))
    for work, paper in cited_papers(block):
        said = (str(paper), paper.title, paper.doi)
        label = str(work.get("name", "extinction curve"))
        rows.append((label, "; ".join(filter(None, said))))
    return rows
