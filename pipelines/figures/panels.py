"""What the figures of comparisons share: panels, labels, notes."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.figures.style import NORMAL, SMALL

# Percentiles that a panel is fitted to.
RANGE = (0.5, 99.5)


def panels(
    rows: int, columns: int, *, width: float = 3.9, height: float = 3.2
) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels, row by row; sizes of one [inch]."""
    figure = Figure(figsize=(width * columns, height * rows + 0.4))
    figure.set_layout_engine("constrained")
    count = rows * columns
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def label(axes: Axes, x: str, y: str) -> None:
    """Name both axes."""
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)


def note(axes: Axes, text: str) -> None:
    """A remark in the upper left corner of a panel."""
    axes.text(
        0.03,
        0.97,
        text,
        transform=axes.transAxes,
        va="top",
        fontsize=SMALL - 1,
        color="0.3",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )
