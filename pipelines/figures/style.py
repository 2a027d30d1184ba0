"""What the figures share: colours, sizes of letters, labels with units, saving."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from astropy import units as u
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.bands.source import known_band
from pipelines.base.errors import InputError
from pipelines.figures.page import Page
from pipelines.storage.atomic import atomic_file

# Okabe and Ito's colours, which all kinds of colour vision tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY_BLUE, YELLOW, BLACK = "#56B4E9", "#E69F00", "#000000"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY_BLUE, YELLOW, BLACK)
SMALL, NORMAL = 7.0, 8.0
_FROM_KPC = 2000.0
HATCH = 0.3
_DPI = 200
_FORMATS = ("png", "pdf", "svg")
# Densities whose 99th percentile is below this are shown in mag/kpc.
_FROM_MAG_PER_PC = 0.1


def length_unit(reach: float) -> tuple[float, str]:
    """Factor from pc and the name of the unit for a figure that reaches so far [pc]."""
    return (1e-3, "kpc") if reach >= _FROM_KPC else (1.0, "pc")


def length_text(value: float) -> str:
    """Write a distance [pc] in the unit that suits it."""
    factor, unit = length_unit(value)
    return f"{value * factor:.4g} {unit}"


def band_of(meta: dict[str, Any]) -> str:
    """The extinction band that a map's provenance names; empty if none or several."""
    return known_band(str(meta.get("extinction_band", "")))


def band_symbol(band: str) -> str:
    """A band as mathematics: ``A_V`` as its symbol with an index; words as they are."""
    if re.fullmatch(r"A_\w+(?:\(\w+\))?", band):
        return rf"$A_\mathrm{{{band[2:]}}}$"
    if re.fullmatch(r"E\(\w+-\w+\)", band):
        return f"${band}$"
    return band


def extinction_label(band: str, what: str = "extinction") -> str:
    """What is shown, the band and the unit of an integrated extinction."""
    return " ".join(word for word in (what, band_symbol(band), "[mag]") if word)


def density_label(
    values: np.ndarray, unit: str, band: str, what: str = "density"
) -> tuple[float, str]:
    """Factor that brings ``values`` [unit] to mag/pc or mag/kpc, and the label."""
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= _FROM_MAG_PER_PC else "mag kpc-1")
    named = f"{what} of {band_symbol(band)}" if band else what
    return native.to(shown), f"{named} [{shown.to_string('latex_inline')}]"


def signed_text(value: float, digits: int = 4) -> str:
    """A number with a proper minus sign."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def outline(width: float = 2.0) -> list[Any]:
    """A pale edge that keeps lines and text legible on any colour."""
    return [patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)]


def legend_above(axes: Axes) -> None:
    """Draw a legend above the panel, where it covers no point."""
    axes.legend(
        fontsize=SMALL,
        frameon=False,
        ncols=5,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
        handletextpad=0.2,
        columnspacing=1.2,
    )


def save_figure(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    dpi: float = _DPI,
    about: str = "",
) -> None:
    """Save as PNG, PDF or SVG by the ending of ``path``, replacing it as a whole.

    Text stays text in a PDF; no file holds the time, so that the same figure gives the
    same file, with ``about`` as its description (in a PDF, its subject). A `Page` keeps
    its width; any other figure is cropped to what is drawn.

    Raises
    ------
    InputError
        If ``path`` has another ending or cannot be written.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in _FORMATS:
        raise InputError(
            f"{path}: figures are written as {', '.join(_FORMATS)}: give it one of "
            "these endings"
        )
    dateless = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    described = {"Subject" if kind == "pdf" else "Description": about} if about else {}
    metadata: dict[str, Any] = {**dateless, **described}
    cropped = None if isinstance(figure, Page) else "tight"
    settings: Any = {
        "pdf.fonttype": 42,
        "svg.hashsalt": "dustmap",
        "hatch.linewidth": HATCH,
    }
    with atomic_file(path, overwrite=True) as temporary, mpl.rc_context(settings):
        figure.savefig(
            temporary, format=kind, dpi=dpi, bbox_inches=cropped, metadata=metadata
        )
