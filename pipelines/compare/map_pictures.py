"""A figure of two maps at the same places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from pipelines.figures.panels import RANGE, label, note, panels
from pipelines.figures.style import BLUE, ORANGE, PURPLE, SMALL

if TYPE_CHECKING:
    from pipelines.compare.pairs import Pairs


def map_figure(extinction: Pairs, density: Pairs, scale: str) -> Figure:
    """Both maps at the same places, and by distance."""
    figure, places = panels(2, 2)
    _pairs(places[0], extinction, "extinction [mag]")
    _pairs(places[1], density, "density [mag/kpc]", factor=1e3)
    _against_distance(places[2], extinction, "difference in extinction [mag]")
    _against_distance(places[3], density, "difference in density [mag/kpc]", factor=1e3)
    if scale:
        figure.suptitle(f"other map: {scale}", fontsize=SMALL)
    return figure


def _pairs(axes: Axes, pairs: Pairs, name: str, *, factor: float = 1.0) -> None:
    own, other = pairs.own * factor, pairs.other * factor
    high = float(np.percentile(np.concatenate([own, other]), RANGE[1])) or 1.0
    low = min(float(np.percentile(np.concatenate([own, other]), RANGE[0])), 0.0)
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
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("cells", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    out = int(((own > high) | (other > high) | (own < low) | (other < low)).sum())
    label(axes, f"other map: {name}", f"this map: {name}")
    note(axes, f"{out} of {len(own)} cells outside")


def _against_distance(
    axes: Axes, pairs: Pairs, name: str, *, factor: float = 1.0
) -> None:
    edges = np.quantile(pairs.distance, np.linspace(0, 1, 13))
    which = np.clip(np.searchsorted(edges, pairs.distance, side="right") - 1, 0, 11)
    difference = (pairs.own - pairs.other) * factor
    bins = [which == i for i in range(12)]
    middle = np.array([np.median(pairs.distance[b]) for b in bins])
    low, mid, high = (
        np.array([np.percentile(difference[b], q) for b in bins]) for q in (16, 50, 84)
    )
    spread = np.array([np.median(pairs.std[b]) for b in bins]) * factor
    axes.fill_between(
        middle, low, high, color=BLUE, alpha=0.25, linewidth=0, label="16 to 84%"
    )
    axes.plot(middle, mid, color=BLUE, linewidth=1.3, label="median")
    for sign in (-1, 1):
        legend = "± the map's median std" if sign > 0 else None
        axes.plot(
            middle, sign * spread, "--", color=PURPLE, linewidth=1.0, label=legend
        )
    axes.axhline(0.0, color="0.6", linewidth=0.6)
    axes.legend(fontsize=SMALL, frameon=False)
    label(axes, "distance [pc]", name)
