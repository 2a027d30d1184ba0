"""Comparison of two maps at the same places."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from pipelines.base.errors import InputError
from pipelines.base.table import Row, Table
from pipelines.compare.comparison import Comparison
from pipelines.figures import style
from pipelines.maps.answers import named
from pipelines.maps.opening import open_other, open_run
from pipelines.maps.places import Places
from pipelines.maps.queried import QueriedMap
from pipelines.run.folder import Run

# Fewest places for a correlation.
_FEWEST_PLACES = 10
_UNITS = {"extinction": "mag", "density": "mag/pc"}
_COLUMNS = {"median": "p50", "mean": "mean"}


class Pairs(NamedTuple):
    """Two maps at the same places, all of shape ``(n,)``: extinctions or densities."""

    own: np.ndarray
    std: np.ndarray
    other: np.ndarray


def compare_map(
    run: Run,
    other: Any,
    *,
    integrated: bool | None = None,
    factor: float | None = None,
    query: dict[str, Any] | None = None,
    points: int = 5000,
    generator: np.random.Generator,
) -> Comparison:
    """Compare the map with another map in cells with sight lines.

    Densities of the other map are averaged over 27 places in each cell. Cells outside
    the other map are counted and skipped. ``points`` is the largest number of cells,
    drawn at random; other arguments are those of `open_other`.

    Raises `InputError` if the maps have too few cells in common.
    """
    spacing = run.plan.grid.spacing
    own = open_run(run.path)
    about = {"factor": factor, "integrated": integrated, "query": query}
    second, times = open_other(other, own, **about, step=min(spacing))
    shown = second.scale if isinstance(second, QueriedMap) else times
    scale = f"{shown:.5g} times the values of {second.path.name}"
    cells, seen = seen_cells(run, points, generator)
    if not seen:
        raise InputError(
            f"{run.path}: no cell of the map is crossed by a sight line, expected one "
            "or more"
        )
    offsets = (-1 / 3, 0.0, 1 / 3)
    mesh = np.stack(np.meshgrid(*[offsets] * 3, indexing="ij"), axis=-1)
    places = Places.of_points(cells[:, None] + mesh.reshape(-1, 3) * np.array(spacing))
    density = places.restore(second.median_or_mean(places, integrated=False))
    extinction = second.median_or_mean(Places.of_points(cells), integrated=True)
    others = {"extinction": times * extinction, "density": times * density.mean(axis=1)}
    known = np.isfinite(list(others.values())).all(axis=0)
    counts = {
        "cells": int(run.support.numel()),
        "seen by stars": seen,
        "asked": len(cells),
        "known to both": int(known.sum()),
    }
    if known.sum() < _FEWEST_PLACES:
        raise InputError(
            f"the other map knows {counts['known to both']} of the {len(cells)} chosen "
            f"cells, expected at least {_FEWEST_PLACES}: choose a map of the same "
            "volume"
        )
    at = Places.of_points(cells[known])
    distance = np.linalg.norm(cells[known], axis=1)
    pairs, columns = {}, {"distance": distance}
    for what in _UNITS:
        kinds, integral = (*_COLUMNS.values(), "std"), what == "extinction"
        found, theirs = own.moments(at, kinds, integrated=integral), others[what][known]
        for kind, column in _COLUMNS.items():
            pairs[what, kind] = Pairs(found[column], found["std"], theirs)
            columns[f"{what}_{kind}"] = found[column]
            columns |= {f"{what}_std": found["std"], f"{what}_other": theirs}
    figures = {f"{what}, {kind}": _figures(*p) for (what, kind), p in pairs.items()}
    medians = {what: pairs[what, "median"] for what in _UNITS}
    by_distance: list[Row] = []
    listed = ("correlation", "rank correlation", "ratio of means", "RMS difference")
    listed += ("median std of the map", "within 1 std")
    # Six equally full bins.
    for low, high in pairwise(np.quantile(distance, np.linspace(0, 1, 7))):
        chosen = (distance >= low) & (distance <= high)
        if chosen.sum() < _FEWEST_PLACES:
            continue
        row: Row = {"from [pc]": float(low), "to [pc]": float(high)}
        row["places"] = int(chosen.sum())
        for what, each in medians.items():
            part = _figures(*(column[chosen] for column in each))
            row |= {f"{what}: {name}": part[name] for name in listed}
        by_distance.append(row)
    # Only the mean density integrates to the extinction.
    drawn = _drawn(medians["extinction"], pairs["density", "mean"], distance, scale)
    return Comparison(
        kind="map",
        numbers={
            "scale": scale,
            "maps": second.origins(),
            "counts": counts,
            **figures,
            "by_distance": by_distance,
        },
        tables={
            "summary": Table.of_rows(
                [
                    {"what": f"{name} [{_UNITS[name.partition(',')[0]]}]", **row}
                    for name, row in figures.items()
                ]
            ),
            "by_distance": Table.of_rows(by_distance),
            "places": Table(columns=columns),
        },
        shown=("summary", "by_distance"),
        words=(
            f"Cells: {counts['cells']}, of which sight lines cross {seen}; "
            f"{counts['asked']} were chosen, and {counts['known to both']}, in the "
            "other map's box and footprint, compared.",
            *(f"The other map: {named(one)}." for one in second.origins()),
            f"Scale: {scale}. Slope (of this map on the other) and ratio "
            "of means carry the scales of both maps. The median of a skew posterior "
            "lies below its mean, most where little is known.",
            "Extinctions correlate because both grow with distance: read the bins. The "
            f"correlation of densities ({figures['density, median']['correlation']:.2f}"
            ") is what the map knows along its lines, by many cells of few structures.",
            "The other map is taken as exact: its errors are not in 'within 1 std'. "
            "Maps that share stars are not independent.",
        ),
        figures={"maps": drawn},
    )


def seen_cells(
    run: Run, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, int]:
    """Return centres [pc] of up to ``count`` cells with sight lines, and the total.

    The outermost layer, whose cells extend beyond the box, and the cells around the
    observer are skipped.
    """
    grid = run.plan.grid
    index = np.argwhere(run.support.numpy()[1:-1, 1:-1, 1:-1] > 0) + 1
    points = np.array(grid.origin) + index * np.array(grid.spacing)
    points = points[np.linalg.norm(points, axis=1) > max(grid.spacing)]
    total = len(points)
    if total > count:
        points = points[np.sort(generator.permutation(total)[:count])]
    return points, total


def _figures(own: np.ndarray, std: np.ndarray, other: np.ndarray) -> Row:
    """Compute correlations, slope and differences of own against other."""
    difference = own - other
    correlation = rank = slope = np.nan
    if np.ptp(own) > 0 and np.ptp(other) > 0:
        correlation = float(np.corrcoef(own, other)[0, 1])
        rank = float(cast(Any, spearmanr(own, other)).statistic)
        slope = float(np.cov(own, other)[0, 1] / other.var(ddof=1))
    return {
        "places": len(own),
        "correlation": correlation,
        "rank correlation": rank,
        "slope": slope,
        "ratio of means": float(own.mean() / other.mean()) if other.mean() else np.nan,
        "mean difference": float(difference.mean()),
        "RMS difference": float(np.sqrt(np.mean(difference**2))),
        "scatter of the other": float(other.std()),
        "median std of the map": float(np.median(std)),
        "within 1 std": float(np.mean(np.abs(difference) <= std)),
        "within 2 std": float(np.mean(np.abs(difference) <= 2 * std)),
    }


@style.styled
def _drawn(
    extinction: Pairs, density: Pairs, distance: np.ndarray, scale: str
) -> Figure:
    """Draw both maps against each other, and their differences by distance.

    The std is that of extinctions only: that of densities is of points, not of cells.
    """
    figure = Figure(figsize=(7.8, 6.8), layout="constrained")
    panels = figure.subplots(2, 2).T
    both = zip(_UNITS, (extinction, density), (1.0, 1e3), ("mag", "mag/kpc"))
    for (upper, lower), (what, pairs, factor, unit) in zip(panels, both):
        own, other = factor * pairs.own, factor * pairs.other
        _against_each_other(upper, own, other, f"{what} [{unit}]")
        std = pairs.std if what == "extinction" else None
        _against_distance(lower, distance, own - other, std)
        style.label(lower, "distance [pc]", f"difference in {what} [{unit}]")
    figure.suptitle(f"other map: {scale}")
    return figure


def _against_each_other(
    axes: Axes, own: np.ndarray, other: np.ndarray, name: str
) -> None:
    low, high = np.percentile(np.concatenate([own, other]), style.RANGE)
    low, high = min(float(low), 0.0), float(high) or 1.0
    bins = {"gridsize": 45, "extent": (low, high, low, high), "mincnt": 1}
    image = axes.hexbin(other, own, norm=LogNorm(), cmap="cividis", **bins)
    axes.plot([low, high], [low, high], color=style.ORANGE, linewidth=1.0)
    axes.set(xlim=(low, high), ylim=(low, high))
    bar = axes.figure.colorbar(image, ax=axes, label="cells")
    bar.ax.tick_params(labelsize=style.SMALL)
    both = np.stack([own, other])
    out = int(((both > high) | (both < low)).any(axis=0).sum())
    style.label(axes, f"other map: {name}", f"this map: {name}")
    style.note(axes, f"{out} of {len(own)} cells outside")


def _against_distance(
    axes: Axes, distance: np.ndarray, difference: np.ndarray, std: np.ndarray | None
) -> None:
    """Draw quantiles of the difference and the std, in 12 equally full bins."""
    bins = np.array_split(np.argsort(distance), min(12, len(distance)))
    middle = [np.median(distance[b]) for b in bins]
    quantiles = [np.percentile(difference[b], (16, 50, 84)) for b in bins]
    low, mid, high = np.transpose(quantiles)
    look = {"color": style.BLUE, "alpha": 0.25, "linewidth": 0}
    axes.fill_between(middle, low, high, label="16 to 84%", **look)
    axes.plot(middle, mid, color=style.BLUE, linewidth=1.3, label="median")
    if std is not None:
        spread = np.array([np.median(std[b]) for b in bins])
        look = {"linestyle": "--", "color": style.PURPLE, "linewidth": 1.0}
        axes.plot(middle, spread, label="± the map's median std", **look)
        axes.plot(middle, -spread, **look)
    axes.axhline(0.0, color="0.6", linewidth=0.6)
    axes.legend()
