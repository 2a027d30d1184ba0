"""One figure of a regression: the fit over one or two inputs, or truth and mean."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipelines.figures.scales import colour_scale
from pipelines.figures.style import BLUE, ORANGE, SMALL
from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.table import Rows

# Ends of the 68% and the 95% interval.
_INNER, _OUTER = (0.15865525, 0.84134475), (0.025, 0.975)
# Points of a curve, pixels along each side of an image, most rows to draw.
_CURVE, _PIXELS, _ROWS = 500, 120, 4000


def draw(rows: Rows, model: Regressor, prediction: Prediction) -> Figure:
    """Draw a figure for the number of inputs; ``prediction`` is for the test rows."""
    if len(rows.inputs) == 1:
        return _curve(rows, model)
    if len(rows.inputs) == 2:
        return _image(rows, model)
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes, truth = figure.subplots(), rows.y[rows.test]
    _against_truth(axes, truth, prediction, rows.target)
    return figure


def _curve(rows: Rows, model: Regressor) -> Figure:
    """Draw rows, mean and central intervals of the target along the only input."""
    x = np.linspace(rows.x.min(), rows.x.max(), _CURVE)
    found = model.distribution({rows.inputs[0]: x})
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for part, color, label in (
        (~rows.test, "0.6", "rows to fit"),
        (rows.test, ORANGE, "rows to test"),
    ):
        some = _some(np.flatnonzero(part))
        size = 4 if len(rows.x) < 1000 else 2
        look = {"ms": size, "color": color, "label": label, "rasterized": True}
        axes.plot(rows.x[some], rows.y[some], ".", **look)
    for interval, alpha in ((_INNER, 0.22), (_OUTER, 0.13)):
        low, high = map(found.quantile, interval)
        axes.fill_between(x, low, high, color=BLUE, alpha=alpha, lw=0)
    _limit(axes, np.concatenate([rows.y, low, high]))
    label = "mean, 68% and 95% of the rows"
    axes.plot(x, found.mean, color=BLUE, lw=1.6, label=label)
    axes.set(xlim=(x[0], x[-1]), xlabel=rows.inputs[0], ylabel=rows.target)
    axes.legend(fontsize=SMALL, frameon=False, markerscale=1.6)
    return figure


def _image(rows: Rows, model: Regressor) -> Figure:
    """Draw mean of the target and std of the field over both inputs."""
    low, high = rows.x.min(axis=0), rows.x.max(axis=0)
    mesh = np.meshgrid(*np.linspace(low, high, _PIXELS).T)
    places = [side.ravel() for side in mesh]
    found = model.distribution(dict(zip(rows.inputs, places, strict=True)))
    norm = Normalize(*np.percentile(found.mean, [0.5, 99.5]))
    scale = colour_scale("spread", found.field_std)
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    std_name = f"std of the mean of {rows.target}"
    for axes, values, label, cmap, own in (
        (left, found.mean, rows.target, "viridis", norm),
        (right, found.field_std, std_name, scale.cmap, scale.norm),
    ):
        image = axes.imshow(
            values.reshape(_PIXELS, _PIXELS),
            origin="lower",
            extent=(low[0], high[0], low[1], high[1]),
            aspect="auto",
            cmap=cmap,
            norm=own,
        )
        figure.colorbar(image, ax=axes, label=label)
        axes.set_xlabel(rows.inputs[0])
    some = _some(np.arange(len(rows.x)))
    left.scatter(
        *rows.x[some].T,
        c=rows.y[some],
        cmap="viridis",
        norm=norm,
        s=4,
        edgecolors="white",
        linewidths=0.15,
        rasterized=True,
    )
    left.set_title("mean, and the rows", fontsize="medium")
    right.set_title("uncertainty of the field, without noise", fontsize="medium")
    left.set_ylabel(rows.inputs[1])
    return figure


def _against_truth(
    axes: Axes, truth: np.ndarray, prediction: Prediction, target: str
) -> None:
    """Draw truth against mean for the test rows."""
    axes.set_title(f"{len(truth):,} rows to test", fontsize="medium")
    some = _some(np.arange(len(truth)))
    truth, mean = truth[some], prediction.mean[some]
    low, high = (prediction.quantile(p)[some] for p in _INNER)
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
    axes.axline((truth[0], truth[0]), slope=1, color="0.2", lw=0.9)
    axes.set_xlabel(f"predicted {target}, with 68% interval")
    axes.set_ylabel(f"true {target}")
    _limit(axes, truth)


def _some(rows: np.ndarray) -> np.ndarray:
    """Choose at most 4,000 of the rows at random, reproducibly."""
    return np.random.default_rng(0).permutation(rows)[:_ROWS]


def _limit(axes: Axes, values: np.ndarray) -> None:
    """Limit the axis, robust to a few outliers."""
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)
