"""How the iterations of a fit went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipelines.figures.style import CYCLE, NORMAL, SMALL

_DASHES = ("solid", "dashed", "dashdot", "dotted")


def convergence(
    records: Sequence[Mapping[str, Any]],
    *,
    quantity: str = "residual",
    label: str = "relative residual",
    log: bool = True,
) -> Figure:
    """Draw one curve per stage of ``quantity`` against the iteration.

    A stage whose iterations begin again, as those of repeated solves do, is drawn as a
    curve for each.

    Parameters
    ----------
    records
        Each with ``stage`` (a name), ``iteration`` and ``quantity``; where all records
        have the same ``tolerance`` it is drawn as a line.
    log
        Logarithmic ordinate; values that have no logarithm are counted in the figure.

    Raises
    ------
    ValueError
        If there is no record or one lacks a key.
    """
    curves = _by_stage(records, quantity)
    figure = Figure(figsize=(5.6, 3.6))
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    if log:
        axes.set_yscale("log")
    hidden = 0
    for number, (stage, points) in enumerate(curves.items()):
        iteration, values = np.array(points, dtype=np.float64).T
        drawable = np.isfinite(values) & ((values > 0) | (not log))
        hidden += int((~drawable).sum())
        axes.plot(
            *_parted(iteration[drawable], values[drawable]),
            label=f"{stage} ({len(points)})",
            marker="o" if len(points) < 40 and len(curves) <= len(CYCLE) else None,
            markersize=2.5,
            linewidth=1.2,
            **_line_style(number, len(curves)),
        )
    _draw_tolerance(axes, records)
    axes.set_xlabel("iteration", fontsize=NORMAL)
    axes.set_ylabel(label, fontsize=NORMAL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=SMALL)
    axes.grid(visible=True, linewidth=0.3, alpha=0.6)
    axes.set_axisbelow(True)
    _draw_legend(axes, len(curves))
    if hidden:
        reason = "zero, negative or not finite" if log else "not finite"
        axes.set_title(f"{hidden} values not drawn: {reason}", fontsize=SMALL)
    return figure


def _by_stage(
    records: Sequence[Mapping[str, Any]], quantity: str
) -> dict[str, list[tuple[float, float]]]:
    if not records:
        raise ValueError("expected at least one record of an iteration")
    curves: dict[str, list[tuple[float, float]]] = {}
    for number, record in enumerate(records):
        missing = {"stage", "iteration", quantity} - set(record)
        if missing:
            raise ValueError(f"record {number} has no {', '.join(sorted(missing))}")
        point = (float(record["iteration"]), float(record[quantity]))
        curves.setdefault(str(record["stage"]), []).append(point)
    return curves


def _parted(iteration: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points with a gap wherever the iterations begin again."""
    begins = np.nonzero(np.diff(iteration) <= 0)[0] + 1
    return np.insert(iteration, begins, np.nan), np.insert(values, begins, np.nan)


def _line_style(number: int, count: int) -> dict[str, Any]:
    if count > 2 * len(CYCLE):
        return {"color": mpl.colormaps["viridis"](number / (count - 1))}
    dashes = _DASHES[number // len(CYCLE) % len(_DASHES)]
    return {"color": CYCLE[number % len(CYCLE)], "linestyle": dashes}


def _draw_tolerance(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    tolerances = {record.get("tolerance") for record in records}
    if len(tolerances) == 1 and (tolerance := tolerances.pop()) is not None:
        axes.axhline(
            float(tolerance),
            color="0.35",
            linewidth=0.9,
            linestyle="dashed",
            label="tolerance",
        )


def _draw_legend(axes: Axes, count: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if count > 2 * len(CYCLE):
        # Too many to name: the first and last bound the sequence of colours.
        kept = [0, count - 1, *range(count, len(handles))]
        handles, labels = [handles[i] for i in kept], [labels[i] for i in kept]
        labels[1] += f", stage {count} of {count}"
    axes.legend(
        handles,
        labels,
        fontsize=SMALL,
        title="stage (iterations)",
        title_fontsize=SMALL,
    )
