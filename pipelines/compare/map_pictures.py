"""A figure of two maps at the same places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from pipelines.figures.panels import RANGE, label, note, panels
from pipelines.figures.style import BLUE, ORANGE, PURPLE, SMALL

if TYPE_CHECKING:
    from pipelines.compare.maps import Pairs

_BINS = 12
# What is drawn in which unit, and what makes it so.
_UNITS = (("extinction", "mag", 1.0), ("density", "mag/kpc", 1e3))


def map_figure(drawn: Mapping[str, Pairs], distance: np.ndarray, scale: str) -> Figure:
    """Draw both maps at the same places, and by distance.

    The std is that of extinctions: densities have that of points, not of cells.
    """
    figure, places = panels(2, 2)
    for (what, unit, factor), above, below in zip(_UNITS, places[:2], places[2:]):
        own, std, other = (factor * column for column in drawn[what])
        _against_each_other(above, own, other, f"{what} [{unit}]")
        spread = std if what == "extinction" else None
        _against_distance(below, distance, own - other, spread)
        label(below, "distance [pc]", f"difference in {what} [{unit}]")
    if scale:
        figure.suptitle(f"other map: {scale}", fontsize=SMALL)
    return figure


def _against_each_other(
    axes: Axes, own: np.ndarray, other: np.ndarray, name: str
) -> None:
    low, high = np.percentile(np.concatenate([own, other]), RANGE)
    low, high = min(float(low), 0.0), float(high) or 1.0
    image = axes.hexbin(
        other,
        own,
        gridsize=45,
        extent=(low, high, low, high),
        norm=LogNorm(),
        mincnt=1,
        cmap="cividis",
    )
    axes.plot([low, high], [low, high], color=ORANGE, linewidth=1.0)
    axes.set(xlim=(low, high), ylim=(low, high))
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("cells", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    out = int(((own > high) | (other > high) | (own < low) | (other < low)).sum())
    label(axes, f"other map: {name}", f"this map: {name}")
    note(axes, f"{out} of {len(own)} cells outside")


def _against_distance(
    axes: Axes, distance: np.ndarray, difference: np.ndarray, std: np.ndarray | None
) -> None:
    """Quantiles of the difference, and the typical std, in bins of equally many."""
    bins = np.array_split(np.argsort(distance), min(_BINS, len(distance)))
    middle = [np.median(distance[b]) for b in bins]
    low, mid, high = np.transpose(
        [np.percentile(difference[b], (16, 50, 84)) for b in bins]
    )
    axes.fill_between(
        middle, low, high, color=BLUE, alpha=0.25, linewidth=0, label="16 to 84%"
    )
    axes.plot(middle, mid, color=BLUE, linewidth=1.3, label="median")
    if std is not None:
        spread = np.array([np.median(std[b]) for b in bins])
        style = {"linestyle": "--", "color": PURPLE, "linewidth": 1.0}
        axes.plot(middle, spread, label="± the map's median std", **style)
        axes.plot(middle, -spread, **style)
    axes.axhline(0.0, color="0.6", linewidth=0.6)
    axes.legend(fontsize=SMALL, frameon=False)
