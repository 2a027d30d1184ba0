"""A map against another map, at the same places."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.base.geometry import spherical
from pipelines.base.measurement import Row
from pipelines.compare.comparison import Comparison, rows_of
from pipelines.compare.map_pictures import map_figure
from pipelines.compare.others import OtherMap, QueriedMap
from pipelines.compare.pairs import Pairs, figures_of
from pipelines.compare.sampling import OFFSETS, predicted_at, seen_cells
from pipelines.run.folder import Run

_BINS = 6
# Fewer places than this have no correlation worth telling.
_FEW = 10
_UNITS = {"extinction": "mag", "density": "mag/pc"}
_BY_DISTANCE = (
    "correlation",
    "rank correlation",
    "ratio of means",
    "RMS difference",
    "median std of the map",
    "within 1 std",
)


def compare_map(
    run: Run,
    other: Any,
    *,
    integrated: bool | None = None,
    factor: float = 1.0,
    options: dict[str, Any] | None = None,
    points: int = 5000,
    generator: np.random.Generator,
    scale: str = "",
) -> Comparison:
    """Hold the map against another map in the cells that stars see.

    Densities of the other map are averaged over 27 places in each cell. Where it knows
    nothing, cells are counted and left out.

    Parameters
    ----------
    other
        A map (`pipelines.compare.others`), or any object with ``.query(coordinates)``
        like those of the package dustmaps; of the latter ``integrated`` says whether
        its values are extinctions from the observer or densities, ``factor`` turns them
        into mag or mag/pc in the band of the map, and ``options`` are keywords of
        ``query``.
    points
        How many cells are drawn, at random, where there are more.
    scale
        The factor in words.

    Raises
    ------
    InputError
        If the two have too few cells in common.
    """
    asked = _asked(run, other, integrated, factor, options or {})
    places, cells = seen_cells(run, points, generator)
    if not len(places):
        raise InputError(f"{run.path}: no cell of the map is crossed by a sight line")
    lon, lat, distance = spherical(places)
    own = predicted_at(run, lon, lat, distance)
    others = {
        "extinction": asked.extinction(lon, lat, distance),
        "density": _cell_means(asked, places, run.plan.grid.spacing),
    }
    known = _known_to_both(others)
    counts = {
        "cells": int(run.support.numel()),
        "seen by stars": cells,
        "asked": len(places),
        "known to both": int(known.sum()),
    }
    found = {
        (what, kind): Pairs(
            distance=distance,
            own=own[f"{what}_{column}"],
            std=own[f"{what}_std"],
            other=others[what],
        ).select(known)
        for what in others
        for kind, column in (("median", "p50"), ("mean", "mean"))
    }
    return _comparison(found, counts, scale)


def _known_to_both(others: dict[str, np.ndarray]) -> np.ndarray:
    known = np.all([np.isfinite(values) for values in others.values()], axis=0)
    if known.sum() < _FEW:
        raise InputError(
            f"the other map knows {int(known.sum())} of the {len(known)} cells that "
            f"were asked for: at least {_FEW} are needed"
        )
    return known


def _asked(
    run: Run,
    other: Any,
    integrated: bool | None,
    factor: float,
    options: dict[str, Any],
) -> OtherMap:
    if hasattr(other, "density") and hasattr(other, "extinction"):
        return other
    if not hasattr(other, "query"):
        raise InputError(
            f"{type(other).__name__} is no map: it has neither .query nor .density and "
            ".extinction"
        )
    if integrated is None:
        raise InputError(
            f"say what {type(other).__name__}.query gives: extinction from the "
            "observer (integrated=True, --integrated) or density (integrated=False, "
            "--differential)"
        )
    return QueriedMap(
        source=other,
        integrated=integrated,
        factor=factor,
        options=options,
        step=min(run.plan.grid.spacing),
    )


def _cell_means(
    other: OtherMap, places: np.ndarray, spacing: tuple[float, ...]
) -> np.ndarray:
    """Mean density of the other map over each cell [mag/pc], shape ``(n,)``."""
    mesh = np.stack(np.meshgrid(*[OFFSETS] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    around = places[:, None, :] + mesh * np.array(spacing)
    return other.density(*spherical(around)).mean(axis=1)


def _comparison(
    pairs: dict[tuple[str, str], Pairs], counts: dict[str, int], scale: str
) -> Comparison:
    found = {key: figures_of(each) for key, each in pairs.items()}
    extinction, density = pairs["extinction", "median"], pairs["density", "median"]
    by_distance = _by_distance(extinction, density)
    columns = {"distance": extinction.distance}
    for (what, kind), each in pairs.items():
        columns[f"{what}_{kind}"] = each.own
        columns |= {f"{what}_std": each.std, f"{what}_other": each.other}
    return Comparison(
        kind="map",
        numbers={
            "scale": scale,
            "counts": counts,
            **{f"{what}, {kind}": row for (what, kind), row in found.items()},
            "by_distance": by_distance,
        },
        tables={
            "summary": [
                {"what": f"{what}, {kind} [{_UNITS[what]}]", **row}
                for (what, kind), row in found.items()
            ],
            "by_distance": by_distance,
            "places": rows_of(columns),
        },
        shown=("summary", "by_distance"),
        words=_words(found, counts, scale),
        figures={"maps": map_figure(extinction, density, scale)},
    )


def _by_distance(extinction: Pairs, density: Pairs) -> list[Row]:
    """The medians of the map, by distances of equally many cells."""
    rows: list[Row] = []
    edges = np.quantile(extinction.distance, np.linspace(0, 1, _BINS + 1))
    for low, high in pairwise(edges):
        chosen = (extinction.distance >= low) & (extinction.distance <= high)
        if chosen.sum() < _FEW:
            continue
        row: Row = {"from [pc]": float(low), "to [pc]": float(high)}
        row["places"] = int(chosen.sum())
        for what, pairs in (("extinction", extinction), ("density", density)):
            own = figures_of(pairs.select(chosen))
            row |= {f"{what}: {name}": own[name] for name in _BY_DISTANCE}
        rows.append(row)
    return rows


def _words(
    found: dict[tuple[str, str], Row], counts: dict[str, int], scale: str
) -> tuple[str, ...]:
    return (
        f"Cells: {counts['cells']}, of which sight lines cross "
        f"{counts['seen by stars']}; {counts['asked']} were asked for, "
        f"{counts['known to both']} are known to both maps and compared. The other "
        "cells lie outside the other map's box or footprint.",
        f"Scale: {scale or 'as given'}. The slope is of the map on the other, the "
        "ratio that of the means: both carry the scales of both maps. The median of a "
        "skew posterior lies below its mean, most where little is known.",
        "Correlation over places is by many cells of few structures. Extinctions "
        "correlate because both grow with distance: read the bins. What is left of "
        f"the densities ({found['density', 'median']['correlation']:.2f}) is what the "
        "map knows along its lines.",
        "The other map is taken as exact, its own errors are not in 'within 1 std'; "
        "nor are the maps independent if they share stars.",
    )
