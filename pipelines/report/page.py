"""The report of a run as one HTML file."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.formats.citation import cited_papers
from pipelines.report.data import ReportData, gather
from pipelines.report.numbers import FORMATS
from pipelines.report.view import view
from pipelines.run.baseline import NAME, in_words, is_worse
from pipelines.run.status import in_plain_words
from pipelines.storage.atomic import atomic_file, check_output

# Sections by their anchors and templates.
SECTIONS = {
    "overview": "At a glance",
    "maps": "More maps",
    "three-d": "In three dimensions",
    "sight-lines": "Lines of sight",
    "limits": "What the map cannot say",
    "held-out": "Held-out stars",
    "summary": "What was mapped",
    "convergence": "Convergence, time, memory",
    "origin": "Where it comes from",
}


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
    sections = [key for key in SECTIONS if three_d or key != "three-d"]
    page = render(gather(run, nside=nside), sections)
    with atomic_file(output, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return output


def render(data: ReportData, sections: Sequence[str]) -> str:
    """Return a page of some `SECTIONS` as HTML, with all values escaped."""
    jinja2 = _optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {each.__name__: each for each in (*FORMATS, in_plain_words)}
    # plotly.js as bundled with plotly, about 4.8 MB.
    drawn = "three-d" in sections
    return environment.get_template("page.html").render(
        data=data,
        sections=sections,
        titles=SECTIONS,
        plotly=_optional("plotly.offline").get_plotlyjs() if drawn else "",
        view=view,
        known_band=known_band,
        cited_papers=cited_papers,
        baseline=NAME,
        in_words=in_words,
        is_worse=is_worse,
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
