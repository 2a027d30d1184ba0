"""Pages: figures of a printed width, with panels of one shape."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

# Widths of one and two columns of Astronomy & Astrophysics [mm].
SINGLE, DOUBLE = 88.0, 180.0
INCH = 25.4
# Below this width panels are stacked [mm].
NARROW = 120.0
_FONT = 7.0
# Height of a line of the header and of a label, thickness of a colour bar [mm].
_LINE, LABEL, _BAR = 3.6, 3.4, 2.0
# A point [mm], and the spaces of a text that are not within mathematics.
POINT = INCH / 72
_SPACES = re.compile(r" (?=(?:[^$]*\$[^$]*\$)*[^$]*$)")


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


# A plane of a box with a colour bar above it, curves under a title, the whole sky with
# a bar below it, and a field of the sky with numbers at its edges.
BOX = Margins(left=14.0, right=4.0, between=9.5, top=10.5, bottom=9.5)
CURVES = Margins(left=14.0, right=4.0, between=9.5, top=5.0, bottom=9.5)
SKY = Margins(left=7.0, right=7.0, between=12.0, top=5.0, bottom=13.0)
FIELD = Margins(left=9.0, right=4.0, between=11.0, top=5.0, bottom=15.5)


def text_width(text: str, size: float) -> float:
    """How wide a text is in letters of a size [point], in mm."""
    font = FontProperties(size=size)
    measure = TextToPath().get_text_width_height_descent
    wide, _, _ = measure(text, font, ismath=text.count("$") > 1)
    return wide * POINT


def wrapped(text: str, width: float, size: float) -> str:
    """A text in lines of at most a width [mm]; a word that is longer stays whole."""
    lines = []
    for part in text.split("\n"):
        line = ""
        for word in _SPACES.split(part):
            longer = f"{line} {word}".strip()
            if line and text_width(longer, size) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(line)
    return "\n".join(lines)


def panel_width(margins: Margins, columns: int, width: float) -> float:
    """How wide each of ``columns`` panels is on a page [mm]."""
    free = width - margins.left - margins.right - margins.between * (columns - 1)
    return free / columns


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
    """A page and where its ``count`` panels are, row by row, in fractions of the page.

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
    wide = panel_width(margins, columns, width)
    tall = wide * aspect
    text = ("\n" if width < NARROW else "; ").join(notes)
    text = wrapped(text, width - 4.0, _FONT)
    header += 1.5 + _LINE * len(text.split("\n")) if text else 0.0
    height = header + rows * (tall + top + bottom)
    page = Page(figsize=(width / INCH, height / INCH))
    if text:
        page.text(0.5, 1 - 1.0 / height, text, ha="center", va="top", fontsize=_FONT)
    places = []
    for number in range(count):
        row, column = divmod(number, columns)
        lower = height - header - (row + 1) * (tall + top + bottom) + bottom
        x = left + column * (wide + between)
        places.append((x / width, lower / height, wide / width, tall / height))
    return page, places


def sheet(
    count: int, aspect: float, margins: Margins, **options
) -> tuple[Page, list[Axes]]:
    """A page with ``count`` panels with thin axes; options as in `rectangles`."""
    page, places = rectangles(count, aspect, margins, **options)
    panels = [page.add_axes(place) for place in places]
    for axes in panels:
        for side in axes.spines.values():
            side.set_linewidth(0.6)
        axes.tick_params(width=0.6, length=2.5, pad=2.0)
    return page, panels


def bar_axes(axes: Axes, away: float, share: float = 1.0) -> Axes:
    """Axes for a horizontal colour bar, ``share`` as wide as a panel.

    It lies ``away`` [mm] above the panel, or below it if negative.
    """
    axes.apply_aspect()
    page = cast(Figure, axes.figure)
    tall = axes.get_position().height * page.get_figheight() * INCH
    lower = 1 + away / tall if away > 0 else (away - _BAR) / tall
    return axes.inset_axes(((1 - share) / 2, lower, share, _BAR / tall))
