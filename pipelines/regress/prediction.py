"""Predictions in the target's own unit, and how good they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.svi.bound import LatentMoments
from dustmap.likelihoods import Likelihood
from pipelines.regress.scaling import Scaling

# Both ends of the central intervals, and their names.
_ONE_SIGMA, _TWO_SIDED_95 = (0.15865525, 0.84134475), (0.025, 0.975)
# Of standardised variances.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model expects of the target, its noise included.

    Of classes ``mean`` is the probability of 1 and the quantiles those of the
    probability, as the field's uncertainty leaves it; ``nll`` is the negative log
    density of the truth, ``lower`` and ``upper`` the ends of the 95% interval.
    """

    truth: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    p16: np.ndarray
    p50: np.ndarray
    p84: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    nll: np.ndarray


def predict(
    truth: np.ndarray, latent: LatentMoments, likelihood: Likelihood, scaling: Scaling
) -> Prediction:
    """Moments and quantiles of the target; the Jacobian of the scaling is in nll."""
    mean, variance = latent.mean, _not_negative(latent.variance)
    expected = likelihood.predictive_moments(mean, variance)
    y = scaling.target(truth)
    nll = -likelihood.predictive_log_density(y, mean, variance) + scaling.log_jacobian

    def quantile(probability: float) -> np.ndarray:
        if likelihood.classes:
            return _probability_quantile(probability, mean, variance).numpy()
        return scaling.back(likelihood.quantile(probability, mean, variance))

    return Prediction(
        truth=truth,
        mean=scaling.back(expected.mean),
        std=expected.variance.sqrt().numpy() * scaling.y_scale,
        p16=quantile(_ONE_SIGMA[0]),
        p50=quantile(0.5),
        p84=quantile(_ONE_SIGMA[1]),
        lower=quantile(_TWO_SIDED_95[0]),
        upper=quantile(_TWO_SIDED_95[1]),
        nll=nll.numpy(),
    )


def metrics(prediction: Prediction, *, classes: bool) -> dict[str, float]:
    """Scores of the test rows, in the target's own unit.

    ``rmse`` and ``mae`` of the mean, ``nll`` the mean negative log density, and the
    share of rows inside the central intervals. Of classes ``rmse`` and ``mae`` are
    those of the probability, and ``brier`` the mean square of its error.
    """
    error = prediction.mean - prediction.truth
    scores = {
        "rows": float(len(error)),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.mean(np.abs(error))),
        "nll": float(np.mean(prediction.nll)),
    }
    if classes:
        right = (prediction.mean > 0.5) == (prediction.truth > 0.5)
        share = float(np.mean(prediction.truth))
        return {
            **scores,
            "accuracy": float(np.mean(right)),
            "brier": float(np.mean(error**2)),
            "share_of_class_1": share,
        }
    inside = (prediction.p16 <= prediction.truth) & (prediction.truth <= prediction.p84)
    wide = (prediction.lower <= prediction.truth) & (
        prediction.truth <= prediction.upper
    )
    return {
        **scores,
        "coverage_68": float(np.mean(inside)),
        "coverage_95": float(np.mean(wide)),
        "std_of_truth": float(np.std(prediction.truth)),
    }


def _not_negative(variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Variances whose rounding errors are zero; more than that is an error."""
    lowest = float(variance.min())
    if lowest < -_ROUNDING:
        raise RuntimeError(
            f"a variance of the field came out as {lowest:.3g} of the target's: the "
            "covariance is too close to singular, try another --method"
        )
    return variance.clamp_min(0.0)


def _probability_quantile(
    probability: float, mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    z = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64))
    return torch.special.ndtr(mean + z * variance.sqrt())
