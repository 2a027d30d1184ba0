"""Summaries of a run or a map, for the prompt and for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pipelines.base.geometry import Box

Facts = dict[str, str]


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
