"""Figure of a map at clouds of known distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.figures.panels import label, panels
from pipelines.figures.style import BLACK, BLUE, ORANGE, SMALL, outline

if TYPE_CHECKING:
    from pipelines.compare.clouds import ValidatedCloud

# Up to so many clouds are numbered; the share of the panel that a number takes.
_NAMED, _LETTERS = 30, 0.026


def cloud_figure(judged: Sequence[ValidatedCloud]) -> Figure:
    """Where the density peaks against where the clouds are."""
    judged = sorted(judged, key=lambda each: each.cloud.distance)
    named = len(judged) <= _NAMED
    figure, (axes,) = panels(1, 1, width=7.1 if named else 5.2, height=4.8)
    places = np.array([(each.cloud.distance, each.peak) for each in judged])
    far = 1.1 * float(np.nanmax(places))
    axes.plot([0, far], [0, far], color=BLACK, linewidth=0.9)
    peaks = [(e.cloud.distance, peak) for e in judged for peak in e.peaks_of_samples]
    style = {"color": "0.7", "markersize": 5, "zorder": 1}
    axes.plot(*np.array(peaks).T, "_", label="peaks of the samples", **style)
    found = np.array([each.found for each in judged])
    width = np.array([each.tolerance for each in judged])
    for chosen, colour, marker, name in (
        (found, BLUE, "o", "largest peak within the tolerance"),
        (~found & np.isfinite(places[:, 1]), ORANGE, "^", "largest peak elsewhere"),
    ):
        axes.errorbar(
            *places[chosen].T,
            xerr=width[chosen],
            fmt=marker,
            color=colour,
            markersize=5,
            elinewidth=0.8,
            label=f"{name}: {int(chosen.sum())}",
        )
    axes.set(xlim=(0, far), ylim=(0, far), aspect="equal")
    axes.legend(
        fontsize=SMALL,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
    )
    label(axes, "distance of the cloud [pc]", "largest peak of the density [pc]")
    if named:
        _number(axes, [each.cloud.name for each in judged], places, far)
    return figure


def _number(axes: Axes, names: list[str], places: np.ndarray, far: float) -> None:
    """Number the clouds in order, with their names beside the panel."""
    lines, spots, room = [], [], _LETTERS * far
    for number, (name, place) in enumerate(zip(names, places), 1):
        lines.append(f"{number:2d}  {name}")
        if not np.isfinite(place).all():
            lines[-1] += " (no peak)"
            continue
        spot = place.copy()
        while any((np.abs(spot - other) < room).all() for other in spots):
            spot[1] += room
        spots.append(spot)
        axes.annotate(
            str(number),
            spot,
            (0.0, 4.0),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL - 1,
            path_effects=outline(1.6),
        )
    axes.text(
        1.03, 1.0, "\n".join(lines), transform=axes.transAxes, va="top",
        fontsize=SMALL, linespacing=1.35,
    )  # fmt: skip
