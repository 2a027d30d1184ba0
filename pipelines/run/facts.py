"""Summaries of a run or a map, for the prompt and for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from pipelines.base.geometry import Box

if TYPE_CHECKING:
    from pipelines.run.folder import Run

Facts = dict[str, str]


def run_facts(run: Run) -> Facts:
    """Return box, spacing, stars and held-out figures of a run."""
    summary: dict[str, Any] = run.summary
    counts, held = summary.get("counts", {}), summary.get("held_out", {})
    facts = {
        "run": str(run.path),
        **box_facts(run.box, run.plan.grid.spacing),
        "stars": f"{counts.get('fitted', 0):,} fitted, {counts.get('held out', 0):,} "
        "held out",
        "samples": str(len(run.posterior.samples)),
    }
    if held:
        facts["held-out stars"] = f"RMSE {held['rmse']:.3g} mag, noise included"
    return {**facts, "verdict": str(run.verdict)}


def box_facts(box: Box, spacing: Sequence[float]) -> Facts:
    """Return the box and the spacing of a map."""
    sides = zip("xyz", box.lower, box.upper, strict=True)
    return {
        "box [pc]": ", ".join(f"{a:g} < {axis} < {b:g}" for axis, a, b in sides),
        "spacing [pc]": " x ".join(f"{step:g}" for step in spacing),
    }


def as_text(title: str, facts: Facts) -> str:
    """Return the facts line by line."""
    width = max(len(name) for name in facts)
    return "\n".join(
        [title, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
    )


def as_html(title: str, facts: Facts) -> str:
    """Return the facts as a small table for a notebook."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>"
