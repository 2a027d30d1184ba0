"""Figures of how held-out stars are predicted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from pipelines.calibration import Bin, Calibration
from pipelines.figures.style import BLACK, BLUE, NORMAL, ORANGE, SMALL

_BINS = np.linspace(-5, 5, 41)
_MARKERS = "osD^"
_SHADES = ("#9ecae1", "#56B4E9", "#0072B2", "#08306b")


def predictions(observed: np.ndarray, mean: np.ndarray, noise: np.ndarray) -> Figure:
    """Observed against predicted extinction [mag], with the line of equality."""
    figure = Figure(figsize=(4.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.errorbar(
        mean,
        observed,
        yerr=noise,
        fmt=".",
        markersize=3,
        color=BLUE,
        ecolor=BLUE,
        elinewidth=0.4,
        alpha=0.5,
        rasterized=True,
    )
    ends = [min(0.0, float(mean.min())), max(float(mean.max()), float(observed.max()))]
    axes.plot(ends, ends, color=BLACK, linewidth=0.9, label="equal")
    axes.legend(fontsize=SMALL, frameon=False)
    _label(axes, "predicted extinction (mean) [mag]", "measured extinction [mag]")
    return figure


def z_histogram(z: np.ndarray) -> Figure:
    """z-scores beside a standard normal; those beyond the axis are counted."""
    figure = Figure(figsize=(4.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    beyond = int((np.abs(z) > _BINS[-1]).sum())
    width = _BINS[1] - _BINS[0]
    label = f"{len(z):,} held-out stars"
    axes.hist(
        z,
        _BINS.tolist(),
        weights=np.full(len(z), 1 / (len(z) * width)),
        color=BLUE,
        label=label,
    )
    fine = np.linspace(_BINS[0], _BINS[-1], 401)
    axes.plot(fine, norm.pdf(fine), color=ORANGE, linewidth=1.6, label="as stated")
    if beyond:
        axes.plot([], [], " ", label=f"{beyond:,} beyond ±5")
    axes.legend(fontsize=SMALL, frameon=False)
    axes.set_xlim(_BINS[0], _BINS[-1])
    _label(axes, "z-score: (measured − predicted) / stated", "density of stars")
    return figure


def levels(judged: Calibration) -> Figure:
    """Held against nominal fractions with twice their binomial errors."""
    figure = Figure(figsize=(4.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    nominal = [100 * c.level for c in judged.coverage]
    held = [100 * c.held for c in judged.coverage]
    errors = [200 * c.error for c in judged.coverage]
    axes.plot([40, 100], [40, 100], color=BLACK, linewidth=0.9, label="as stated")
    axes.errorbar(
        nominal, held, yerr=errors, fmt="o", color=BLUE, capsize=3, label="held (2σ)"
    )
    axes.set_xticks(nominal)
    axes.set_ylim(40, 102)
    axes.legend(fontsize=SMALL, frameon=False, loc="upper left")
    _label(axes, "stated probability [%]", "stars inside [%]")
    return figure


def along(bins: list[Bin], label: str) -> Figure:
    """Coverage, bias and RMSE against distance [pc] or extinction [mag]."""
    figure = Figure(figsize=(4.4, 5.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    place, reach = _places(bins)
    for number, nominal in enumerate(c.level for c in bins[0].calibration.coverage):
        found = [one.calibration.coverage[number] for one in bins]
        upper.errorbar(
            place,
            [100 * c.held for c in found],
            xerr=reach,
            yerr=[100 * c.error for c in found],
            fmt=_MARKERS[number % len(_MARKERS)],
            markersize=4,
            color=_SHADES[number % len(_SHADES)],
            label=f"{nominal:.0%}",
        )
        upper.axhline(
            100 * nominal, color=_SHADES[number % len(_SHADES)], linewidth=0.8
        )
    upper.set_ylim(top=103)
    figure.legend(
        *upper.get_legend_handles_labels(),
        loc="outside upper center",
        ncols=4,
        fontsize=SMALL,
        frameon=False,
        title="intervals of",
        title_fontsize=SMALL,
    )
    _label(upper, "", "stars inside [%]")
    _errors(lower, bins, place, reach)
    _label(lower, label, "measured − predicted [mag]")
    return figure


def _errors(axes: Axes, bins: list[Bin], place: np.ndarray, reach: np.ndarray) -> None:
    read: tuple[tuple[str, str, str, Callable[[Calibration], float]], ...] = (
        ("RMSE", "o", ORANGE, lambda c: c.rmse),
        ("robust scatter", "s", BLUE, lambda c: c.scatter),
        ("mean (bias)", "D", BLACK, lambda c: c.bias),
    )
    for name, marker, colour, value in read:
        values = [value(one.calibration) for one in bins]
        axes.errorbar(
            place,
            values,
            xerr=reach,
            fmt=marker,
            markersize=4,
            color=colour,
            elinewidth=0.8,
            label=name,
        )
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.legend(fontsize=SMALL, frameon=False, ncols=3, loc="upper center")


def _places(bins: list[Bin]) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([one.low for one in bins])
    high = np.array([one.high for one in bins])
    return (low + high) / 2, (high - low) / 2


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
