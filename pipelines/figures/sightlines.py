"""Extinction along a few directions, with its bands and the stars near them."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.export.cube import LineOfSight
from pipelines.figures.style import BLUE, NORMAL, ORANGE, SMALL, length_unit

_COLUMNS = 2
_OUTLIER = 5.0
_BANDS = ((1.96, 0.18, "95%"), (1.0, 0.36, "68%"))


def lines_of_sight(lines: list[LineOfSight]) -> Figure:
    """Draw mean, 68% and 95% bands, stars with error bars, and truth where known.

    A star outside a panel's limits is counted in the panel.

    Raises
    ------
    ValueError
        If there is no line.
    """
    if not lines:
        raise ValueError("expected at least one line of sight")
    columns = min(_COLUMNS, len(lines))
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(3.7 * columns + 0.4, 2.5 * rows + 0.5))
    figure.set_layout_engine("constrained")
    reach = max(float(line.distance.max()) for line in lines)
    factor, unit = length_unit(reach)
    handles: dict[str, Any] = {}
    for number, line in enumerate(lines):
        axes = figure.add_subplot(rows, columns, number + 1)
        handles.update(_draw(axes, line, factor))
        if number + columns >= len(lines):
            axes.set_xlabel(f"distance [{unit}]", fontsize=NORMAL)
        if number % columns == 0:
            axes.set_ylabel("extinction [mag]", fontsize=NORMAL)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=len(handles),
        fontsize=SMALL,
        frameon=False,
    )
    return figure


def _draw(axes: Axes, line: LineOfSight, factor: float) -> dict[str, Any]:
    distance = line.distance * factor
    handles: dict[str, Any] = {}
    (handles["posterior mean"],) = axes.plot(
        distance, line.mean, color=BLUE, linewidth=1.4, zorder=3
    )
    for width, opacity, name in reversed(_BANDS):
        low, high = line.mean - width * line.std, line.mean + width * line.std
        handles[name] = axes.fill_between(
            distance, low, high, color=BLUE, alpha=opacity, linewidth=0, zorder=2
        )
    if line.truth is not None:
        (handles["truth"],) = axes.plot(
            distance, line.truth, color="black", linewidth=1.1, dashes=(4, 2), zorder=4
        )
    if len(line.star_distance):
        handles["stars nearby"] = axes.errorbar(
            line.star_distance * factor,
            line.star_extinction,
            yerr=line.star_error,
            fmt="o",
            markersize=2.6,
            color=ORANGE,
            ecolor=ORANGE,
            elinewidth=0.6,
            alpha=0.75,
            zorder=2.5,
        )
    axes.set_title(_direction(line), fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.axhline(0.0, color="0.6", linewidth=0.6, zorder=1)
    _limit(axes, line, factor)
    return handles


def _limit(axes: Axes, line: LineOfSight, factor: float) -> None:
    """Fit the panel to the map and to all but the most extreme stars."""
    curves = [line.mean - 1.96 * line.std, line.mean + 1.96 * line.std]
    if line.truth is not None:
        curves.append(line.truth)
    far = float(line.distance.max())
    curves.append(_unexceptional(line, far))
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    low, high = (min(0.0, values.min()), values.max()) if values.size else (0.0, 1.0)
    margin = 0.06 * ((high - low) or 1.0)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0.0, far * factor)
    outside = (
        (line.star_distance > far)
        | (line.star_extinction < low - margin)
        | (line.star_extinction > high + margin)
    ).sum()
    if outside:
        axes.text(
            0.02,
            0.97,
            f"{outside} star{'s' if outside > 1 else ''} outside the panel",
            transform=axes.transAxes,
            va="top",
            fontsize=SMALL - 1,
            color="0.3",
        )


def _unexceptional(line: LineOfSight, far: float) -> np.ndarray:
    """Extinctions of the stars in reach whose residual is not an outlier."""
    near = line.star_distance <= far
    stars = line.star_extinction[near]
    if not len(stars):
        return stars
    known = np.isfinite(line.mean)
    predicted = np.interp(
        line.star_distance[near], line.distance[known], line.mean[known]
    )
    residual = stars - predicted - np.median(stars - predicted)
    spread = 1.4826 * np.median(np.abs(residual))
    return stars[np.abs(residual) <= _OUTLIER * spread]


def _direction(line: LineOfSight) -> str:
    latitude = f"{line.b:+.1f}°".replace("-", "\N{MINUS SIGN}")
    radius = f", stars within {line.radius:g}°" if len(line.star_distance) else ""
    return f"$l$ = {line.l:.1f}°, $b$ = {latitude}{radius}"
