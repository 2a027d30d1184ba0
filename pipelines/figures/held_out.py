"""Predictions of held-out stars: panels for comparisons and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from pipelines.base.calibration import Bin, Calibration
from pipelines.figures import style
from pipelines.run.held_out import HeldOut


def observed(axes: Axes, stars: HeldOut) -> None:
    """Draw observed against predicted extinction, with the line of equality."""
    mean, std = stars.predicted["mean"], stars.predicted["std"]
    limits = np.percentile(np.concatenate([mean, stars.observed]), style.RANGE)
    low, high = min(float(limits[0]), 0.0), float(limits[1]) * 1.1
    axes.errorbar(
        mean,
        stars.observed,
        xerr=std if stars.has_uncertainty else None,
        yerr=stars.noise,
        fmt="o",
        markersize=2.2,
        elinewidth=0.3,
        color=style.BLUE,
        alpha=0.45,
        rasterized=True,
    )
    axes.plot([low, high], [low, high], color=style.BLACK, linewidth=0.9)
    axes.set(xlim=(low, high), ylim=(low, high))
    both = np.stack([mean, stars.observed])
    out = ((both < low) | ~(both <= high)).any(axis=0)
    style.label(axes, "extinction of the map [mag]", "observed extinction [mag]")
    style.note(axes, f"{int(out.sum())} of {len(mean)} stars outside the panel")


def z_scores(axes: Axes, z: np.ndarray) -> None:
    """Draw z-scores beside a standard normal, and count those beyond the axis."""
    end = 5.0
    edges = np.linspace(-end, end, 41)
    weights = np.full(len(z), 1 / (len(z) * (edges[1] - edges[0])))
    axes.hist(
        z, edges.tolist(), weights=weights, color=style.BLUE, alpha=0.6, label="stars"
    )
    fine = np.linspace(-end, end, 201)
    axes.plot(fine, norm.pdf(fine), color=style.ORANGE, linewidth=1.4, label="normal")
    axes.legend()
    axes.set_xlim(-end, end)
    style.label(axes, "z-score", "probability density")
    style.note(axes, f"{int((np.abs(z) > end).sum())} beyond ±{end:g}")


def coverage(axes: Axes, whole: Calibration) -> None:
    """Draw held against nominal fractions, with their binomial errors."""
    level, held, error = np.array(
        [(each.level, each.held, each.error) for each in whole.coverage]
    ).T
    axes.plot([0.4, 1], [0.4, 1], color=style.BLACK, linewidth=0.9)
    axes.errorbar(level, held, yerr=error, fmt="o", color=style.BLUE, markersize=4)
    axes.set_xlim(0.4, 1.0)
    axes.set_xticks(level, [f"{each:.0%}" for each in level])
    style.label(axes, "nominal level of the interval", "share of stars inside")
    style.note(axes, f"{whole.stars} stars, binomial errors")


def errors(axes: Axes, bins: Sequence[Bin], name: str) -> None:
    """Draw RMSE, robust scatter and bias by bins of the quantity ``name``."""
    low, high = np.array([(one.low, one.high) for one in bins]).T
    middle, half = (low + high) / 2, (high - low) / 2
    for colour, marker, what, statistic in (
        (style.BLUE, "o", "RMSE", "rmse"),
        (style.GREEN, "s", "1.48 MAD", "scatter"),
        (style.ORANGE, "^", "bias", "bias"),
    ):
        values = [getattr(each.calibration, statistic) for each in bins]
        look = {"fmt": marker, "color": colour, "markersize": 4}
        axes.errorbar(middle, values, xerr=half, label=what, **look)
    axes.axhline(0.0, color="0.6", linewidth=0.6)
    # Above the panel, clear of the points.
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.1}
    axes.legend(ncols=5, handletextpad=0.2, columnspacing=1.2, **place)
    style.label(axes, name, "observed minus map [mag]")


@style.styled
def held_out_figure(
    held: HeldOut, z: np.ndarray, whole: Calibration, binned: Mapping[str, list[Bin]]
) -> Figure:
    """Draw predictions, z-scores, coverage, and errors by bins of named quantities."""
    figure = Figure(figsize=(10.8, 6.8), layout="constrained")
    upper, lower = figure.subplots(2, 3)
    observed(upper[0], held)
    z_scores(upper[1], z)
    coverage(upper[2], whole)
    for axes, (name, bins) in zip(lower, binned.items()):
        errors(axes, bins, name)
    for axes in lower[len(binned) :]:
        axes.set_axis_off()
    return figure
