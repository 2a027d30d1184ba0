"""Figure of a map along published lines of sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.figures.panels import label, panels
from pipelines.figures.style import BLUE, NORMAL, ORANGE, SMALL, length_unit

if TYPE_CHECKING:
    from pipelines.compare.lines import ValidatedLine


def line_figure(judged: Sequence[ValidatedLine], scale: str) -> Figure:
    """One panel per line: map and reference with their errors; what is not judged."""
    figure, places = panels(-(-len(judged) // 2), min(2, len(judged)), height=2.3)
    for axes in places[len(judged) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, each in zip(places, judged):
        handles |= _line(axes, each)
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
    """Draw a line; what the legend says of it."""
    factor, unit = length_unit(each.reach)
    place, line = each.fine_distance * factor, each.line
    handles: dict[str, Any] = {}
    low, median, high = each.fine_quantiles
    (handles["map, median"],) = axes.plot(place, median, color=BLUE, linewidth=1.3)
    handles["68%"] = axes.fill_between(
        place, low, high, color=BLUE, alpha=0.25, linewidth=0
    )
    near = line.distance <= each.reach
    handles["published, std of samples"] = axes.errorbar(
        line.distance[near] * factor,
        line.best[near],
        yerr=line.spread[near],
        fmt="o",
        color=ORANGE,
        markersize=2.6,
        elinewidth=0.9,
    )
    known = min(each.informed, line.far, each.reach)
    for start, end in ((0.0, min(line.near, each.reach)), (known, each.reach)):
        if end > start:
            handles["not judged"] = axes.axvspan(
                start * factor, end * factor, color="0.88", zorder=0
            )
    axes.set_xlim(0.0, each.reach * factor)
    axes.set_title(line.name.replace("-", "\N{MINUS SIGN}"), fontsize=NORMAL)
    label(axes, f"distance [{unit}]", "extinction [mag]")
    return handles
