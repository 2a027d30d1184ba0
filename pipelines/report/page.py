"""The report of a run as one HTML file."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.report.blocks import Section, View, count
from pipelines.report.data import gather
from pipelines.report.sections import (
    diagnostics,
    drawn,
    limits,
    maps,
    origin,
    overview,
    summary,
    validation,
)
from pipelines.report.view import view
from pipelines.storage.atomic import atomic_file, check_output

_FOLDER = Path(__file__).with_name("templates")


def write_report(
    run: Path,
    output: Path,
    *,
    three_d: bool = True,
    nside: int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of a run; the 3-D view adds some 5 MB.

    Raises `InputError` if the run is incomplete, the output exists and ``overwrite`` is
    false, or an optional package is missing.
    """
    check_output(output, overwrite=overwrite)
    for name in ("jinja2", "plotly.offline")[: 1 + three_d]:
        _optional(name)
    data = gather(run, nside=nside)
    sections = [
        Section("overview", "At a glance", overview(data)),
        Section("maps", "More maps", maps(data)),
        Section("sight-lines", "Lines of sight", [drawn(data, "los")]),
        Section("limits", "What the map cannot say", limits(data)),
        Section("held-out", "Held-out stars", validation(data), folded=True),
        Section("summary", "What was mapped", summary(data), folded=True),
        Section(
            "convergence", "Convergence, time, memory", diagnostics(data), folded=True
        ),
        Section("origin", "Where it comes from", origin(data), folded=True),
    ]
    if three_d:
        blocks = [view(data.source.cube())]
        sections.insert(2, Section("three-d", "In three dimensions", blocks))
    recorded = data.run.provenance
    stars = count(data.run.summary["counts"]["fitted"])
    names = ", ".join(one["name"] for one in recorded["inputs"])
    subtitle = (
        f"Run {data.run.path.name}, from {names}, by {recorded['program']} "
        f"{recorded['version']}"
    )
    page = render(f"Interstellar dust from {stars} stars", subtitle, sections)
    with atomic_file(output, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return output


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Return the page as HTML, with all texts escaped."""
    jinja2 = _optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    plotly = script = ""
    if any(isinstance(b, View) for s in sections for b in s.blocks):
        # plotly.js as bundled with plotly, about 4.8 MB.
        plotly = _optional("plotly.offline").get_plotlyjs()
        script = (_FOLDER / "view.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        script=script,
        plotly=plotly,
    )


def _optional(name: str) -> Any:
    """Import a package of the extra ``report``."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        hint = ", or leave the 3-D view out by --no-3d" if package == "plotly" else ""
        raise InputError(
            f"a report needs {package}, which is not installed: "
            f"pip install 'dustmap[report]'{hint}"
        ) from error
