"""What the figures share: colours, sizes of letters, units, saving."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from astropy import units as u
from matplotlib import patheffects
from matplotlib.figure import Figure

from pipelines.base.errors import InputError
from pipelines.figures.page import Page
from pipelines.storage.atomic import atomic_file

# Okabe and Ito's colours, which all kinds of colour vision tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY_BLUE, YELLOW, BLACK = "#56B4E9", "#E69F00", "#000000"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, YELLOW, BLACK)
SMALL, NORMAL = 7.0, 8.0
_FROM_KPC = 2000.0
_FROM_MAG_PER_PC = 0.1
HATCH = 0.3
_DPI = 200
_FORMATS = ("png", "pdf", "svg")


def length_unit(reach: float) -> tuple[float, str]:
    """Factor from pc and the name of the unit for a figure that reaches so far [pc]."""
    return (1e-3, "kpc") if reach >= _FROM_KPC else (1.0, "pc")


def length_text(value: float) -> str:
    """Write a distance [pc] in the unit that suits it."""
    factor, unit = length_unit(value)
    return f"{value * factor:.4g} {unit}"


def density_unit(values: np.ndarray, unit: str) -> tuple[float, str]:
    """Factor and label that turn ``unit`` into mag/pc, or mag/kpc for small values."""
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= _FROM_MAG_PER_PC else "mag kpc-1")
    return native.to(shown), f"[{shown.to_string('latex_inline')}]"


def signed_text(value: float, digits: int = 4) -> str:
    """A number with a proper minus sign."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def outline(width: float = 2.0) -> list[Any]:
    """A pale edge that keeps lines and text legible on any colour."""
    return [patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)]


def save_figure(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    dpi: float = _DPI,
) -> None:
    """Save as PNG, PDF or SVG by the ending of ``path``, whole or not at all.

    Fonts are embedded as outlines that stay text (PDF) or become paths (SVG); no file
    holds the time, so that the same figure is the same file. A `Page` keeps its width;
    any other figure is cropped to what is drawn.

    Raises
    ------
    InputError
        If ``path`` ends otherwise, exists and ``overwrite`` is false, or cannot be
        written.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in _FORMATS:
        raise InputError(
            f"{path}: figures are written as {', '.join(_FORMATS)}: give it one of "
            "these endings"
        )
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    settings: Any = {
        "pdf.fonttype": 42,
        "svg.hashsalt": "dustmap",
        "hatch.linewidth": HATCH,
    }
    with (
        atomic_file(path, overwrite=overwrite) as temporary,
        mpl.rc_context(settings),
    ):
        figure.savefig(
            temporary,
            format=kind,
            dpi=dpi,
            bbox_inches=None if isinstance(figure, Page) else "tight",
            metadata=metadata,
        )
