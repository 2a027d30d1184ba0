"""The report of a run as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.bands import known_band
from pipelines.formats.citation import cited_papers
from pipelines.report.data import ReportData, gather
from pipelines.report.numbers import FORMATS
from pipelines.report.view import view
from pipelines.run.baseline import NAME, in_words, is_worse
from pipelines.run.status import in_plain_words
from pipelines.storage.atomic import atomic_file, check_output
from pipelines.view.embedding import optional, plotly_script, rendered

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
    optional("jinja2")
    if three_d:
        optional("plotly.offline", ", or leave the 3-D view out by --no-3d")
    sections = [key for key in SECTIONS if three_d or key != "three-d"]
    page = render(gather(run, nside=nside), sections)
    with atomic_file(output, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return output


def render(data: ReportData, sections: Sequence[str]) -> str:
    """Return a page of some `SECTIONS` as HTML, with all values escaped."""
    return rendered(
        Path(__file__).with_name("templates"),
        "page.html",
        data=data,
        sections=sections,
        titles=SECTIONS,
        plotly=plotly_script() if "three-d" in sections else "",
        view=view,
        known_band=known_band,
        cited_papers=cited_papers,
        baseline=NAME,
        in_words=in_words,
        is_worse=is_worse,
        **{each.__name__: each for each in (*FORMATS, in_plain_words)},
    )
