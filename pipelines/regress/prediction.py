"""Predictions in the target's own unit, and how good they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.likelihoods import Likelihood
from dustmap.residual.neighbours import nearest
from pipelines.regress.columns import SplitData

# Ends of the central intervals, and the median.
_PROBABILITIES = {
    "p16": 0.15865525,
    "p50": 0.5,
    "p84": 0.84134475,
    "lower": 0.025,
    "upper": 0.975,
}
# Rows whose mean a fit has to beat, and test rows on which it is compared with that.
_NEAR, _COMPARED = 10, 10_000
# Of standardised variances.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """``(value − shift) / scale`` for inputs (D,) and target."""

    x_shift: np.ndarray
    x_scale: np.ndarray
    y_shift: float
    y_scale: float

    @classmethod
    def of(cls, data: SplitData) -> Scaling:
        """By mean and standard deviation of the rows to fit; classes stay 0 and 1."""
        x, y = data.x[~data.test], data.y[~data.test]
        classes = data.classes is not None
        return cls(
            x_shift=x.mean(axis=0),
            x_scale=x.std(axis=0),
            y_shift=0.0 if classes else float(y.mean()),
            y_scale=1.0 if classes else float(y.std()),
        )

    def inputs(self, x: np.ndarray) -> Float[Tensor, "n d"]:
        """Standardised inputs."""
        return torch.as_tensor((x - self.x_shift) / self.x_scale)

    def target(self, y: np.ndarray) -> Float[Tensor, " n"]:
        """Standardised target."""
        return torch.as_tensor((y - self.y_shift) / self.y_scale)

    def back(self, values: Float[Tensor, " n"]) -> np.ndarray:
        """Standardised values of the target in its own unit."""
        return values.numpy() * self.y_scale + self.y_shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model expects of the target, its noise included.

    Of classes ``mean`` is the probability of 1 and the quantiles those of the
    probability, as the field's uncertainty leaves it; ``lower`` and ``upper`` are the
    ends of the 95% interval.
    """

    mean: np.ndarray
    std: np.ndarray
    p16: np.ndarray
    p50: np.ndarray
    p84: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def predict(
    latent: LatentMoments, likelihood: Likelihood, scaling: Scaling
) -> Prediction:
    """Moments and quantiles of the target."""
    mean, variance = _checked(latent)
    expected = likelihood.predictive_moments(mean, variance)

    def quantile(probability: float) -> np.ndarray:
        if not likelihood.classes:
            return scaling.back(likelihood.quantile(probability, mean, variance))
        z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
        return torch.special.ndtr(mean + z * variance.sqrt()).numpy()

    return Prediction(
        mean=scaling.back(expected.mean),
        std=expected.variance.sqrt().numpy() * scaling.y_scale,
        **{name: quantile(value) for name, value in _PROBABILITIES.items()},
    )


def metrics(
    truth: np.ndarray, latent: LatentMoments, likelihood: Likelihood, scaling: Scaling
) -> dict[str, float]:
    """Scores of the test rows, in the target's own unit.

    ``rmse`` and ``mae`` of the mean, ``nll`` the mean negative log density, the
    share of rows inside the central intervals, and the median distance of the truth
    from the median in half the 68% interval. Of classes ``rmse`` and ``mae`` are
    those of the probability, and ``brier`` the mean square of its error.
    """
    found = predict(latent, likelihood, scaling)
    density = likelihood.predictive_log_density(
        scaling.target(truth), *_checked(latent)
    )
    error = found.mean - truth
    scores = {
        "rows": len(error),
        "rmse": np.sqrt(np.mean(error**2)),
        "mae": np.mean(np.abs(error)),
        "nll": math.log(scaling.y_scale) - float(density.mean()),
    }
    if likelihood.classes:
        scores |= {
            "accuracy": np.mean((found.mean > 0.5) == (truth > 0.5)),
            "brier": np.mean(error**2),
            "share_of_class_1": np.mean(truth),
        }
    else:
        inside = (found.p16 <= truth) & (truth <= found.p84)
        wide = (found.lower <= truth) & (truth <= found.upper)
        scores |= {
            "coverage_68": np.mean(inside),
            "coverage_95": np.mean(wide),
            "z_median": np.median(2 * (truth - found.p50) / (found.p84 - found.p16)),
            "std_of_truth": np.std(truth),
        }
    return {name: float(value) for name, value in scores.items()}


def beside_neighbours(
    data: SplitData, scaling: Scaling, mean: np.ndarray
) -> dict[str, float]:
    """Error of the mean of the 10 nearest rows, and the fit's squared error over it.

    ``mean`` is the fit's of every test row. ``excess`` is the mean difference of the
    squared errors in its own standard errors, of 10,000 rows at most.
    """
    x, rows = scaling.inputs(data.x), np.flatnonzero(data.test)
    some = np.random.default_rng(0).permutation(len(rows))[:_COMPARED]
    near = nearest(x[~data.test], x[rows[some]], _NEAR).numpy()
    truth = data.y[rows[some]]
    squared = (data.y[~data.test][near].mean(axis=1) - truth) ** 2
    score = {"rmse_neighbours": float(squared.mean() ** 0.5)}
    difference = (mean[some] - truth) ** 2 - squared
    if len(some) > 1 and (spread := difference.std(ddof=1)) > 0:
        score["excess"] = float(difference.mean() / spread * len(some) ** 0.5)
    return score


def _checked(latent: LatentMoments) -> LatentMoments:
    """Variances below zero by rounding are zero; more than that is an error."""
    lowest = float(latent.variance.min())
    if lowest < -_ROUNDING:
        raise RuntimeError(
            f"a variance of the field came out as {lowest:.3g} of the target's: the "
            "covariance is too close to singular, try another --method"
        )
    return latent._replace(variance=latent.variance.clamp_min(0.0))
