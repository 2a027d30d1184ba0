"""One figure of a regression: the fit over one or two inputs, or truth and mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipelines.figures.scales import Scale, colour_scale
from pipelines.figures.style import BLUE, ORANGE, SMALL
from pipelines.regress.columns import SplitData
from pipelines.regress.fitted import FittedModel
from pipelines.regress.prediction import Prediction, Scaling, predict

# Points of a curve, pixels along each side of an image, rows drawn at most.
_CURVE, _PIXELS, _ROWS = 500, 120, 4000


def draw(
    data: SplitData, scaling: Scaling, model: FittedModel, prediction: Prediction
) -> Figure:
    """The figure that suits the number of inputs."""
    if len(data.inputs) == 1:
        return _curve(data, scaling, model)
    if len(data.inputs) == 2:
        return _image(data, scaling, model)
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    if data.classes is None:
        _against_truth(figure.subplots(), data, prediction)
    else:
        _reliability(figure.subplots(), data, prediction, data.classes[1])
    return figure


def _curve(data: SplitData, scaling: Scaling, model: FittedModel) -> Figure:
    """Rows, mean and central intervals of the target along the only input."""
    x = np.linspace(data.x.min(), data.x.max(), _CURVE)
    seen = predict(model.latent(scaling.inputs(x[:, None])), model.likelihood, scaling)
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    for part, color, label, alpha in (
        (~data.test, "0.55", "rows to fit", 0.7),
        (data.test, ORANGE, "rows to test", 1.0),
    ):
        rows = _some(np.flatnonzero(part))
        axes.scatter(
            data.x[rows],
            data.y[rows],
            s=10 if len(data.x) < 1000 else 4,
            color=color,
            label=label,
            alpha=alpha,
            linewidths=0,
            rasterized=True,
        )
    label = "probability of 1, 68%"
    axes.fill_between(x, seen.p16, seen.p84, color=BLUE, alpha=0.22, lw=0)
    if not model.likelihood.classes:
        axes.fill_between(x, seen.lower, seen.upper, color=BLUE, alpha=0.13, lw=0)
        label = "mean, 68% and 95% of the rows"
        _limits(axes, np.concatenate([data.y, seen.lower, seen.upper]))
    axes.plot(x, seen.mean, color=BLUE, lw=1.6, label=label)
    axes.set(xlim=(x[0], x[-1]), xlabel=data.inputs[0], ylabel=data.target)
    axes.legend(fontsize=SMALL, frameon=False, loc="best", markerscale=1.6)
    return figure


def _image(data: SplitData, scaling: Scaling, model: FittedModel) -> Figure:
    """Mean of the target and standard deviation of the field over both inputs."""
    low, high = data.x.min(axis=0), data.x.max(axis=0)
    sides = np.linspace(low, high, _PIXELS).T
    mesh = np.stack(np.meshgrid(*sides), axis=-1)
    latent = model.latent(scaling.inputs(mesh.reshape(-1, 2)))
    seen = predict(latent, model.likelihood, scaling)
    label, limits = data.target, np.percentile(seen.mean, [0.5, 99.5])
    std = latent.variance.clamp_min(0).sqrt().numpy() * scaling.y_scale
    std_label = f"std of the mean of {data.target}"
    if data.classes is not None:
        label = f"probability of {data.target} = {data.classes[1]}"
        limits = (0.0, 1.0)
        std, std_label = 0.5 * (seen.p84 - seen.p16), "half the 68% interval"
    norm = Normalize(limits[0], limits[1])
    beyond = "neither" if data.classes is not None else "both"
    colours = Scale(cmap=colormaps["viridis"], norm=norm, extend=beyond)
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    extent = (low[0], high[0], low[1], high[1])
    _panel(left, seen.mean, colours, extent, label)
    _panel(right, std, colour_scale("spread", std), extent, std_label)
    rows = _some(np.arange(len(data.x)))
    left.scatter(
        *data.x[rows].T,
        c=data.y[rows],
        cmap="viridis",
        norm=norm,
        s=6 if len(rows) < 2000 else 2.5,
        edgecolors="white",
        linewidths=0.15,
        rasterized=True,
    )
    left.set_title("mean, and the rows", fontsize="medium")
    right.set_title("uncertainty of the field, without noise", fontsize="medium")
    for axes in (left, right):
        axes.set(xlabel=data.inputs[0], xlim=extent[:2], ylim=extent[2:])
    left.set_ylabel(data.inputs[1])
    return figure


def _panel(
    axes: Axes, values: np.ndarray, scale: Scale, extent: Any, label: str
) -> None:
    """A square image with its colour bar."""
    image = axes.imshow(
        values.reshape(_PIXELS, _PIXELS),
        origin="lower",
        extent=extent,
        cmap=scale.cmap,
        norm=scale.norm,
        aspect="auto",
        interpolation="bilinear",
    )
    axes.figure.colorbar(image, ax=axes, label=label, extend=scale.extend)


def _against_truth(axes: Axes, data: SplitData, prediction: Prediction) -> None:
    """Truth against mean of the test rows."""
    all_rows = data.y[data.test]
    rows = _some(np.arange(len(all_rows)))
    truth, mean = all_rows[rows], prediction.mean[rows]
    both = np.percentile(np.concatenate([truth, mean]), [0, 100])
    axes.errorbar(
        mean,
        truth,
        xerr=[mean - prediction.p16[rows], prediction.p84[rows] - mean],
        fmt=".",
        ms=3,
        color=BLUE,
        elinewidth=0.5,
        alpha=0.35 if len(rows) > 300 else 0.8,
        rasterized=True,
    )
    axes.plot(both, both, color="0.2", lw=0.9)
    axes.set_xlabel(f"predicted {data.target}, with 68% interval")
    axes.set_ylabel(f"true {data.target}")
    _limits(axes, truth)
    axes.set_title(f"{len(all_rows):,} rows to test", fontsize="medium")


def _reliability(
    axes: Axes, data: SplitData, prediction: Prediction, name: str
) -> None:
    """How often a class comes true against its predicted probability."""
    truth, order = data.y[data.test], np.argsort(prediction.mean)
    groups = np.array_split(order, max(1, min(12, len(order) // 20)))
    mean = [prediction.mean[g].mean() for g in groups]
    share = np.array([truth[g].mean() for g in groups])
    error = [math.sqrt(max(p * (1 - p), 0.01) / len(g)) for p, g in zip(share, groups)]
    axes.plot([0, 1], [0, 1], color="0.2", lw=0.9)
    axes.errorbar(mean, share, yerr=error, fmt="o", ms=4, color=BLUE, elinewidth=0.9)
    axes.set_xlabel(f"predicted probability of {name}")
    axes.set_ylabel(f"share of {name} among the rows to test")
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))


def _some(rows: np.ndarray) -> np.ndarray:
    """At most so many of the rows, at random but always the same."""
    return np.random.default_rng(0).permutation(rows)[:_ROWS]


def _limits(axes: Axes, values: np.ndarray) -> None:
    """An outlier or two must not flatten the rest."""
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)
