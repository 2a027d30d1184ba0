"""One figure of a regression: the fit over one or two inputs, or truth and mean."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.figures.scales import colour_scale
from pipelines.figures.style import BLUE, ORANGE, SMALL
from pipelines.regress.columns import SplitData
from pipelines.regress.fitted import FittedModel
from pipelines.regress.prediction import Prediction, predict
from pipelines.regress.scaling import Scaling

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
    return _against_truth(data, prediction)


def _curve(data: SplitData, scaling: Scaling, model: FittedModel) -> Figure:
    """Rows, mean and central intervals of the target along the only input."""
    low, high = data.x.min(), data.x.max()
    x = np.linspace(low, high, _CURVE)
    seen = _predicted(x[:, None], scaling, model)
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    fit, test = _some(data.x[~data.test]), _some(data.x[data.test])
    size = 10 if len(data.x) < 1000 else 4
    options = {"s": size, "linewidths": 0, "rasterized": True}
    axes.scatter(
        data.x[~data.test][fit],
        data.y[~data.test][fit],
        color="0.55",
        label="rows to fit",
        alpha=0.7,
        **options,
    )
    axes.scatter(
        data.x[data.test][test],
        data.y[data.test][test],
        color=ORANGE,
        label="rows to test",
        **options,
    )
    if model.likelihood.classes:
        axes.fill_between(x, seen.p16, seen.p84, color=BLUE, alpha=0.25, lw=0)
        label = "probability of 1, 68%"
    else:
        axes.fill_between(x, seen.lower, seen.upper, color=BLUE, alpha=0.13, lw=0)
        axes.fill_between(x, seen.p16, seen.p84, color=BLUE, alpha=0.22, lw=0)
        label = "mean, 68% and 95% of the rows"
        _limits(axes, np.concatenate([data.y, seen.lower, seen.upper]))
    axes.plot(x, seen.mean, color=BLUE, lw=1.6, label=label)
    axes.set_xlim(low, high)
    axes.set_xlabel(data.inputs[0])
    axes.set_ylabel(data.target)
    axes.legend(fontsize=SMALL, frameon=False, loc="best", markerscale=1.6)
    return figure


def _image(data: SplitData, scaling: Scaling, model: FittedModel) -> Figure:
    """Mean of the target and standard deviation of the field over both inputs."""
    sides = [
        np.linspace(data.x[:, a].min(), data.x[:, a].max(), _PIXELS) for a in (0, 1)
    ]
    mesh = np.stack(np.meshgrid(*sides, indexing="xy"), axis=-1).reshape(-1, 2)
    seen = _predicted(mesh, scaling, model)
    latent = model.latent(scaling.inputs(mesh))
    classes = data.classes is not None
    std = latent.variance.clamp_min(0).sqrt().numpy() * scaling.y_scale
    if classes:
        std = 0.5 * (seen.p84 - seen.p16)
    mean = seen.mean.reshape(_PIXELS, _PIXELS)
    std = std.reshape(_PIXELS, _PIXELS)
    figure = Figure(figsize=(9.2, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    extent = (sides[0][0], sides[0][-1], sides[1][0], sides[1][-1])
    low, high = (0.0, 1.0) if classes else np.percentile(mean, [0.5, 99.5])
    name = f"probability of {data.target} = {data.classes[1]}" if data.classes else ""
    shared = {
        "extent": extent,
        "origin": "lower",
        "aspect": "auto",
        "interpolation": "bilinear",
    }
    image = left.imshow(mean, cmap="viridis", vmin=low, vmax=high, **shared)
    extend = _extend(mean, low, high)
    figure.colorbar(image, ax=left, label=name or data.target, extend=extend)
    rows = _some(data.x)
    left.scatter(
        *data.x[rows].T,
        c=data.y[rows],
        cmap="viridis",
        vmin=low,
        vmax=high,
        s=6 if len(rows) < 2000 else 2.5,
        edgecolors="white",
        linewidths=0.15,
        rasterized=True,
    )
    left.set_title("mean, and the rows", fontsize="medium")
    scale = colour_scale("spread", std)
    image = right.imshow(std, cmap=scale.cmap, norm=scale.norm, **shared)
    label = "half the 68% interval" if classes else f"std of the mean of {data.target}"
    figure.colorbar(image, ax=right, label=label, extend=scale.extend)
    right.set_title("uncertainty of the field, without noise", fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel(data.inputs[0])
        axes.set_xlim(extent[:2])
        axes.set_ylim(extent[2:])
    left.set_ylabel(data.inputs[1])
    return figure


def _against_truth(data: SplitData, prediction: Prediction) -> Figure:
    """Mean against truth of the test rows; of classes, how often they come true."""
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    if data.classes is not None:
        return _reliability(figure, axes, prediction, data.classes[1])
    rows = _some(prediction.truth[:, None])
    truth, mean = prediction.truth[rows], prediction.mean[rows]
    both = np.percentile(np.concatenate([truth, mean]), [0, 100])
    axes.errorbar(
        mean,
        truth,
        xerr=[mean - prediction.p16[rows], prediction.p84[rows] - mean],
        fmt=".",
        ms=3,
        color=BLUE,
        ecolor=BLUE,
        elinewidth=0.5,
        alpha=0.35 if len(rows) > 300 else 0.8,
        rasterized=True,
    )
    axes.plot(both, both, color="0.2", lw=0.9)
    axes.set_xlabel(f"predicted {data.target}, with 68% interval")
    axes.set_ylabel(f"true {data.target}")
    _limits(axes, truth)
    axes.set_title(f"{len(prediction.truth):,} rows to test", fontsize="medium")
    return figure


def _reliability(
    figure: Figure, axes: Axes, prediction: Prediction, name: str
) -> Figure:
    order = np.argsort(prediction.mean)
    groups = np.array_split(order, max(1, min(12, len(order) // 20)))
    mean = [prediction.mean[g].mean() for g in groups]
    share = np.array([prediction.truth[g].mean() for g in groups])
    error = [math.sqrt(max(p * (1 - p), 0.01) / len(g)) for p, g in zip(share, groups)]
    axes.plot([0, 1], [0, 1], color="0.2", lw=0.9)
    axes.errorbar(mean, share, yerr=error, fmt="o", ms=4, color=BLUE, elinewidth=0.9)
    axes.set_xlabel(f"predicted probability of {name}")
    axes.set_ylabel(f"share of {name} among the rows to test")
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    return figure


def _predicted(x: np.ndarray, scaling: Scaling, model: FittedModel) -> Prediction:
    latent = model.latent(scaling.inputs(x))
    # What is asked for has no truth: any value serves.
    truth = np.full(len(x), scaling.y_shift)
    return predict(truth, latent, model.likelihood, scaling)


def _some(rows: np.ndarray) -> np.ndarray:
    """Row numbers of at most so many, at random but always the same."""
    return np.random.default_rng(0).permutation(len(rows))[:_ROWS]


def _limits(axes: Axes, values: np.ndarray) -> None:
    """An outlier or two must not flatten the rest."""
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def _extend(image: np.ndarray, low: float, high: float) -> str:
    below, above = bool((image < low).any()), bool((image > high).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[
        below, above
    ]
