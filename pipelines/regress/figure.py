"""One figure of a regression: a curve, a map of two inputs, or truth and mean."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from pipelines.base.quantiles import QUANTILES
from pipelines.figures.scales import UNMAPPED, Scale, colour_scale
from pipelines.figures.style import BLUE, ORANGE, SMALL
from pipelines.regress.regressor import Prediction, Regressor
from pipelines.regress.table import Rows


def draw(rows: Rows, model: Regressor, prediction: Prediction) -> Figure:
    """Draw a figure for the number of inputs; ``prediction`` is for the test rows."""
    if len(rows.inputs) == 1:
        return _curve(rows, model)
    if len(rows.inputs) == 2:
        return _map(rows, model, prediction)
    return _against_truth(rows.y[rows.test], prediction, rows.target)


def _curve(rows: Rows, model: Regressor) -> Figure:
    """Draw rows, mean and central intervals of the target along the only input."""
    x = np.linspace(rows.x.min(), rows.x.max(), 500)
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
    for interval, alpha in ((("p16", "p84"), 0.22), (("p2_5", "p97_5"), 0.13)):
        low, high = (found.quantile(QUANTILES[name]) for name in interval)
        axes.fill_between(x, low, high, color=BLUE, alpha=alpha, lw=0)
    _limit(axes, np.concatenate([rows.y, low, high]))
    label = "mean, 68% and 95% of the rows"
    axes.plot(x, found.mean, color=BLUE, lw=1.6, label=label)
    axes.set(xlim=(x[0], x[-1]), xlabel=rows.inputs[0], ylabel=rows.target)
    axes.legend(fontsize=SMALL, frameon=False, markerscale=1.6)
    return figure


def _map(rows: Rows, model: Regressor, prediction: Prediction) -> Figure:
    """Draw rows, mean, std and the residuals of test rows over both inputs."""
    low, high = rows.x.min(axis=0), rows.x.max(axis=0)
    # About two rows a pixel, in 30 to 200 pixels along a side.
    pixels = int(np.clip(math.sqrt(len(rows.x) / 2), 30, 200))
    edges = np.linspace(low, high, pixels + 1).T
    mesh = np.meshgrid(*[(side[1:] + side[:-1]) / 2 for side in edges])
    places = [side.ravel() for side in mesh]
    found = model.distribution(dict(zip(rows.inputs, places, strict=True)))
    shape = (pixels, pixels)

    def averaged(x: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return means of rows in pixels, NaN where there is none."""
        totals, counts = (
            np.histogram2d(x[:, 0], x[:, 1], bins=list(edges), weights=weights)[0].T
            for weights in (values, None)
        )
        return np.divide(
            totals, counts, out=np.full(counts.shape, math.nan), where=counts > 0
        )

    mean, std = found.mean.reshape(shape), found.field_std.reshape(shape)
    observed = averaged(rows.x, rows.y)
    error = averaged(rows.x[rows.test], rows.y[rows.test] - prediction.mean)
    both = np.concatenate([observed[np.isfinite(observed)], found.mean])
    common = Scale(
        cmap=mpl.colormaps["viridis"].with_extremes(bad=UNMAPPED),
        norm=Normalize(*np.percentile(both, [0.5, 99.5])),
        extend="both",
    )
    target = rows.target
    panels = {
        "rows, averaged in pixels": (observed, common, target),
        "mean": (mean, common, target),
        "std of the field, without noise": (std, colour_scale("spread", std), target),
        "residuals of the rows to test": (
            error,
            colour_scale("difference", error),
            f"{target} − mean",
        ),
    }
    width = float(np.clip(np.ptp(rows.x[:, 0]) / np.ptp(rows.x[:, 1]), 0.6, 1.8))
    size = (4 * (2.2 * width**0.5 + 0.25), 2.4 / width**0.5 + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    for axes, (title, (values, scale, label)) in zip(
        figure.subplots(1, 4, sharex=True, sharey=True), panels.items(), strict=True
    ):
        image = axes.pcolormesh(*edges, scale.shown(values), **scale.look)
        image.set_rasterized(True)
        bar = figure.colorbar(
            image, ax=axes, location="bottom", extend=scale.extend, label=label
        )
        bar.ax.tick_params(labelsize=SMALL)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel(rows.inputs[0])
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(rows.inputs[1])
    return figure


def _against_truth(truth: np.ndarray, prediction: Prediction, target: str) -> Figure:
    """Draw truth against mean for the test rows."""
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(f"{len(truth):,} rows to test", fontsize="medium")
    some = _some(np.arange(len(truth)))
    truth, mean = truth[some], prediction.mean[some]
    low, high = (prediction.quantile(QUANTILES[name])[some] for name in ("p16", "p84"))
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
    return figure


def _some(rows: np.ndarray) -> np.ndarray:
    """Choose at most 4,000 of the rows at random, reproducibly."""
    return np.random.default_rng(0).permutation(rows)[:4000]


def _limit(axes: Axes, values: np.ndarray) -> None:
    """Limit the axis, robust to a few outliers."""
    low, high = np.percentile(values, [0.2, 99.8])
    margin = 0.06 * (high - low)
    axes.set_ylim(low - margin, high + margin)
