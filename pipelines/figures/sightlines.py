"""Extinction along a few directions, with uncertainty bands and nearby stars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.base.quantiles import WIDTH_95
from pipelines.cubes.sky import LineOfSight
from pipelines.figures import style


@style.styled
def lines_of_sight(lines: Sequence[LineOfSight], *, band: str = "") -> Figure:
    """Draw mean or median, 68% and 95% bands, nearby stars, and the truth if known.

    A line without quantiles is drawn as normal, with its mean and multiples of its std.
    Titles count stars outside a panel's limits; a dotted line marks the last star along
    a ray.

    Raises `ValueError` if there is no line.
    """
    if not lines:
        raise ValueError("expected at least one line of sight")
    columns = min(len(lines), 3 if len(lines) > 4 else 2)
    aspect = 0.5 if columns == 3 else 0.4
    figure, every = style.page(len(lines), columns, aspect=aspect, layout="constrained")
    factor, unit = style.length_unit(max(float(line.distance.max()) for line in lines))
    handles: dict[str, Any] = {}
    width = 0.9 * style.PAGE / columns
    for number, (axes, line) in enumerate(zip(every, lines)):
        handles |= _draw(axes, line, factor)
        title = style.wrapped(_title(axes, line), width, style.SMALL)
        axes.set_title(title, fontsize=style.SMALL)
        axes.set_xlabel(f"distance [{unit}]")
        if number % columns == 0:
            axes.set_ylabel(style.extinction_label(band))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper center",
        ncols=len(handles),
        handlelength=1.8,
        columnspacing=1.4,
    )
    return figure


def _draw(axes: Axes, line: LineOfSight, factor: float) -> dict[str, Any]:
    """Draw one line, in units of ``factor`` parsecs; return its legend by name.

    Limits include the curves, and stars within five robust standard deviations.
    """
    arrays = line.arrays
    if "p50" in arrays:
        name, curve, reach = "posterior median", arrays["p50"], "68%"
        bands = {
            "95%": (arrays["p2_5"], arrays["p97_5"]),
            "68%": (arrays["p16"], arrays["p84"]),
        }
    else:
        name, curve, reach = "posterior mean", arrays["mean"], "95%"
        bands = {
            share: (curve - width * arrays["std"], curve + width * arrays["std"])
            for share, width in (("95%", WIDTH_95), ("68%", 1.0))
            if "std" in arrays
        }
    # Curves begin with 0 mag at 0 pc.
    from_sun = partial(np.append, [] if line.distance[0] == 0 else [0.0])
    distance, curve = from_sun(line.distance), from_sun(curve)
    handles: dict[str, Any] = {}
    (handles[name],) = axes.plot(
        distance * factor, curve, color=style.BLUE, lw=1.1, zorder=3
    )
    opacity = {"95%": 0.18, "68%": 0.36}
    for share, ends in bands.items():
        low, high = map(from_sun, ends)
        look = {"color": style.BLUE, "alpha": opacity[share], "lw": 0, "zorder": 2}
        handles[share] = axes.fill_between(distance * factor, low, high, **look)
    shown = list(bands.get(reach, (arrays.get("p50", arrays["mean"]),)))
    if line.truth is not None:
        shown.append(line.truth)
        look = {"color": style.BLACK, "linewidth": 0.9, "dashes": (4, 2), "zorder": 4}
        (handles["truth"],) = axes.plot(line.distance * factor, line.truth, **look)
    if len(line.star_distance):
        handles["stars nearby"] = axes.errorbar(
            line.star_distance * factor,
            line.star_extinction,
            yerr=line.star_error,
            fmt="o",
            markersize=2.0,
            color=style.ORANGE,
            elinewidth=0.5,
            alpha=0.75,
            zorder=2.5,
        )
        near = line.star_distance <= distance.max()
        known, stars = np.isfinite(curve), line.star_extinction[near]
        there = np.interp(line.star_distance[near], distance[known], curve[known])
        apart = stars - there
        if near.any():
            apart = np.abs(apart - np.median(apart))
            shown.append(stars[apart <= 5 * 1.4826 * np.median(apart)])
    last = line.last_star
    if last is not None and last < distance[np.isfinite(curve)].max():
        look = {"color": "0.35", "lw": 0.8, "ls": "dotted", "zorder": 1.5}
        handles["last star"] = axes.axvline(last * factor, **look)
    axes.axhline(0.0, color="0.6", linewidth=0.5, zorder=1)
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    low, high = min(0.0, values.min(initial=0.0)), values.max(initial=0.0) or 1.0
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0.0, float(line.distance.max()) * factor)
    return handles


def _title(axes: Axes, line: LineOfSight) -> str:
    """Write the direction, the reach of stars, and the number outside the panel."""
    sign = "+" if round(line.b, 1) > 0 else ""
    latitude = f"{sign}{line.b:.1f}°".replace("-", "\N{MINUS SIGN}")
    direction = f"$l$ = {line.l:.1f}°, $b$ = {latitude}"
    if not len(line.star_distance):
        return direction
    low, high = axes.get_ylim()
    out = (line.star_extinction < low) | (line.star_extinction > high)
    outside = int((out | (line.star_distance > line.distance.max())).sum())
    beyond = f" ({outside} outside)" if outside else ""
    return f"{direction}\nstars within {line.radius:g}°{beyond}"
