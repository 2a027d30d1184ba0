"""The page of a map as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dustmap
from pipelines.formats.citation import cited_papers
from pipelines.maps.answers import Answers, named
from pipelines.run.baseline import NAME, in_words, is_worse
from pipelines.run.status import in_plain_words
from pipelines.storage.atomic import atomic_file, check_output
from pipelines.view.data import gather
from pipelines.view.embedding import optional, plotly_script, rendered
from pipelines.view.numbers import FORMATS
from pipelines.view.record import read_record

TEMPLATES = Path(__file__).with_name("templates")
# What templates use beside the facts of a map.
WORDS = {
    "baseline": NAME,
    **{
        each.__name__: each
        for each in (*FORMATS, cited_papers, in_plain_words, in_words, is_worse)
    },
}


def write_view(
    source: Answers, output: Path, *, overwrite: bool = False, **options: Any
) -> Path:
    """Write the page of a map; ``options`` are those of `view_page`.

    Raises `InputError` if the output exists and ``overwrite`` is false, an optional
    package is missing, or as `pipelines.view.data.gather`.
    """
    check_output(output, overwrite=overwrite)
    page = view_page(source, **options)
    with atomic_file(output, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return output


def view_page(
    source: Answers, *, command: str = "", served: bool = False, **options: Any
) -> str:
    """Return the page, which quotes the ``command`` that makes it.

    ``served`` is true if a `pipelines.view.server` answers beside it; ``options`` are
    those of `pipelines.view.data.gather`.
    """
    for package in ("jinja2", "plotly.offline"):
        optional(package)
    data = gather(source, **options)
    meta: dict[str, Any] = data.pop("meta")
    cubes, sky = data["cubes"] or [], data["sky"]
    band = source.known_band
    packed = [a for cube in cubes for a in cube["arrays"].values()]
    curves = [] if sky is None else list(sky["arrays"].values())
    run = None if source.run is None else read_record(source.run)
    return rendered(
        TEMPLATES,
        "view.html",
        # "</script>" would end the script, "<!--<script>" hide its end.
        data=json.dumps({**data, "band": band, "served": served}).replace(
            "<", "\\u003c"
        ),
        plotly=plotly_script(),
        title=source.path.name,
        band=band,
        verdict=source.verdict,
        said=source.said(integrated=True),
        facts={
            name: fact
            for name, fact in source.facts.items()
            if name not in ("verdict", "extinctions")
        },
        origins=[named(origin) for origin in source.origins()],
        citation=meta.get("citation"),
        inputs=meta.get("inputs") or [],
        program=meta.get("program", ""),
        version=dustmap.__version__,
        command=command,
        absent=data["absent"],
        cubes=cubes,
        sky=sky,
        stars=data["stars"],
        cube_error=max((a["error"] for a in packed), default=0.0),
        curve_error=max((a["error"] for a in curves), default=0.0),
        served=served,
        run=run,
        **WORDS,
    )
