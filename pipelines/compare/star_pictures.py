"""A figure of a map against stars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from pipelines.compare.panels import RANGE, label, note, panels
from pipelines.figures.style import BLACK, BLUE, GREEN, ORANGE, SMALL, length_unit

if TYPE_CHECKING:
    from pipelines.calibration import Bin, Calibration
    from pipelines.compare.stars import ValidatedStars


_Z = 5.0


def star_figure(
    judged: ValidatedStars, whole: Calibration, bins: Sequence[Bin]
) -> Figure:
    """Predicted and observed, z-scores, coverage, and errors by distance."""
    figure, places = panels(2, 2)
    _observed(places[0], judged)
    _z_scores(places[1], judged.z)
    _coverage(places[2], whole)
    _by_distance(places[3], bins)
    return figure


def _observed(axes: Axes, judged: ValidatedStars) -> None:
    limits = np.percentile(
        np.concatenate([judged.stars.predicted["mean"], judged.stars.observed]), RANGE
    )
    low, high = min(float(limits[0]), 0.0), float(limits[1]) * 1.1
    axes.errorbar(
        judged.stars.predicted["mean"],
        judged.stars.observed,
        xerr=judged.stars.predicted["std"],
        yerr=judged.stars.noise,
        fmt="o",
        markersize=2.2,
        elinewidth=0.3,
        color=BLUE,
        alpha=0.45,
    )
    axes.plot([low, high], [low, high], color=BLACK, linewidth=0.9)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    out = ~((judged.stars.predicted["mean"] <= high) & (judged.stars.observed <= high))
    out |= (judged.stars.predicted["mean"] < low) | (judged.stars.observed < low)
    label(axes, "extinction of the map [mag]", "observed extinction [mag]")
    note(axes, f"{int(out.sum())} of {len(out)} stars outside the panel")


def _z_scores(axes: Axes, z: np.ndarray) -> None:
    edges = np.linspace(-_Z, _Z, 41)
    width = edges[1] - edges[0]
    axes.hist(
        z,
        bins=edges.tolist(),
        weights=np.full(len(z), 1 / (len(z) * width)),
        color=BLUE,
        alpha=0.6,
        label="stars",
    )
    fine = np.linspace(-_Z, _Z, 201)
    axes.plot(fine, norm.pdf(fine), color=ORANGE, linewidth=1.4, label="normal")
    axes.legend(fontsize=SMALL, frameon=False)
    label(axes, "z-score", "probability density")
    note(axes, f"{int((np.abs(z) > _Z).sum())} beyond ±{_Z:g}")


def _coverage(axes: Axes, whole: Calibration) -> None:
    level = np.array([each.level for each in whole.coverage])
    held = np.array([each.held for each in whole.coverage])
    error = np.array([each.error for each in whole.coverage])
    axes.plot([0.4, 1], [0.4, 1], color=BLACK, linewidth=0.9)
    axes.errorbar(level, held, yerr=error, fmt="o", color=BLUE, markersize=4)
    axes.set_xlim(0.4, 1.0)
    label(axes, "nominal level of the interval", "share of stars inside")
    note(axes, f"{whole.stars} stars, binomial errors")


def _by_distance(axes: Axes, bins: Sequence[Bin]) -> None:
    factor, unit = length_unit(max(each.high for each in bins))
    middle = np.array([(each.low + each.high) / 2 for each in bins]) * factor
    half = np.array([(each.high - each.low) / 2 for each in bins]) * factor
    for colour, marker, name, values in (
        (BLUE, "o", "RMSE", [each.calibration.rmse for each in bins]),
        (GREEN, "s", "1.48 MAD", [each.calibration.scatter for each in bins]),
        (ORANGE, "^", "bias", [each.calibration.bias for each in bins]),
    ):
        axes.errorbar(
            middle,
            values,
            xerr=half,
            fmt=marker,
            color=colour,
            label=name,
            markersize=4,
        )
    axes.axhline(0.0, color="0.6", linewidth=0.6)
    axes.legend(
        fontsize=SMALL,
        frameon=False,
        ncols=3,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
    )
    label(axes, f"distance [{unit}]", "observed minus map [mag]")
