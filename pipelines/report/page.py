"""One HTML file from sections: no other file, no network."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.report.blocks import Section, View

_FOLDER = Path(__file__).with_name("templates")


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The page; every text is escaped.

    Raises
    ------
    InputError
        If the optional packages behind it are not installed.
    """
    jinja2 = optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    three_d = any(isinstance(b, View) for s in sections for b in s.blocks)
    return environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "view.js").read_text(encoding="utf-8") if three_d else "",
        plotly=_plotly() if three_d else "",
    )


def check_packages(*, three_d: bool) -> None:
    """Raise before the work rather than after it what `render` would."""
    for name in ("jinja2", *(["plotly.offline"] if three_d else [])):
        optional(name)


def optional(name: str) -> Any:
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


def _plotly() -> str:
    """plotly.js as it is bundled with plotly, about 4.8 MB."""
    return optional("plotly.offline").get_plotlyjs()
