"""Meridians and parallels of a map of the sky, with their numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from pipelines.figures.projections import Gnomonic, Mollweide, Projection
from pipelines.figures.style import SMALL, outline

_LINE = {"color": "black", "linewidth": 0.3, "alpha": 0.45}
_STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0)
_MERIDIANS = (120, 60, 0, 300, 240)
_PARALLELS = (-60, -30, 30, 60)


def draw_graticule(axes: Axes, projection: Projection) -> None:
    """Draw lines of equal longitude and latitude and number them."""
    step = 30.0
    if isinstance(projection, Gnomonic):
        step = next((s for s in _STEPS if projection.field / s <= 5), 30.0)
    for meridian in np.arange(0.0, 360.0, step if step < 30 else 60.0):
        latitudes = np.linspace(-90, 90, 721)
        axes.plot(*projection.project(np.full(721, meridian), latitudes), **_LINE)
    for parallel in np.arange(-90.0 + step, 90.0, step):
        longitudes = np.linspace(180.0001, 539.9999, 2881)
        axes.plot(*projection.project(longitudes, np.full(2881, parallel)), **_LINE)
    if isinstance(projection, Gnomonic):
        _number_edges(axes, projection, step)
    else:
        _number_inside(axes, projection)


def _number_inside(axes: Axes, projection: Projection) -> None:
    """Longitudes on the equator, latitudes at the rim or on the central meridian."""
    text = {"fontsize": SMALL - 1.5, "path_effects": outline(1.5)}
    whole = isinstance(projection, Mollweide)
    for meridian in _MERIDIANS if whole else range(0, 360, 60):
        x, y = _place(projection, meridian, 0.0)
        if np.hypot(x / projection.half[0], y) < 0.93:
            axes.text(x, y + 0.02, f"{meridian}°", ha="center", va="bottom", **text)
    for parallel in _PARALLELS:
        if whole:
            x, y = _place(projection, 179.999, parallel)
            up = "bottom" if parallel > 0 else "top"
            axes.text(
                x - 0.03, y, _signed(parallel), ha="right", va=up,
                fontsize=SMALL - 1.5,
            )  # fmt: skip
            continue
        middle = projection.l + 15.0
        x, y = _place(projection, middle, parallel)
        if np.hypot(x, y) < 0.9:
            axes.text(x, y, _signed(parallel), ha="center", va="center", **text)


def _place(projection: Projection, l: float, b: float) -> tuple[float, float]:  # noqa: E741
    x, y = projection.project(np.array(float(l)), np.array(float(b)))
    return float(x), float(y)


def _number_edges(axes: Axes, projection: Gnomonic, step: float) -> None:
    """Numbers where the lines meet the lower and the left edge of a field."""
    size = projection.half[0]
    along = np.linspace(-size, size, 2001)
    edge = np.full(2001, -size)
    l, _ = projection.unproject(along, edge)  # noqa: E741
    _, b = projection.unproject(edge, along)
    for place, value in _crossings(along, np.unwrap(l, period=360.0), step):
        axes.annotate(
            f"{value % 360:g}°", (place, -size), (0, -2), textcoords="offset points",
            ha="center", va="top", fontsize=SMALL - 1, annotation_clip=False,
        )  # fmt: skip
    for place, value in _crossings(along, b, step):
        axes.annotate(
            _signed(value), (-size, place), (-2, 0), textcoords="offset points",
            ha="right", va="center", fontsize=SMALL - 1, annotation_clip=False,
        )  # fmt: skip


def _crossings(
    along: np.ndarray, values: np.ndarray, step: float
) -> list[tuple[float, float]]:
    """Places at which a coordinate passes a multiple of the step, and which one."""
    cells = np.floor(values / step)
    changes = np.nonzero(np.diff(cells))[0]
    return [
        (float(along[i]), float(max(cells[i], cells[i + 1]) * step)) for i in changes
    ]


def _signed(value: float) -> str:
    return f"{value:+g}°".replace("-", "\N{MINUS SIGN}").replace("+0°", "0°")
