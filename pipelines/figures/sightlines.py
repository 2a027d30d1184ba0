"""Extinction along a few directions, with its bands and the stars near them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pipelines.base.quantiles import WIDTH_95
from pipelines.figures.labels import extinction_label
from pipelines.figures.page import DOUBLE, NARROW, Page, sheet
from pipelines.figures.style import BLUE, NORMAL, ORANGE, SMALL, length_unit
from pipelines.maps.cube import LineOfSight

_ASPECT = 0.56
_LEGEND = 6.0
_OUTLIER = 5.0
_BANDS = ((WIDTH_95, 0.18, "95%"), (1.0, 0.36, "68%"))


def lines_of_sight(
    lines: Sequence[LineOfSight], *, width: float = DOUBLE, band: str = ""
) -> Page:
    """Draw mean or median, 68% and 95% bands, nearby stars, and truth where known.

    A line without quantiles is drawn as normal, with its mean and multiples of its std.
    A star outside a panel's limits is counted
    in its title; where the last star stands that a line passes, a line is dotted.

    Raises
    ------
    ValueError
        If there is no line.
    """
    if not lines:
        raise ValueError("expected at least one line of sight")
    columns = 1 if width < NARROW else min(len(lines), 3 if len(lines) > 4 else 2)
    page, every = sheet(
        len(lines),
        _ASPECT if columns < 3 else 0.8,
        columns=columns,
        width=width,
        header=_LEGEND,
        bars=False,
    )
    factor, unit = length_unit(max(float(line.distance.max()) for line in lines))
    handles: dict[str, Any] = {}
    for number, (axes, line) in enumerate(zip(every, lines)):
        handles.update(_draw(axes, line, factor))
        if number + columns >= len(lines):
            axes.set_xlabel(f"distance [{unit}]", fontsize=NORMAL, labelpad=2.0)
        if number % columns == 0:
            axes.set_ylabel(extinction_label(band), fontsize=NORMAL, labelpad=2.0)
    page.legend(
        list(handles.values()),
        list(handles),
        loc="upper center",
        ncols=len(handles) if width >= NARROW else 3,
        fontsize=SMALL,
        frameon=False,
        borderaxespad=0.2,
        handlelength=1.8,
        columnspacing=1.4,
    )
    return page


def _draw(axes: Axes, line: LineOfSight, factor: float) -> dict[str, Any]:
    distance = line.distance * factor
    curve, bands, name = _curves(line)
    handles: dict[str, Any] = {}
    (handles[name],) = axes.plot(distance, curve, color=BLUE, linewidth=1.1, zorder=3)
    for (_, opacity, named), (low, high) in zip(_BANDS, bands):
        handles[named] = axes.fill_between(
            distance, low, high, color=BLUE, alpha=opacity, linewidth=0, zorder=2
        )
    if line.truth is not None:
        (handles["truth"],) = axes.plot(
            distance, line.truth, color="black", linewidth=0.9, dashes=(4, 2), zorder=4
        )
    if len(line.star_distance):
        handles["stars nearby"] = axes.errorbar(
            line.star_distance * factor,
            line.star_extinction,
            yerr=line.star_error,
            fmt="o",
            markersize=2.0,
            color=ORANGE,
            ecolor=ORANGE,
            elinewidth=0.5,
            alpha=0.75,
            zorder=2.5,
        )
    last = line.last_star
    if last is not None and last < line.distance[np.isfinite(curve)].max(initial=0.0):
        handles["last star"] = axes.axvline(
            last * factor, color="0.35", linewidth=0.8, linestyle="dotted", zorder=1.5
        )
    axes.tick_params(labelsize=SMALL)
    axes.axhline(0.0, color="0.6", linewidth=0.5, zorder=1)
    outside = _limit(axes, line, factor)
    axes.set_title(_direction(line, outside), fontsize=SMALL, pad=2.5)
    return handles


def _curves(
    line: LineOfSight,
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]], str]:
    """The curve, its 95% and 68% bands, and the curve's name."""
    if line.median is not None and line.outer is not None and line.inner is not None:
        return line.median, [line.outer, line.inner], "posterior median"
    bands = [(line.mean - w * line.std, line.mean + w * line.std) for w, *_ in _BANDS]
    return line.mean, bands, "posterior mean"


def _limit(axes: Axes, line: LineOfSight, factor: float) -> int:
    """Fit the panel to all but the most extreme stars; returns how many are outside."""
    curve, bands, _ = _curves(line)
    curves = list(bands[0 if line.median is None else 1])
    if line.truth is not None:
        curves.append(line.truth)
    far = float(line.distance.max())
    curves.append(_unexceptional(line, curve, far))
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
    )
    return int(outside.sum())


def _unexceptional(line: LineOfSight, curve: np.ndarray, far: float) -> np.ndarray:
    """Extinctions of the stars in reach whose residual is not an outlier."""
    near = line.star_distance <= far
    stars = line.star_extinction[near]
    if not len(stars):
        return stars
    known = np.isfinite(curve)
    predicted = np.interp(line.star_distance[near], line.distance[known], curve[known])
    residual = stars - predicted - np.median(stars - predicted)
    spread = 1.4826 * np.median(np.abs(residual))
    return stars[np.abs(residual) <= _OUTLIER * spread]


def _direction(line: LineOfSight, outside: int) -> str:
    sign = "+" if round(line.b, 1) > 0 else ""
    latitude = f"{sign}{line.b:.1f}°".replace("-", "\N{MINUS SIGN}")
    direction = f"$l$ = {line.l:.1f}°, $b$ = {latitude}"
    if not len(line.star_distance):
        return direction
    beyond = f" ({outside} outside)" if outside else ""
    return f"{direction}; stars within {line.radius:g}°{beyond}"
