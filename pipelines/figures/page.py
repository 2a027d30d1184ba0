"""Pages: figures of a printed width, with panels of one shape and their bars above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

# Widths of one and two columns of Astronomy & Astrophysics [mm].
SINGLE, DOUBLE = 88.0, 180.0
_INCH = 25.4
_NOTE = 7.0
# What axis labels and colour bars take around a panel [mm].
_LEFT, _RIGHT, _BOTTOM, _TOP = 12.5, 3.0, 9.5, 10.5
_BETWEEN, _LABELLED = 8.5, 12.5
_TITLE, _SIDE = 5.0, 4.0
_BAR, _ABOVE = 2.0, 1.2
# Height of a line of the header, and below this width panels are stacked [mm].
_LINE, NARROW = 3.6, 120.0


class Page(Figure):
    """A figure as wide as it will be printed: it is never cropped."""


def sheet(
    count: int,
    aspect: float,
    *,
    columns: int,
    width: float = DOUBLE,
    labelled: bool = False,
    bare: bool = False,
    bars: bool = True,
    numbered: bool = False,
    notes: Sequence[str] = (),
    header: float = 0.0,
) -> tuple[Page, list[Axes]]:
    """A page with ``count`` panels, row by row.

    Parameters
    ----------
    aspect
        Height over width of every panel.
    columns
        Panels side by side.
    width
        Of the page [mm]; its height follows.
    labelled
        Whether panels right of the first have their own label up the side.
    bare
        Panels without axes, their bars below, as of the sky.
    numbered
        Whether bare panels have numbers at their lower and left edges.
    bars
        Whether colour bars stand above the panels, or else only a title.
    notes
        Written at the top, each on its own line where the page is narrow.
    header
        Height kept free at the top besides [mm].
    """
    rows = -(-count // columns)
    left, bottom = (_SIDE, 12.0) if bare else (_LEFT, _BOTTOM)
    right = _SIDE if bare else _RIGHT
    between = _SIDE if bare else _LABELLED if labelled else _BETWEEN
    if numbered:
        left, bottom, between = left + 4.0, bottom + 3.5, between + 7.0
    wide = (width - left - right - between * (columns - 1)) / columns
    tall = wide * aspect
    top = _TOP if bars and not bare else _TITLE
    lines = len(notes) if width < NARROW else min(len(notes), 1)
    header += 1.5 + _LINE * lines if lines else 0.0
    height = header + rows * (tall + top + bottom)
    page = Page(figsize=(width / _INCH, height / _INCH))
    if notes:
        text = ("\n" if width < NARROW else "; ").join(notes)
        page.text(
            0.5, 1 - 1.0 / height, text, ha="center", va="top", fontsize=_NOTE,
            ma="center",
        )  # fmt: skip
    panels = []
    for number in range(count):
        row, column = divmod(number, columns)
        lower = height - header - (row + 1) * (tall + top + bottom) + bottom
        place = (left + column * (wide + between), lower, wide, tall)
        panels.append(page.add_axes(_fractions(place, width, height)))
    for axes in panels:
        for side in axes.spines.values():
            side.set_linewidth(0.6)
        axes.tick_params(width=0.6, length=2.5, pad=2.0)
    return page, panels


def above(axes: Axes) -> Axes:
    """Axes for a horizontal colour bar just above a panel, as wide as what is drawn."""
    return _bar(axes, _ABOVE, 1.0)


def below(axes: Axes, gap: float = 1.0) -> Axes:
    """Axes for a bar ``gap`` [mm] below a panel, narrower than it."""
    return _bar(axes, -gap - _BAR, 0.66)


def _bar(axes: Axes, away: float, share: float) -> Axes:
    """Axes beyond the upper edge of a panel, or beyond the lower if negative [mm]."""
    page = cast(Figure, axes.figure)
    bar = page.add_axes((0.0, 0.0, 1.0, 1.0), label=f"bar {id(axes)}")

    def place(_bar: Any, _renderer: Any) -> Bbox:
        axes.apply_aspect()
        panel = axes.get_position()
        height = page.get_size_inches()[1] * _INCH
        lower = (panel.y1 if away > 0 else panel.y0) + away / height
        left = panel.x0 + panel.width * (1 - share) / 2
        return Bbox.from_bounds(left, lower, panel.width * share, _BAR / height)

    bar.set_axes_locator(place)
    return bar


def _fractions(place: tuple[float, ...], width: float, height: float) -> Any:
    scale = np.array([width, height, width, height])
    return tuple((np.array(place) / scale).tolist())
