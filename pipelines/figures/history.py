"""How a fit went in time: residuals of its solves, misfit of the stars, gains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pipelines.figures.style import CYCLE

Records = Sequence[Mapping[str, Any]]

# What each panel shows: key of the records, label of its axis.
_PANELS = (
    ("residual", "relative residual of a solve"),
    ("misfit", "mean squared residual / variance"),
    ("promised_gain", "what a step promised [nats]"),
    ("bound", "lower bound of the evidence [nats]"),
)
# Of either sign.
_LINEAR = ("bound",)
# Over fewer decades than this an axis has plain numbers between the powers of ten.
_FEW_DECADES = 2.0


def history(records: Records) -> Figure:
    """One panel per kind of number against the seconds since the fit began.

    Parameters
    ----------
    records
        As in ``metrics.jsonl``: each with ``stage``, ``seconds`` and one of
        ``residual``, ``misfit``, ``promised_gain`` and ``bound``; others are left out.
        A ``tolerance`` is drawn over the time in which records have it.

    Raises
    ------
    ValueError
        If no record can be drawn.
    """
    panels = [
        (key, label, [r for r in records if r.get(key) is not None and "seconds" in r])
        for key, label in _PANELS
    ]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        raise ValueError(
            "no record holds a residual, a misfit, a gain or a bound to draw"
        )
    figure = Figure(figsize=(6.4, 1.1 + 1.9 * len(panels)))
    figure.set_layout_engine("constrained")
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    stages = list(dict.fromkeys(_kind(r["stage"]) for r in records))
    for axes, (key, label, chosen) in zip(every, panels, strict=True):
        _panel(axes, key, chosen, stages)
        axes.set_ylabel(label, fontsize="small")
    every[-1].set_xlabel("time since the fit began [s]")
    return figure


def _panel(axes: Axes, key: str, records: Records, stages: list[str]) -> None:
    linear = key in _LINEAR
    axes.set_yscale("linear" if linear else "log")
    drawable = [r for r in records if linear or r[key] > 0]
    for number, stage in enumerate(stages):
        own = [r for r in drawable if _kind(r["stage"]) == stage]
        if not own:
            continue
        time = np.array([r["seconds"] for r in own], dtype=np.float64)
        value = np.array([r[key] for r in own], dtype=np.float64)
        axes.plot(
            time,
            value,
            ".",
            markersize=3 if len(own) > 40 else 5,
            color=CYCLE[number % len(CYCLE)],
            label=f"{stage} ({len(own)})",
        )
    for limit in sorted({r["tolerance"] for r in records if "tolerance" in r}):
        asked = [r["seconds"] for r in records if r.get("tolerance") == limit]
        span = (min(asked), max(asked))
        axes.plot(span, (limit, limit), color="0.4", linewidth=0.8, linestyle="dashed")
    if drawable:
        _legend(axes)
        if not linear:
            _plain_numbers(axes, [r[key] for r in drawable])


def has_tolerance(records: Records) -> bool:
    """Whether `history` draws a tolerance."""
    return any("tolerance" in record for record in records)


def _legend(axes: Axes) -> None:
    """Above the panel, where it covers no point."""
    axes.legend(
        fontsize="x-small",
        frameon=False,
        ncols=5,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
        handletextpad=0.2,
        columnspacing=1.2,
    )


def _plain_numbers(axes: Axes, values: Sequence[float]) -> None:
    """Plain numbers where an axis spans few decades, powers of ten otherwise."""
    axes.yaxis.set_minor_formatter(NullFormatter())
    decades = np.log10(max(values) / min(values))
    if decades < _FEW_DECADES:
        steps = (1.0, 2.0, 5.0) if decades > 0.5 else tuple(range(1, 10))
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _kind(stage: str) -> str:
    """The stage without the numbers of the samples it solved for."""
    return re.sub(r" \d+(-| of )\d+$", "", stage)
