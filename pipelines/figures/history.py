"""How a fit went in time: residuals of its solves, misfit of the stars, gains."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pipelines.figures.style import CYCLE, legend_above

Records = Sequence[Mapping[str, Any]]

# What each panel shows: key of the records, label of its axis.
PANELS = {
    "residual": "relative residual of a solve",
    "misfit": "mean squared residual / variance",
    "expected_gain": "expected gain of a step [nats]",
    "bound": "lower bound of the evidence [nats]",
}
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
        ``residual``, ``misfit``, ``expected_gain`` and ``bound``; others are left out.
        A ``tolerance`` is drawn over the time in which records have it.

    Raises
    ------
    ValueError
        If no record can be drawn.
    """
    timed = [record for record in records if "seconds" in record]
    chosen = {key: [r for r in timed if r.get(key) is not None] for key in PANELS}
    chosen = {key: found for key, found in chosen.items() if found}
    if not chosen:
        raise ValueError(
            "no record holds a residual, a misfit, a gain or a bound to draw"
        )
    figure = Figure(figsize=(6.4, 1.1 + 1.9 * len(chosen)), layout="constrained")
    every = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    parts = dict.fromkeys(part_of(r) for found in chosen.values() for r in found)
    colours = {part: CYCLE[i % len(CYCLE)] for i, part in enumerate(parts)}
    for axes, (key, found) in zip(every, chosen.items(), strict=True):
        _panel(axes, key, found, colours)
        axes.set_ylabel(PANELS[key], fontsize="small")
    every[-1].set_xlabel("time since the fit began [s]")
    return figure


def part_of(record: Mapping[str, Any]) -> str:
    """A record's stage without the numbers of the samples it solved for."""
    return re.sub(r" \d+-\d+$", "", record["stage"])


def _panel(axes: Axes, key: str, records: Records, colours: dict[str, str]) -> None:
    linear = key in _LINEAR
    axes.set_yscale("linear" if linear else "log")
    drawable = [r for r in records if linear or r[key] > 0]
    for part, colour in colours.items():
        own = [r for r in drawable if part_of(r) == part]
        if own:
            axes.plot(
                [r["seconds"] for r in own],
                [r[key] for r in own],
                ".",
                markersize=3 if len(own) > 40 else 5,
                color=colour,
                label=f"{part} ({len(own)})",
            )
    for limit in sorted({r["tolerance"] for r in records if "tolerance" in r}):
        asked = [r["seconds"] for r in records if r.get("tolerance") == limit]
        span = (min(asked), max(asked))
        axes.plot(span, (limit, limit), color="0.4", linewidth=0.8, linestyle="dashed")
    if drawable:
        legend_above(axes, size="x-small")
        if not linear:
            _plain_numbers(axes, [r[key] for r in drawable])


def _plain_numbers(axes: Axes, values: Sequence[float]) -> None:
    """Plain numbers where an axis spans few decades, powers of ten otherwise."""
    axes.yaxis.set_minor_formatter(NullFormatter())
    decades = np.log10(max(values) / min(values))
    if decades < _FEW_DECADES:
        steps = (1.0, 2.0, 5.0) if decades > 0.5 else tuple(range(1, 10))
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
