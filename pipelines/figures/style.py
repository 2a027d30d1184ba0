"""What the figures share: pages and their panels, colours, labels, saving."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib as mpl
import numpy as np
from astropy import units as u
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from pipelines.bands import known_band
from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file

# Okabe and Ito's colours, which all kinds of colour vision tell apart.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
BLACK = "#000000"
SMALL, NORMAL = 7.0, 8.0
HATCH = 0.3
# Percentiles that a panel of stars or cells is fitted to.
RANGE = (0.5, 99.5)
# Widths of one and two columns of Astronomy & Astrophysics, and of pages below which
# panels are stacked [mm].
SINGLE, DOUBLE, NARROW = 88.0, 180.0, 120.0
INCH = 25.4
POINT = INCH / 72
# Height of a line of the header and of a label [mm].
_LINE, LABEL = 3.6, 3.4
# The spaces of a text that are not within mathematics.
_SPACES = re.compile(r" (?=(?:[^$]*\$[^$]*\$)*[^$]*$)")
_FORMATS = ("png", "pdf", "svg")
# Figures that reach so far are in kpc [pc]; densities whose 99th percentile is below
# this [mag/pc] are in mag/kpc.
_FROM_KPC, _FROM_MAG_PER_PC = 2000.0, 0.1


class Page(Figure):
    """A figure as wide as it will be printed: it is never cropped."""


class Margins(NamedTuple):
    """What labels, titles and colour bars take around a panel [mm].

    ``left`` and ``right`` are the page's own, ``between`` lies between columns, and
    ``top`` and ``bottom`` are those of every row.
    """

    left: float
    right: float
    between: float
    top: float
    bottom: float

    def width(self, columns: int, page: float) -> float:
        """Return the width of each of ``columns`` panels on a page [mm]."""
        return (page - self.left - self.right - self.between * (columns - 1)) / columns

    def wrapped(
        self, texts: Sequence[str], columns: int, page: float, size: float
    ) -> tuple[list[str], float]:
        """Break texts to fit a panel; return them and the height they add [mm]."""
        wide = self.width(columns, page) + self.between - 2.0
        lines = [wrapped(text, wide, size) for text in texts]
        return lines, LABEL * max(text.count("\n") for text in lines)


def wrapped(text: str, width: float, size: float) -> str:
    """Break a text of a size [point] into lines of at most a width [mm].

    A word that is longer stays whole.
    """
    font, measure = FontProperties(size=size), TextToPath()

    def wide(line: str) -> float:
        mathematics = line.count("$") > 1
        return POINT * measure.get_text_width_height_descent(line, font, mathematics)[0]

    lines = []
    for part in text.split("\n"):
        line = ""
        for word in _SPACES.split(part):
            longer = f"{line} {word}".strip()
            if line and wide(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


def rectangles(
    count: int,
    aspect: float,
    margins: Margins,
    *,
    columns: int,
    width: float = DOUBLE,
    notes: Sequence[str] = (),
    header: float = 0.0,
) -> tuple[Page, list[tuple[float, float, float, float]]]:
    """Return a page and the places of its panels, row by row, in fractions of the page.

    Parameters
    ----------
    aspect
        Height over width of every panel.
    columns
        Panels side by side.
    width
        Of the page [mm]; its height follows.
    notes
        Written at the top, each on its own line where the page is narrow; lines that
        are longer than the page are broken.
    header
        Height kept free at the top besides [mm].
    """
    rows = -(-count // columns)
    left, _, between, top, bottom = margins
    wide = margins.width(columns, width)
    tall = wide * aspect
    text = wrapped(("\n" if width < NARROW else "; ").join(notes), width - 4.0, SMALL)
    header += 1.5 + _LINE * len(text.split("\n")) if text else 0.0
    height = header + rows * (tall + top + bottom)
    page = Page(figsize=(width / INCH, height / INCH))
    if text:
        page.text(0.5, 1 - 1.0 / height, text, ha="center", va="top", fontsize=SMALL)
    places = []
    for number in range(count):
        row, column = divmod(number, columns)
        lower = height - header - (row + 1) * (tall + top + bottom) + bottom
        x = left + column * (wide + between)
        places.append((x / width, lower / height, wide / width, tall / height))
    return page, places


def sheet(
    count: int, aspect: float, margins: Margins, **options: Any
) -> tuple[Page, list[Axes]]:
    """Return a page and its panels with thin axes; options as in `rectangles`."""
    page, places = rectangles(count, aspect, margins, **options)
    panels = [page.add_axes(place) for place in places]
    for axes in panels:
        for side in axes.spines.values():
            side.set_linewidth(0.6)
        axes.tick_params(width=0.6, length=2.5, pad=2.0)
    return page, panels


def axes_width(axes: Axes) -> float:
    """Return the width of a panel [mm]."""
    return axes.get_window_extent().width / cast(Figure, axes.figure).dpi * INCH


def label(axes: Axes, x: str, y: str) -> None:
    """Name both axes."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)


def note(axes: Axes, text: str) -> None:
    """Write a remark in the upper left corner of a panel."""
    axes.text(
        0.03,
        0.97,
        text,
        transform=axes.transAxes,
        va="top",
        fontsize=SMALL - 1,
        color="0.3",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )


def outline(width: float = 2.0) -> list[Any]:
    """Return a pale edge that keeps lines and text legible on any colour."""
    return [patheffects.withStroke(linewidth=width, foreground="white", alpha=0.85)]


def length_unit(reach: float) -> tuple[float, str]:
    """Return the factor from pc and the unit for a figure that reaches so far [pc]."""
    return (1e-3, "kpc") if reach >= _FROM_KPC else (1.0, "pc")


def length_text(value: float) -> str:
    """Write a distance [pc] in the unit that suits it."""
    factor, unit = length_unit(value)
    return f"{value * factor:.4g} {unit}"


def band_of(meta: dict[str, Any]) -> str:
    """Return the band that a map's provenance names; empty if none or several."""
    return known_band(str(meta.get("extinction_band", "")))


def band_symbol(band: str) -> str:
    """Write a band as mathematics: ``A_V`` with an index; words as they are."""
    if re.fullmatch(r"A_\w+(?:\(\w+\))?", band):
        return rf"$A_\mathrm{{{band[2:]}}}$"
    if re.fullmatch(r"E\(\w+-\w+\)", band):
        return f"${band}$"
    return band


def extinction_label(band: str, what: str = "extinction") -> str:
    """Label an integrated extinction: what is shown, the band and the unit."""
    return " ".join(word for word in (what, band_symbol(band), "[mag]") if word)


def density_label(
    values: np.ndarray, unit: str, band: str, what: str = "density"
) -> tuple[float, str]:
    """Return the factor from ``unit`` to mag/pc or mag/kpc, as suits, and the label."""
    finite = np.abs(values[np.isfinite(values)])
    native: Any = u.Unit(unit)
    high = np.percentile(finite, 99) * native.to("mag pc-1") if finite.size else 0.0
    shown: Any = u.Unit("mag pc-1" if high >= _FROM_MAG_PER_PC else "mag kpc-1")
    named = f"{what} of {band_symbol(band)}" if band else what
    return native.to(shown), f"{named} [{shown.to_string('latex_inline')}]"


def signed_text(value: float, digits: int = 4) -> str:
    """Write a number with a proper minus sign."""
    return f"{value:.{digits}g}".replace("-", "\N{MINUS SIGN}")


def save_figure(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    dpi: float = 200,
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
    metadata: dict[str, Any] = {}
    if kind != "png":
        metadata["CreationDate" if kind == "pdf" else "Date"] = None
    if about:
        metadata["Subject" if kind == "pdf" else "Description"] = about
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
