"""A run as one HTML file."""

from __future__ import annotations

from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.report.blocks import Section
from pipelines.report.data import ReportData, gather
from pipelines.report.diagnostics import diagnostics
from pipelines.report.maps import beside, maps, sight_lines
from pipelines.report.numbers import count
from pipelines.report.origin import limits, origin
from pipelines.report.page import check_packages, render
from pipelines.report.summary import summary
from pipelines.report.validation import validation
from pipelines.report.view import view
from pipelines.storage.atomic import atomic_file


def write_report(
    run: Path,
    output: Path,
    *,
    three_d: bool = True,
    nside: int | None = None,
    other: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of a run; with the 3-D view it is some 5 MB larger.

    ``other`` is a map to set beside it: a run or an export.

    Raises
    ------
    InputError
        If the run is incomplete, the output exists and ``overwrite`` is false, or an
        optional package is missing.
    """
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists: choose another output or pass --overwrite")
    check_packages(three_d=three_d)
    page = compose(gather(run, nside=nside, other=other), three_d=three_d)
    with atomic_file(output, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return output


def compose(data: ReportData, *, three_d: bool = True) -> str:
    """The page of what was gathered."""
    sections = [summary(data), validation(data), diagnostics(data), maps(data)]
    if three_d:
        seen = (view(data.cube),)
        sections.append(
            Section(key="three-d", title="In three dimensions", blocks=seen)
        )
    sections.append(sight_lines(data))
    if data.beside is not None:
        sections.append(beside(data))
    sections += [limits(data), origin(data)]
    recorded = data.run.provenance
    stars = count(data.run.summary["counts"]["fitted"])
    names = ", ".join(one["name"] for one in recorded["inputs"])
    subtitle = (
        f"Run {data.run.path.name}, from {names}, by {recorded['program']} "
        f"{recorded['version']}"
    )
    return render(f"Interstellar dust from {stars} stars", subtitle, sections)
