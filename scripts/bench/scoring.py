"""How good predictions of extinction and density are. Numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Half-widths of intervals of 68% and 95% in standard deviations.
WIDTHS = (1.0, 1.96)
LEVELS = (68, 95)
_COLUMNS = ("mean", "std", "p2_5", "p16", "p50", "p84", "p97_5")
Columns = Mapping[str, np.ndarray]


def errors(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Root mean square and mean absolute error."""
    error = predicted - true
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
    }


def coverage(interval: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """Fractions inside intervals ``(4, T)``: ends at 68%, then at 95%."""
    low68, high68, low95, high95 = interval
    return (
        float(np.mean((low68 <= true) & (true <= high68))),
        float(np.mean((low95 <= true) & (true <= high95))),
    )


def correlations(density: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Of the density with the truth, and of their logarithms.

    The latter is that of the stars where both are positive.
    """
    both = (density > 0) & (true > 0)
    return {
        "density_r": _correlation(density, true),
        "density_log_r": _correlation(np.log(density[both]), np.log(true[both])),
        "density_negative": float(np.mean(density < 0)),
    }


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 2 or not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def score(prediction: Columns, truth: Columns) -> dict[str, float]:
    """How good a prediction of the noise-free extinction and of the density is.

    Both hold ``extinction`` [mag] and ``density`` [mag/pc]; the prediction may have
    their ``_interval``s. Coverages are fractions of the truth inside them.

    Raises
    ------
    ValueError
        If a prediction is not finite at some star.
    """
    for name, values in prediction.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{name} is not finite at some of the test stars")
    scores = {
        **errors(prediction["extinction"], truth["extinction"]),
        **correlations(prediction["density"], truth["density"]),
    }
    for name in truth:
        if f"{name}_interval" in prediction:
            held = coverage(prediction[f"{name}_interval"], truth[name])
            for level, fraction in zip(LEVELS, held, strict=True):
                scores[f"{name}_coverage_{level}"] = fraction
    return scores


def score_inside(columns: Columns, truth: Columns) -> dict[str, float]:
    """Scores of the rows of a table of predictions that lie in the map, counted."""
    inside = columns["inside"].astype(bool)
    kept = {name: values[inside] for name, values in columns.items()}
    true = {name: values[inside] for name, values in truth.items()}
    counts = {"test_stars": int(inside.sum()), "outside": int((~inside).sum())}
    return {**counts, **score(read_prediction(kept), true)}


def read_prediction(columns: Columns) -> dict[str, np.ndarray]:
    """Point estimates are means; intervals by quantiles where there are any.

    Without the quantiles p2_5 and p97_5 the interval of 95% follows from p16, p50 and
    p84 by stretching both halves 1.96 times, in the logarithm where all are positive. A
    map without posterior samples has none.
    """
    found: dict[str, np.ndarray] = {}
    for quantity in ("extinction", "density"):
        held = {
            name: columns[f"{quantity}_{name}"]
            for name in _COLUMNS
            if f"{quantity}_{name}" in columns
        }
        found[quantity] = held["mean"]
        if np.isnan(held["std"]).all():
            continue  # of a map without samples
        quantiles = [held[name] for name in ("p16", "p50", "p84") if name in held]
        if "p2_5" in held:
            ends = ("p16", "p84", "p2_5", "p97_5")
            found[f"{quantity}_interval"] = np.stack([held[name] for name in ends])
        elif len(quantiles) == 3:
            found[f"{quantity}_interval"] = stretched(*quantiles)
        else:
            found[f"{quantity}_interval"] = normal_interval(held["mean"], held["std"])
    return found


def stretched(low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Intervals ``(4, T)`` from the quantiles p16, p50, p84."""
    positive = bool((low > 0).all())
    a, m, b = (np.log(x) if positive else x for x in (low, middle, high))
    ends = np.stack([end for w in WIDTHS for end in (m + w * (a - m), m + w * (b - m))])
    return np.exp(ends) if positive else ends


def normal_interval(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Symmetric intervals, shape ``(4, T)``."""
    return np.stack([mean + s * w * std for w in WIDTHS for s in (-1, 1)])


NAMES = {
    "test_stars": "test stars",
    "outside": "outside",
    "rmse": "RMSE [mag]",
    "mae": "MAE [mag]",
    "extinction_coverage_68": "A in 68%",
    "extinction_coverage_95": "A in 95%",
    "density_r": "r(ρ)",
    "density_log_r": "r(ln ρ)",
    "density_coverage_68": "ρ in 68%",
    "density_coverage_95": "ρ in 95%",
    "density_negative": "ρ < 0",
}


def named(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores under the headings of a table, in its order."""
    return {NAMES[name]: scores[name] for name in NAMES if name in scores}
