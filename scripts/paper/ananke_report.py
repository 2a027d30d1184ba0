"""Scores of the Ananke experiment, its tables and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from ananke_data import Observed, Sample
from ananke_engines import Prediction
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import erf

from pipelines.figures.style import CYCLE, save_figure

DENSE = "dense GP"
NEIGHBOURS = "nearest neighbours"
# Of the noise-free extinction by mean ± std, and RMSE over the dense GP's.
COVERAGE = (0.60, 0.78)
WORST_RATIO = 1.05
_PAPER = {
    "mae": ("MAE [mag]", 0.0101, 0.0153),
    "mse": ("MSE [mag²]", 0.0012, 0.0020),
    "loglike_y": ("log likelihood", 2.3517, 2.0690),
}

Score = dict[str, float]
# Mean and standard deviation over the noise seeds.
Summary = dict[str, tuple[float, float]]


def score(prediction: Prediction, truth: Sample, observed: Observed) -> Score:
    """How good one prediction of the test stars is.

    ``loglike_e`` is that of the noise-free extinction, ``loglike_y`` of the noisy one.
    """
    error = prediction.extinction_mean - truth.extinction
    scores = {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "mse": float(np.mean(error**2)),
        "seconds": prediction.seconds,
    }
    if prediction.extinction_std is not None:
        std = prediction.extinction_std
        noisy = prediction.extinction_mean - observed.values
        scores |= {
            "loglike_e": _log_likelihood(error, std**2),
            "loglike_y": _log_likelihood(noisy, std**2 + observed.sigma**2),
            **_coverages("", error / std),
            "std": float(np.median(std)),
        }
    if prediction.density_mean is not None and prediction.density_std is not None:
        density, spread = prediction.density_mean, prediction.density_std
        positive = density > 0
        logs = np.log(density[positive]), np.log(truth.density[positive])
        scores |= {
            "density_r": float(np.corrcoef(density, truth.density)[0, 1]),
            "density_log_r": float(np.corrcoef(*logs)[0, 1]),
            "density_negative": float(np.mean(~positive)),
            **_coverages("density_", (density - truth.density) / spread),
        }
    return scores


def _log_likelihood(error: np.ndarray, variance: np.ndarray) -> float:
    terms = np.log(2 * np.pi * variance) + error**2 / variance
    return float(-0.5 * np.mean(terms))


def _coverages(prefix: str, z: np.ndarray) -> Score:
    return {
        f"{prefix}coverage_68": float(np.mean(np.abs(z) <= 1.0)),
        f"{prefix}coverage_95": float(np.mean(np.abs(z) <= 1.96)),
    }


def summarise(scores: Sequence[Score]) -> Summary:
    """Mean and standard deviation of every score over the seeds."""
    return {
        name: (
            float(np.mean([s[name] for s in scores])),
            float(np.std([s[name] for s in scores])),
        )
        for name in scores[0]
    }


def judge(
    scores: Mapping[str, Sequence[Score]],
) -> dict[str, dict[str, float | bool]]:
    """Whether every engine meets the targets, against the dense GP on its own seeds."""
    verdicts: dict[str, dict[str, float | bool]] = {}
    for name, own in scores.items():
        if name == NEIGHBOURS:
            continue
        exact = summarise(scores[DENSE][: len(own)])["rmse"][0]
        summary = summarise(own)
        ratio = summary["rmse"][0] / exact
        covered = summary["coverage_68"][0]
        verdicts[name] = {
            "seeds": len(own),
            "rmse_over_dense": ratio,
            "coverage": covered,
            "rmse_met": ratio <= WORST_RATIO,
            "coverage_met": COVERAGE[0] <= covered <= COVERAGE[1],
        }
    return verdicts


def results_table(summaries: Mapping[str, Summary]) -> str:
    """One row per engine, mean ± standard deviation over the seeds."""
    columns = {
        "rmse": ("RMSE 1e-6", 1e6, ".0f"),
        "mae": ("MAE 1e-6", 1e6, ".0f"),
        "mse": ("MSE 1e-9", 1e9, ".0f"),
        "loglike_e": ("loglike e", 1.0, ".2f"),
        "loglike_y": ("loglike y", 1.0, ".3f"),
        "coverage_68": ("68%", 1.0, ".3f"),
        "coverage_95": ("95%", 1.0, ".3f"),
        "density_r": ("density r", 1.0, ".3f"),
        "density_log_r": ("log r", 1.0, ".3f"),
        "seconds": ("seconds", 1.0, ".1f"),
    }
    rows = [["engine", *(title for title, _, _ in columns.values())]]
    for name, summary in summaries.items():
        cells = [name]
        for key, (_, factor, form) in columns.items():
            if key not in summary:
                cells.append("-")
                continue
            mean, spread = (factor * value for value in summary[key])
            cells.append(f"{mean:{form}} ± {spread:{form}}")
        rows.append(cells)
    return _aligned(rows)


def paper_table(summaries: Mapping[str, Summary], *, stars: int) -> str:
    """The paper's figures beside these, which are of another data set."""
    shown = [name for name in summaries if name != NEIGHBOURS]
    rows = [["", "paper: HIP-GP", "paper: SVGP", *(f"here: {n}" for n in shown)]]
    for key, (title, ours, theirs) in _PAPER.items():
        values = [f"{summaries[name][key][0]:.3g}" for name in shown]
        rows.append([title, f"{ours:g}", f"{theirs:g}", *values])
    note = (
        "paper: 500,000 stars in 4 x 4 x 2 kpc, M = 62,500 (HIP-GP) and 16,384 (SVGP), "
        f"20,000 test stars\nhere: {stars} stars of the same simulation in "
        "0.5 x 0.5 x 0.1 kpc: another data set, so the columns\ndo not measure the "
        "same thing. MAE and MSE of the noise-free extinction, log likelihood\nof the "
        "noisy one."
    )
    return f"{_aligned(rows)}\n{note}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def draw(
    path: Path,
    summaries: Mapping[str, Summary],
    predictions: Mapping[str, Prediction],
    truth: Sample,
) -> None:
    """Errors of all engines; of one seed: calibration, extinctions and densities."""
    figure = Figure(figsize=(11.0, 8.5), layout="constrained")
    ((left, right), (below, corner)) = figure.subplots(2, 2)
    colours = dict(zip(summaries, CYCLE, strict=False))
    _draw_errors(left, summaries, colours)
    _draw_calibration(right, predictions, truth, colours)
    chosen = {name: predictions[name] for name in (DENSE, "full-batch")}
    _draw_extinctions(below, chosen, truth, colours)
    _draw_densities(corner, chosen, truth, colours)
    save_figure(figure, path)


def _draw_errors(
    axes: Axes, summaries: Mapping[str, Summary], colours: Mapping[str, str]
) -> None:
    names = list(summaries)[::-1]
    mean, spread = zip(*(summaries[name]["rmse"] for name in names), strict=True)
    axes.barh(
        names,
        [1e3 * value for value in mean],
        xerr=[1e3 * value for value in spread],
        color=[colours[name] for name in names],
        height=0.7,
    )
    axes.axvline(1e3 * WORST_RATIO * summaries[DENSE]["rmse"][0], color="0.3", ls=":")
    axes.set_xlabel("RMSE of the noise-free extinction [0.001 mag]")
    axes.set_title("Held-out error (dotted: 1.05 × the dense GP's)", fontsize=10)


def _draw_calibration(
    axes: Axes,
    predictions: Mapping[str, Prediction],
    truth: Sample,
    colours: Mapping[str, str],
) -> None:
    width = np.linspace(0.0, 3.0, 61)
    nominal = erf(width / np.sqrt(2))
    axes.plot([0, 1], [0, 1], color="0.6", lw=1)
    for name, prediction in predictions.items():
        if prediction.extinction_std is None:
            continue
        error = prediction.extinction_mean - truth.extinction
        z = np.abs(error / prediction.extinction_std)
        held = [np.mean(z <= w) for w in width]
        axes.plot(nominal, held, color=colours[name], lw=1.6, label=name)
    one = float(erf(1 / np.sqrt(2)))
    axes.vlines(one, *COVERAGE, color="0.3", lw=3, alpha=0.5)
    axes.set_xlabel("nominal coverage")
    axes.set_ylabel("noise-free extinctions inside")
    axes.set_title("Calibration (grey bar: target of mean ± std)", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _draw_extinctions(
    axes: Axes,
    predictions: Mapping[str, Prediction],
    truth: Sample,
    colours: Mapping[str, str],
) -> None:
    for name, prediction in predictions.items():
        error = 1e3 * (prediction.extinction_mean - truth.extinction)
        axes.plot(truth.extinction, error, ".", ms=3, color=colours[name], label=name)
    axes.axhline(0, color="0.5", lw=1)
    axes.set_xlabel("true extinction [mag]")
    axes.set_ylabel("predicted − true [0.001 mag]")
    axes.legend(fontsize=8, frameon=False)


def _draw_densities(
    axes: Axes,
    predictions: Mapping[str, Prediction],
    truth: Sample,
    colours: Mapping[str, str],
) -> None:
    high = float(truth.density.max())
    axes.plot([0, high], [0, high], color="0.6", lw=1)
    for name, prediction in predictions.items():
        if (density := prediction.density_mean) is None:
            continue
        axes.plot(truth.density, density, ".", ms=3, color=colours[name], label=name)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("true density at the star [mag/kpc]")
    axes.set_ylabel("predicted density [mag/kpc]")
    axes.legend(fontsize=8, frameon=False)
