"""How the fit went: convergence, time, memory, interruptions."""

from __future__ import annotations

import re
from typing import Any

from pipelines.figures import history
from pipelines.figures.history import has_tolerance
from pipelines.report.blocks import Block, Section, Table, Text, facts, picture
from pipelines.report.data import ReportData
from pipelines.report.numbers import count, duration, several, significant, size
from pipelines.storage.metrics import Record

_PARTS = {
    "read": "reading the catalogue",
    "plan": "planning",
    "scales": "learning the prior's scales",
    "inference": "inference",
    "held-out test": "sight lines and held-out stars",
    "checkpoints": "checkpoints",
}
_NUMBERS = ("residual", "misfit", "promised_gain", "bound")


def diagnostics(data: ReportData) -> Section:
    """Convergence of the solves, and what the parts of the fit cost."""
    summary = data.run.summary
    blocks: list[Block] = [Text(paragraphs=(_in_words(data),))]
    timed = [r for r in data.records if "seconds" in r]
    if any(r.get(name) is not None for r in timed for name in _NUMBERS):
        blocks.append(
            picture(
                history(data.records),
                alt="Residuals of the solves, misfit of the stars and promised gains "
                "against the time since the fit began",
                caption="Every iteration that was reported"
                + (
                    "; a dashed line is the tolerance that was asked for."
                    if has_tolerance(timed)
                    else "."
                ),
            )
        )
        blocks.append(_stages(timed))
    blocks.append(_costs(summary))
    taken_up = data.run.provenance.get("taken_up") or []
    if taken_up:
        blocks.append(_taken_up(taken_up))
    return Section(
        key="convergence", title="Convergence, time, memory", blocks=tuple(blocks)
    )


def _in_words(data: ReportData) -> str:
    summary = data.run.summary
    taken_up = len(data.run.provenance.get("taken_up") or [])
    total = sum(summary["seconds"].values())
    ended = "Its solvers converged" if summary["converged"] else "IT DID NOT CONVERGE"
    often = "never interrupted"
    if taken_up:
        often = f"interrupted and taken up again {several(taken_up, 'time')}"
    return (
        f"The fit took {duration(total)} and at most "
        f"{size(summary['peak_memory_bytes'])} of memory; it was {often}. {ended}."
    )


def _stages(records: list[Record]) -> Table:
    stages: dict[str, list[Record]] = {}
    for record in records:
        kind = re.sub(r" \d+(-| of )\d+$", "", record["stage"])
        stages.setdefault(kind, []).append(record)
    rows = [
        (
            name,
            count(len(own)),
            f"{significant(own[0]['seconds'])} to {significant(own[-1]['seconds'])} s",
            _last(own),
        )
        for name, own in stages.items()
    ]
    header = ("part", "records", "when", "the last one")
    return Table(caption="Iterations by part", header=header, rows=tuple(rows))


def _last(records: list[Record]) -> str:
    last = records[-1]
    said = [
        f"{name.replace('_', ' ')} {significant(last[name])}"
        for name in _NUMBERS
        if last.get(name) is not None
    ]
    return ", ".join(said) or "–"


def _costs(summary: dict[str, Any]) -> Table:
    seconds = summary["seconds"]
    rows: list[tuple[str, str]] = [
        (_PARTS.get(name, str(name)), duration(s)) for name, s in seconds.items()
    ]
    rows.append(("in all", duration(sum(seconds.values()))))
    rows.append(("peak memory of the process", size(summary["peak_memory_bytes"])))
    return facts("Time and memory", rows)


def _taken_up(entries: list[dict[str, Any]]) -> Table:
    rows = []
    for number, entry in enumerate(entries, start=1):
        said = [f"{name} {value}" for name, value in entry.items() if value]
        rows.append((str(number), ", ".join(said)))
    return facts("Taken up again", rows)
