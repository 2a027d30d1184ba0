"""Scores of the benchmark, its table and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from peers_run import Row
from scoring import score

from pipelines.figures.style import CYCLE, save_figure

REFERENCE = "dustmap"
_MARKERS = "osD^vP*X"
_HEADER = (
    "method",
    "grid",
    "state",
    "CPU [s]",
    "wall [s]",
    "RMSE [mag]",
    "MAE [mag]",
    "A 68% / 95%",
    "ρ 68% / 95%",
    "r(ρ)",
    "r(ln ρ)",
    "ρ < 0",
    "CPU / dustmap",
    "RMSE / dustmap",
)


def entries(rows: Sequence[Row], truth: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Rows for the record, with ratios to `dustmap` on the same grid.

    A method that has a grid of its own is compared with the first of `dustmap`'s.
    """
    plain: list[dict[str, Any]] = [
        {
            "method": row.method,
            "grid": row.grid,
            "state": row.name,
            **row.taken.as_dict(),
            **score(row.prediction, truth),
            "facts": row.facts,
        }
        for row in rows
    ]
    own = {row["grid"]: row for row in plain if row["method"] == REFERENCE}
    first = next(iter(own.values()), None)
    for row in plain:
        reference = own.get(row["grid"], first)
        if reference is not None:
            row["cpu_ratio"] = row["cpu_seconds"] / reference["cpu_seconds"]
            row["rmse_ratio"] = row["rmse"] / reference["rmse"]
    return plain


def table(plain: Sequence[dict[str, Any]]) -> str:
    """All rows in Markdown."""
    lines = [_HEADER, ("---",) * len(_HEADER)]
    for row in plain:
        lines.append(
            (
                row["method"],
                row["grid"],
                row["state"],
                f"{row['cpu_seconds']:.1f}",
                f"{row['wall_seconds']:.1f}",
                f"{row['rmse']:.4f}",
                f"{row['mae']:.4f}",
                _pair(row, "extinction"),
                _pair(row, "density"),
                f"{row['density_r']:.3f}",
                f"{row['density_log_r']:.3f}",
                f"{row['density_negative']:.1%}",
                _ratio(row, "cpu_ratio"),
                _ratio(row, "rmse_ratio"),
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _pair(row: dict[str, Any], name: str) -> str:
    levels = [row.get(f"{name}_coverage_{level}") for level in (68, 95)]
    return " / ".join("–" if x is None else f"{x:.3f}" for x in levels)


def _ratio(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.2f}" if name in row else "–"


def draw(path: Path, plain: Sequence[dict[str, Any]], title: str) -> None:
    """RMSE against CPU seconds, a line for every method and grid."""
    figure = Figure(figsize=(7.0, 4.6))
    axes = figure.subplots()
    grids = list(dict.fromkeys((row["method"], row["grid"]) for row in plain))
    methods = list(dict.fromkeys(method for method, _ in grids))
    for number, (method, grid) in enumerate(grids):
        own = [r for r in plain if (r["method"], r["grid"]) == (method, grid)]
        axes.plot(
            [row["cpu_seconds"] for row in own],
            [row["rmse"] for row in own],
            marker=_MARKERS[number % len(_MARKERS)],
            color=CYCLE[methods.index(method) % len(CYCLE)],
            linestyle="-" if grid == grids[0][1] else "--",
            label=f"{method}, {grid}",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="CPU time of the fit [s]",
        ylabel="RMSE of the noise-free extinction [mag]",
        title=title,
    )
    for axis in (axes.xaxis, axes.yaxis):
        # Less than a decade would have a single number by the default.
        axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="both", linewidth=0.4, alpha=0.5)
    axes.legend(frameon=False, fontsize="small")
    save_figure(figure, path)
