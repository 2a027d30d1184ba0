"""How the fit went: convergence, time, memory, interruptions."""

from __future__ import annotations

import re
from typing import Any

from pipelines.report.blocks import Block, Section, Table, Text, facts
from pipelines.report.data import ReportData
from pipelines.report.numbers import count, duration, several, significant, size
from pipelines.storage.metrics import Record

_PARTS = {
    "read": "reading the catalogue",
    "scales": "learning the prior's scales",
    "held-out test": "sight lines and held-out stars",
}
# What a record holds of a solve, of the stars, of a step and of the evidence.
_NUMBERS = ("residual", "misfit", "expected_gain", "bound")


def diagnostics(data: ReportData) -> Section:
    """Convergence of the solves, and what the parts of the fit cost."""
    summary = data.run.summary
    resumed = data.run.provenance.get("resumed") or []
    blocks: list[Block] = [Text((_in_words(summary, len(resumed)),))]
    timed = [record for record in data.records if "seconds" in record]
    if timed:
        blocks.append(_stages(timed))
    seconds = summary["seconds"]
    rows = [(_PARTS.get(name, str(name)), duration(s)) for name, s in seconds.items()]
    rows.append(("in all", duration(sum(seconds.values()))))
    rows.append(("peak memory of the process", size(summary["peak_memory_bytes"])))
    blocks.append(facts("Time and memory", rows))
    if resumed:
        said = (
            ", ".join(f"{name} {value}" for name, value in entry.items() if value)
            for entry in resumed
        )
        numbered = [(str(number), text) for number, text in enumerate(said, start=1)]
        blocks.append(facts("Taken up again", numbered))
    return Section(
        key="convergence",
        title="Convergence, time, memory",
        blocks=tuple(blocks),
        folded=True,
    )


def _in_words(summary: dict[str, Any], resumed: int) -> str:
    total = sum(summary["seconds"].values())
    ended = "Its solvers converged" if summary["converged"] else "IT DID NOT CONVERGE"
    often = "never interrupted"
    if resumed:
        often = f"interrupted and resumed {several(resumed, 'time')}"
    return (
        f"The fit took {duration(total)} and at most "
        f"{size(summary['peak_memory_bytes'])} of memory; it was {often}. {ended}."
    )


def _stages(records: list[Record]) -> Table:
    """Records by part of the fit, and the numbers of the last one."""
    stages: dict[str, list[Record]] = {}
    for record in records:
        # Without the numbers of the samples it solved for.
        part = re.sub(r" \d+-\d+$", "", record["stage"])
        stages.setdefault(part, []).append(record)
    rows = []
    for name, own in stages.items():
        first, last = own[0], own[-1]
        numbers = [
            f"{key.replace('_', ' ')} {significant(last[key])}"
            for key in _NUMBERS
            if last.get(key) is not None
        ]
        when = f"{significant(first['seconds'])} to {significant(last['seconds'])} s"
        rows.append((name, count(len(own)), when, ", ".join(numbers) or "–"))
    header = ("part", "records", "when", "the last one")
    return Table(caption="Iterations by part", header=header, rows=tuple(rows))
