"""The figure of the spatial experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_report import Row
from spatial_engines import FULL_BATCH, SOLVED, STEPS, SVGP

from pipelines.figures.style import CYCLE

_MARKERS = {FULL_BATCH: "o", STEPS: "v", SOLVED: "s", SVGP: "x"}


class Drawn(Protocol):
    """What is drawn of one data set."""

    @property
    def name(self) -> str: ...
    @property
    def by_size(self) -> list[Row]: ...
    @property
    def together(self) -> list[Row]: ...
    @property
    def early(self) -> list[Row]: ...
    @property
    def costs(self) -> list[Row]: ...


def draw(figure: Figure, results: Sequence[Drawn]) -> None:
    """RMSE and cost against M, and RMSE against PCG's iterations."""
    left, middle, right = figure.subplots(1, 3)
    for own, colour in zip(results, CYCLE, strict=False):
        _draw_errors(left, own, colour)
        _draw_times(middle, own, colour)
        _draw_early(right, own, colour)
    for engine, marker in _MARKERS.items():
        fill = "full" if engine == FULL_BATCH else "none"
        left.plot([], [], marker, color="0.3", fillstyle=fill, label=engine)
    middle.plot([], [], "-o", color="0.3", label="full batch, whole fit")
    middle.plot([], [], "--v", color="0.3", label="svi, rows of one epoch")
    left.set_ylabel("RMSE / that of the fewest points")
    middle.set_ylabel("seconds per 1,000 observations")
    middle.set_yscale("log")
    for axes in (left, middle):
        axes.set_xscale("log")
        axes.set_xlabel("inducing points M")
        ticks = sorted({row["M"] for own in results for row in own.by_size})
        shown = ticks if len(ticks) < 4 else [ticks[0], ticks[2], ticks[-1]]
        axes.set_xticks(shown, [f"{size:,}" for size in shown])
        axes.set_xticks([], minor=True)
    right.set_xscale("log")
    right.set_xlabel("most PCG iterations a row")
    right.set_ylabel("RMSE / that of the most iterations")
    for axes in (left, middle, right):
        # Above the panel: curves may be anywhere in it.
        axes.legend(frameon=False, fontsize="x-small", loc="lower left",
                    bbox_to_anchor=(0.0, 1.0))  # fmt: skip


def _draw_errors(axes: Axes, own: Drawn, colour: str) -> None:
    """All observations as a line; engines on fewer of them relative to full batch."""
    first = own.by_size[0]["RMSE"]
    sizes = [row["M"] for row in own.by_size]
    relative = {row["M"]: row["RMSE"] / first for row in own.by_size}
    axes.plot(sizes, list(relative.values()), "-o", color=colour, markersize=5,
              label=f"{own.name}, N = {own.by_size[0]['N']:,}")  # fmt: skip
    for row in own.together:
        reference = next(
            other["RMSE"]
            for other in own.together
            if (other["M"], other["engine"]) == (row["M"], FULL_BATCH)
        )
        if row["engine"] != FULL_BATCH and row["M"] in relative:
            value = relative[row["M"]] * row["RMSE"] / reference
            axes.plot(row["M"], value, _MARKERS[row["engine"]], color=colour,
                      fillstyle="none", markersize=7)  # fmt: skip


def _draw_times(axes: Axes, own: Drawn, colour: str) -> None:
    sizes = [row["M"] for row in own.by_size]
    whole = [1_000 * row["fit [s]"] / row["N"] for row in own.by_size]
    rows = [1_000 * row["s per row"] for row in own.costs]
    axes.plot(sizes, whole, "-o", color=colour, markersize=5)
    axes.plot(sizes, rows, "--v", color=colour, markersize=5)


def _draw_early(axes: Axes, own: Drawn, colour: str) -> None:
    last = own.early[-1]
    iterations = [row["PCG iterations"] for row in own.early]
    values = [row["RMSE"] / last["RMSE"] for row in own.early]
    axes.plot(iterations, values, "-s", color=colour, markersize=5,
              label=f"{own.name}, M = {last['M']:,}, N = {last['N']:,}")  # fmt: skip
