"""Extinction along a few directions, with its bands and the stars near them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from pipelines.base.quantiles import WIDTH_95
from pipelines.cubes.sky import Band, LineOfSight
from pipelines.figures.style import (
    BLUE,
    DOUBLE,
    LABEL,
    NARROW,
    NORMAL,
    ORANGE,
    POINT,
    SMALL,
    Margins,
    Page,
    extinction_label,
    length_unit,
    sheet,
)

# Of curves under a title.
_MARGINS = Margins(left=14.0, right=4.0, between=9.5, top=5.0, bottom=9.5)
# Height kept free for the legend [mm].
_LEGEND = 6.0
# By how much titles, which are wider than panels, clear a label at the axis' end [mm].
_CLEAR = 0.8
# Robust standard deviations beyond which a star does not set a panel's limits.
_OUTLIER = 5.0
_OPACITY = {"95%": 0.18, "68%": 0.36}


def lines_of_sight(
    lines: Sequence[LineOfSight], *, width: float = DOUBLE, band: str = ""
) -> Page:
    """Draw mean or median, 68% and 95% bands, nearby stars, and truth where known.

    A line without quantiles is drawn as normal, with its mean and multiples of its std.
    A star outside a panel's limits is counted in its title; a dotted line marks the
    last star that a ray passes.

    Raises
    ------
    ValueError
        If there is no line.
    """
    if not lines:
        raise ValueError("expected at least one line of sight")
    columns = 1 if width < NARROW else min(len(lines), 3 if len(lines) > 4 else 2)
    shown = [_curves(line) for line in lines]
    titles = [_title(line, curves) for line, curves in zip(lines, shown)]
    titles, extra = _MARGINS.wrapped(titles, columns, width, SMALL)
    page, every = sheet(
        len(lines),
        0.56 if columns < 3 else 0.8,
        _MARGINS._replace(top=_MARGINS.top + extra + _CLEAR),
        columns=columns,
        width=width,
        header=_LEGEND if width >= NARROW else _LEGEND + LABEL,
    )
    factor, unit = length_unit(max(float(line.distance.max()) for line in lines))
    handles: dict[str, Any] = {}
    for number, (axes, line, curves) in enumerate(zip(every, lines, shown)):
        handles.update(_draw(axes, line, curves, factor))
        axes.set_title(titles[number], fontsize=SMALL, pad=2.5 + _CLEAR / POINT)
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


class _Curves(NamedTuple):
    """The curve of a line and its bands from the Sun on, and limits of its panel [mag].

    Limits hold the curves and all but the most extreme stars.
    """

    distance: np.ndarray
    name: str
    curve: np.ndarray
    bands: dict[str, Band]
    low: float
    high: float


def _curves(line: LineOfSight) -> _Curves:
    """Return the median or mean of a line, from 0 mag at 0 pc, and what it needs."""
    if line.median is not None and line.outer is not None and line.inner is not None:
        name, curve = "posterior median", line.median
        bands = {"95%": line.outer, "68%": line.inner}
    else:
        name, curve = "posterior mean", line.mean
        bands = {
            share: (line.mean - width * line.std, line.mean + width * line.std)
            for share, width in (("95%", WIDTH_95), ("68%", 1.0))
        }
    distance = line.distance
    if distance[0] != 0:
        distance, curve = np.append(0.0, distance), np.append(0.0, curve)
        bands = {
            share: (np.append(0.0, low), np.append(0.0, high))
            for share, (low, high) in bands.items()
        }
    shown = list(bands["95%" if line.median is None else "68%"])
    if line.truth is not None:
        shown.append(line.truth)
    near = line.star_distance <= distance.max()
    if near.any():
        known, stars = np.isfinite(curve), line.star_extinction[near]
        predicted = np.interp(line.star_distance[near], distance[known], curve[known])
        residual = stars - predicted - np.median(stars - predicted)
        spread = 1.4826 * np.median(np.abs(residual))
        shown.append(stars[np.abs(residual) <= _OUTLIER * spread])
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    low, high = min(0.0, values.min(initial=0.0)), values.max(initial=0.0) or 1.0
    margin = 0.06 * (high - low)
    ends = float(low - margin), float(high + margin)
    return _Curves(distance, name, curve, bands, *ends)


def _draw(
    axes: Axes, line: LineOfSight, shown: _Curves, factor: float
) -> dict[str, Any]:
    """Draw one line; return the handles of its legend by their names."""
    distance, curve = shown.distance * factor, shown.curve
    handles: dict[str, Any] = {}
    (handles[shown.name],) = axes.plot(distance, curve, color=BLUE, lw=1.1, zorder=3)
    for share, (low, high) in shown.bands.items():
        handles[share] = axes.fill_between(
            distance, low, high, color=BLUE, alpha=_OPACITY[share], lw=0, zorder=2
        )
    if line.truth is not None:
        (handles["truth"],) = axes.plot(
            line.distance * factor,
            line.truth,
            color="black",
            linewidth=0.9,
            dashes=(4, 2),
            zorder=4,
        )
    if len(line.star_distance):
        handles["stars nearby"] = axes.errorbar(
            line.star_distance * factor,
            line.star_extinction,
            yerr=line.star_error,
            fmt="o",
            markersize=2.0,
            color=ORANGE,
            elinewidth=0.5,
            alpha=0.75,
            zorder=2.5,
        )
    last = line.last_star
    if last is not None and last * factor < distance[np.isfinite(curve)].max():
        handles["last star"] = axes.axvline(
            last * factor, color="0.35", linewidth=0.8, linestyle="dotted", zorder=1.5
        )
    axes.tick_params(labelsize=SMALL)
    axes.axhline(0.0, color="0.6", linewidth=0.5, zorder=1)
    axes.set_ylim(shown.low, shown.high)
    axes.set_xlim(0.0, float(line.distance.max()) * factor)
    return handles


def _title(line: LineOfSight, shown: _Curves) -> str:
    """Write the direction, the reach of stars, and the number outside the panel."""
    sign = "+" if round(line.b, 1) > 0 else ""
    latitude = f"{sign}{line.b:.1f}°".replace("-", "\N{MINUS SIGN}")
    direction = f"$l$ = {line.l:.1f}°, $b$ = {latitude}"
    if not len(line.star_distance):
        return direction
    stars, far = line.star_extinction, line.star_distance > line.distance.max()
    outside = int((far | (stars < shown.low) | (stars > shown.high)).sum())
    beyond = f" ({outside} outside)" if outside else ""
    return f"{direction}; stars within {line.radius:g}°{beyond}"
