"""Figures of a map along lines of sight: published profiles, and clouds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.figures.panels import label, panels
from pipelines.figures.style import (
    BLACK,
    BLUE,
    NORMAL,
    ORANGE,
    SMALL,
    length_unit,
    outline,
)

if TYPE_CHECKING:
    from pipelines.compare.clouds import ValidatedCloud
    from pipelines.compare.lines import ValidatedLine

# Up to so many clouds are numbered; what a number takes, and how far up or down the
# next one goes that would lie on it, as shares of the panel.
_NAMED = 30
_LETTERS = np.array([0.025, 0.026])
_ROW = np.array([0.0, 0.027])


def line_figure(judged: Sequence[ValidatedLine], scale: str) -> Figure:
    """One panel per line: map and reference with their errors; what is not judged."""
    figure, places = panels(-(-len(judged) // 2), min(2, len(judged)), height=2.3)
    for axes in places[len(judged) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, each in zip(places, judged):
        handles.update(_line(axes, each))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=len(handles),
        fontsize=SMALL,
        frameon=False,
        title=scale,
        title_fontsize=SMALL,
    )
    return figure


def _line(axes: Axes, each: ValidatedLine) -> dict[str, Any]:
    factor, unit = length_unit(each.reach)
    place = each.fine_distance * factor
    handles: dict[str, Any] = {}
    low, median, high = each.fine_quantiles
    (handles["map, median"],) = axes.plot(place, median, color=BLUE, linewidth=1.3)
    handles["68%"] = axes.fill_between(
        place, low, high, color=BLUE, alpha=0.25, linewidth=0
    )
    near = each.line.distance <= each.reach
    handles["published, std of samples"] = axes.errorbar(
        each.line.distance[near] * factor,
        each.best[near],
        yerr=each.spread[near],
        fmt="o",
        color=ORANGE,
        markersize=2.6,
        elinewidth=0.9,
    )
    handles |= _not_judged(axes, each, factor)
    axes.set_xlim(0.0, each.reach * factor)
    axes.set_title(each.line.name.replace("-", "\N{MINUS SIGN}"), fontsize=NORMAL)
    label(axes, f"distance [{unit}]", "extinction [mag]")
    return handles


def _not_judged(axes: Axes, each: ValidatedLine, factor: float) -> dict[str, Any]:
    """Shade what the reference or the map has not been told."""
    far = min(each.informed, each.line.far, each.reach)
    handles: dict[str, Any] = {}
    for low, high in ((0.0, each.line.near), (far, each.reach)):
        if high > low:
            handles["not judged"] = axes.axvspan(
                low * factor, min(high, each.reach) * factor, color="0.88", zorder=0
            )
    return handles


def cloud_figure(judged: Sequence[ValidatedCloud]) -> Figure:
    """Where the density peaks against where the clouds are."""
    named = len(judged) <= _NAMED
    figure, (axes,) = panels(1, 1, width=7.1 if named else 5.2, height=4.8)
    distance = np.array([each.cloud.distance for each in judged])
    peak = np.array([each.peak for each in judged])
    found = np.array([each.hit(each.cloud.distance, each.tolerance) for each in judged])
    width = np.array([each.tolerance for each in judged])
    far = 1.1 * float(np.nanmax(np.concatenate([distance, peak])))
    axes.plot([0, far], [0, far], color=BLACK, linewidth=0.9)
    _peaks_of_samples(axes, judged)
    for chosen, colour, marker, name in (
        (found, BLUE, "o", "largest peak within the tolerance"),
        (~found & np.isfinite(peak), ORANGE, "^", "largest peak elsewhere"),
    ):
        axes.errorbar(
            distance[chosen],
            peak[chosen],
            xerr=width[chosen],
            fmt=marker,
            color=colour,
            markersize=5,
            elinewidth=0.8,
            label=f"{name}: {int(chosen.sum())}",
        )
    axes.set_xlim(0, far)
    axes.set_ylim(0, far)
    axes.set_aspect("equal")
    axes.legend(
        fontsize=SMALL,
        frameon=False,
        ncols=1,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
    )
    label(axes, "distance of the cloud [pc]", "largest peak of the density [pc]")
    if named:
        _number(axes, judged, far)
    return figure


def _number(axes: Axes, judged: Sequence[ValidatedCloud], far: float) -> None:
    """Number the clouds by distance, with their names beside the panel."""
    placed: list[np.ndarray] = []
    names = []
    for number, each in enumerate(sorted(judged, key=lambda j: j.cloud.distance), 1):
        names.append(f"{number:2d}  {each.cloud.name}")
        if not np.isfinite(each.peak):
            names[-1] += " (no peak)"
            continue
        place = np.array([each.cloud.distance, each.peak])
        shifts = (
            place + _ROW * rows * far for rows in (0, -2.4, 1, -3.4, *range(2, 99))
        )
        free = (
            shifted
            for shifted in shifts
            if shifted[1] > 0
            and not any((np.abs(shifted - p) < _LETTERS * far).all() for p in placed)
        )
        placed.append(next(free))
        axes.annotate(
            str(number),
            (float(placed[-1][0]), float(placed[-1][1])),
            (0.0, 4.0),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=SMALL - 1,
            path_effects=outline(1.6),
        )
    axes.text(
        1.03, 1.0, "\n".join(names), transform=axes.transAxes, va="top",
        fontsize=SMALL, linespacing=1.35,
    )  # fmt: skip


def _peaks_of_samples(axes: Axes, judged: Sequence[ValidatedCloud]) -> None:
    for number, each in enumerate(judged):
        drawn = each.peaks_of_samples
        axes.plot(
            np.full(len(drawn), each.cloud.distance),
            drawn,
            "_",
            color="0.7",
            markersize=5,
            zorder=1,
            label=None if number else "peaks of the samples",
        )
