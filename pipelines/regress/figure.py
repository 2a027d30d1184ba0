"""One figure of a regression: the fit over one or two inputs, or truth and mean."""

from __future__ import annotations

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipelines.figures.scales import Scale, colour_scale
from pipelines.figures.style import BLUE, ORANGE, SMALL
from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.table import Rows

# Ends of the 68% and of the 95% interval.
_INNER, _OUTER = (0.15865525, 0.84134475), (0.025, 0.975)
# Points of a curve, pixels along each side of an image, rows drawn at most.
_CURVE, _PIXELS, _ROWS = 500, 120, 4000


def draw(rows: Rows, model: Regressor, prediction: Prediction) -> Figure:
    """Draw the figure that suits the number of inputs.

    ``prediction`` is that of the rows to test.
    """
    if len(rows.inputs) == 1:
        return _curve(rows, model)
    if len(rows.inputs) == 2:
        return _image(rows, model)
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    if rows.classes is None:
        _against_truth(figure.subplots(), rows, prediction)
    else:
        _reliability(figure.subplots(), rows, prediction.mean, rows.classes[1])
    return figure


def _curve(rows: Rows, model: Regressor) -> Figure:
    """Rows, mean and central intervals of the target along the only input."""
    x = np.linspace(rows.x.min(), rows.x.max(), _CURVE)
    seen = model.distribution({rows.inputs[0]: x})
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for part, color, label, alpha in (
        (~rows.test, "0.55", "rows to fit", 0.7),
        (rows.test, ORANGE, "rows to test", 1.0),
    ):
        some = _some(np.flatnonzero(part))
        axes.scatter(
            rows.x[some],
            rows.y[some],
            s=10 if len(rows.x) < 1000 else 4,
            color=color,
            label=label,
            alpha=alpha,
            linewidths=0,
            rasterized=True,
        )
    label, (low, high) = "probability of 1, 68%", map(seen.quantile, _INNER)
    axes.fill_between(x, low, high, color=BLUE, alpha=0.22, lw=0)
    if rows.classes is None:
        low, high = map(seen.quantile, _OUTER)
        axes.fill_between(x, low, high, color=BLUE, alpha=0.13, lw=0)
        label = "mean, 68% and 95% of the rows"
        _limits(axes, np.concatenate([rows.y, low, high]))
    axes.plot(x, seen.mean, color=BLUE, lw=1.6, label=label)
    axes.set(xlim=(x[0], x[-1]), xlabel=rows.inputs[0], ylabel=rows.target)
    axes.legend(fontsize=SMALL, frameon=False, loc="best", markerscale=1.6)
    return figure


def _image(rows: Rows, model: Regressor) -> Figure:
    """Mean of the target and standard deviation of the field over both inputs."""
    low, high = rows.x.min(axis=0), rows.x.max(axis=0)
    mesh = np.meshgrid(*np.linspace(low, high, _PIXELS).T)
    places = [side.ravel() for side in mesh]
    seen = model.distribution(dict(zip(rows.inputs, places, strict=True)))
    mean, std = seen.mean, seen.field_std
    label, limits = rows.target, np.percentile(mean, [0.5, 99.5])
    std_label, beyond = f"std of the mean of {rows.target}", "both"
    if rows.classes is not None:
        label = f"probability of {rows.target} = {rows.classes[1]}"
        limits, beyond = (0.0, 1.0), "neither"
        std = 0.5 * (seen.quantile(_INNER[1]) - seen.quantile(_INNER[0]))
        std_label = "half the 68% interval"
    norm = Normalize(limits[0], limits[1])
    colours = Scale(cmap=colormaps["viridis"], norm=norm, extend=beyond)
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    extent = (low[0], high[0], low[1], high[1])
    for axes, values, scale, name in (
        (left, mean, colours, label),
        (right, std, colour_scale("spread", std), std_label),
    ):
        image = axes.imshow(
            values.reshape(_PIXELS, _PIXELS),
            origin="lower",
            extent=extent,
            cmap=scale.cmap,
            norm=scale.norm,
            aspect="auto",
            interpolation="bilinear",
        )
        figure.colorbar(image, ax=axes, label=name, extend=scale.extend)
    some = _some(np.arange(len(rows.x)))
    left.scatter(
        *rows.x[some].T,
        c=rows.y[some],
        cmap="viridis",
        norm=norm,
        s=6 if len(some) < 2000 else 2.5,
        edgecolors="white",
        linewidths=0.15,
        rasterized=True,
    )
    left.set_title("mean, and the rows", fontsize="medium")
    right.set_title("uncertainty of the field, without noise", fontsize="medium")
    for axes in (left, right):
        axes.set(xlabel=rows.inputs[0], xlim=extent[:2], ylim=extent[2:])
    left.set_ylabel(rows.inputs[1])
    return figure


def _against_truth(axes: Axes, rows: Rows, prediction: Prediction) -> None:
    """Truth against mean of the test rows."""
    tested = rows.y[rows.test]
    some = _some(np.arange(len(tested)))
    truth, mean = tested[some], prediction.mean[some]
    low, high = (prediction.quantile(p)[some] for p in _INNER)
    both = np.percentile(np.concatenate([truth, mean]), [0, 100])
    axes.errorbar(
        mean,
        truth,
        xerr=[mean - low, high - mean],
        fmt=".",
        ms=3,
        color=BLUE,
        elinewidth=0.5,
        alpha=0.35 if len(some) > 300 else 0.8,
        rasterized=True,
    )
    axes.plot(both, both, color="0.2", lw=0.9)
    axes.set_xlabel(f"predicted {rows.target}, with 68% interval")
    axes.set_ylabel(f"true {rows.target}")
    _limits(axes, truth)
    axes.set_title(f"{len(tested):,} rows to test", fontsize="medium")


def _reliability(axes: Axes, rows: Rows, probability: np.ndarray, name: str) -> None:
    """How often a class comes true against its predicted probability."""
    truth, order = rows.y[rows.test], np.argsort(probability)
    groups = np.array_split(order, max(1, min(12, len(order) // 20)))
    mean = [probability[g].mean() for g in groups]
    share = np.array([truth[g].mean() for g in groups])
    error = [math.sqrt(max(p * (1 - p), 0.01) / len(g)) for p, g in zip(share, groups)]
    axes.plot([0, 1], [0, 1], color="0.2", lw=0.9)
    axes.errorbar(mean, share, yerr=error, fmt="o", ms=4, color=BLUE, elinewidth=0.9)
    axes.set_xlabel(f"predicted probability of {name}")
    axes.set_ylabel(f"share of {name} among the rows to test")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))


def _some(rows: np.ndarray) -> np.ndarray:
    """At most 4,000 of the rows, at random but always the same."""
    return np.random.default_rng(0).permutation(rows)[:_ROWS]


def _limits(axes: Axes, values: np.ndarray) -> None:
    """Limit the axis so that an outlier or two do not flatten the rest."""
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)
