"""The style of all figures: colours, sizes, pages, labels with units, files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from astropy import units as u
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.storage.atomic import AnyPath, atomic_file

# In the metadata of every figure, by which it is told from a user's own.
_CREATOR = "drawn by dustmap"

# Okabe and Ito's colours, distinct for all kinds of colour vision.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
BLACK = "#000000"
# Sizes of letters [point].
SMALL = 7.0
NORMAL = 8.0
TICKS = {"labelsize": SMALL, "width": 0.6, "length": 2.5, "pad": 2.0}
STYLE: Any = {
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelpad": 2.0,
    "axes.linewidth": 0.6,
    "figure.titlesize": SMALL,
    "hatch.linewidth": 0.3,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    # Text remains text, and files are reproducible.
    "pdf.fonttype": 42,
    "svg.hashsalt": "dustmap",
}
styled = cast(ContextDecorator, mpl.rc_context(STYLE))
"""Decorator of functions that draw or save in `STYLE`."""
# Percentiles of stars or cells within a panel.
RANGE = (0.5, 99.5)
# Width of a page [mm]: two columns of Astronomy & Astrophysics.
PAGE = 180.0
INCH = 25.4


def page(
    count: int,
    columns: int,
    *,
    aspect: float,
    lines: int = 1,
    width: float = PAGE,
    notes: Sequence[str] = (),
    layout: Any = "compressed",
    **axes: Any,
) -> tuple[Figure, list[Any]]:
    """Return a figure at its printed size and its panels, row by row.

    There are ``columns`` of panels side by side, with ``aspect``, height over width,
    and so many ``lines`` of their longest label. The page is ``width`` [mm] wide; empty
    space is cut on saving. ``notes`` are texts at the top, ``axes`` the kind of axes:
    ``subplot_kw`` of matplotlib.
    """
    rows = -(-count // columns)
    text = wrapped("; ".join(notes), 0.95 * width, SMALL)
    # Room [mm] for labels beside the panels, and for titles, bars and labels above and
    # below each, by lines of 4 mm; the layout moves panels together.
    row = aspect * (width - 9.0) / columns + 20.0 + 4.0 * lines
    tall = rows * row + 4.0 * text.count("\n") + 8.0
    figure = Figure(figsize=(width / INCH, tall / INCH), layout=layout)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.05, h_pad=0.05, wspace=0.02, hspace=0.02)
    if text:
        figure.suptitle(text)
    panels = figure.subplots(rows, columns, squeeze=False, subplot_kw=axes).flat
    for spare in panels[count:]:
        spare.remove()
    for each in panels[:count]:
        each.tick_params(**TICKS)
    return figure, list(panels[:count])


def wrapped(text: str, width: float, size: float = NORMAL) -> str:
    """Break a text of a size [point] into lines of about a width [mm]."""
    formula = re.compile(r"\$[^$]*\$")
    # A letter is 0.175 mm wide per point of its size.
    formulas, letters = formula.findall(text), max(int(width / 0.175 / size), 1)
    # A formula counts as four letters, and remains in one piece.
    lines = formula.sub("\0" * 4, text).split("\n")
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    broken = "\n".join(textwrap.fill(line, letters, **options) for line in lines)
    return re.sub("\0" * 4, lambda _: formulas.pop(0), broken)


def label(axes: Axes, x: str, y: str) -> None:
    """Label both axes."""
    axes.set(xlabel=x, ylabel=y)
    axes.tick_params(labelsize=SMALL)


def note(axes: Axes, text: str) -> None:
    """Write a remark in the upper left corner of a panel."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    place = {"transform": axes.transAxes, "va": "top", "bbox": box}
    axes.text(0.03, 0.97, text, fontsize=SMALL - 1, color="0.3", **place)


def outline(width: float = 2.0) -> list[Any]:
    """Return a pale outline that keeps lines and text legible on any colour."""
    return [patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)]


def length_unit(reach: float) -> tuple[float, str]:
    """Return the factor from pc, and the unit: kpc for a reach of 2,000 pc or more."""
    return (1e-3, "kpc") if reach >= 2000.0 else (1.0, "pc")


def length_text(value: float) -> str:
    """Format a distance [pc] in a suitable unit."""
    factor, unit = length_unit(value)
    return f"{value * factor:.4g} {unit}"


def band_of(meta: dict[str, Any]) -> str:
    """Return the band in a map's provenance; empty if none or several."""
    return known_band(str(meta.get("extinction_band", "")))


def band_symbol(band: str) -> str:
    """Format a band as mathematics: ``A_V`` with an index; words unchanged."""
    if re.fullmatch(r"A_\w+(?:\(\w+\))?", band):
        return rf"$A_\mathrm{{{band[2:]}}}$"
    if re.fullmatch(r"E\(\w+-\w+\)", band):
        return f"${band}$"
    return band


def extinction_label(band: str, what: str = "extinction") -> str:
    """Return the label of an integrated extinction, with band and unit."""
    return " ".join(word for word in (what, band_symbol(band), "[mag]") if word)


def density_label(
    values: np.ndarray, unit: str, band: str, what: str = "density"
) -> tuple[float, str]:
    """Return the factor from ``unit`` to mag/pc or mag/kpc, and the label.

    Densities whose 99th percentile is below 0.1 mag/pc are in mag/kpc.
    """
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= 0.1 else "mag kpc-1")
    named = f"{what} of {band_symbol(band)}" if band else what
    return native.to(shown), f"{named} [{shown.to_string('latex_inline')}]"


def signed_text(value: float) -> str:
    """Format a number with a proper minus sign."""
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


@styled
def save_figure(
    figure: Figure, path: AnyPath, *, dpi: float = 200, about: str = ""
) -> None:
    """Save as PNG, PDF or SVG by the suffix of ``path``, atomically.

    A figure that this program drew is replaced. The figure keeps its width, and its
    height is cut to the content. Files hold no time, and are reproducible; ``about`` is
    the description (in a PDF, the subject).

    Raises `InputError` if ``path`` has another suffix, holds what this program did not
    draw, or cannot be written.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in ("png", "pdf", "svg"):
        raise InputError(
            f"{path}: figures are written as png, pdf, svg: choose one of these "
            "suffixes"
        )
    if Path(path).exists() and _CREATOR.encode() not in Path(path).read_bytes():
        raise InputError(
            f"{path} was not drawn by this program, or by an earlier version: move it, "
            "or choose another output"
        )
    metadata: dict[str, Any] = {"Software" if kind == "png" else "Creator": _CREATOR}
    if kind != "png":
        metadata["CreationDate" if kind == "pdf" else "Date"] = None
    if about:
        metadata["Subject" if kind == "pdf" else "Description"] = about
    figure.draw_without_rendering()
    # The layout is made; with its engine `savefig` would make it again, by a draw.
    figure.set_layout_engine("none")
    drawn, edge = figure.get_tightbbox(), 1.0 / INCH
    bottom, top = drawn.y0 - edge, drawn.y1 + edge
    box = Bbox.from_extents(0.0, bottom, figure.get_figwidth(), top)
    with atomic_file(path, overwrite=True) as temporary:
        options: Any = {"dpi": dpi, "bbox_inches": box, "metadata": metadata}
        figure.savefig(temporary, format=kind, **options)
