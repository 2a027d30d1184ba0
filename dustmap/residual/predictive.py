r"""The distribution of measured extinctions about their predictions.

Errors of real stars grow with extinction, and some are outliers. A measurement differs
from its predicted mean by a Student-T of :math:`\nu` degrees of freedom and the scale

.. math::
   \ln \frac{S}{s} = a_0 + a_1 \ln s + a_2 \ln E + a_3 \ln \frac{\sigma_d}{d}
       + a_4 \ln d + u ,

with the standard deviation s of prediction and stated noise together, the predicted
extinction E (at least s), the relative distance error (at least 0.001), and a term u of
each survey; for the fraction q of outliers S is ten times as large. The parameters
maximise the log density of stars that were not fitted, times a prior about
:math:`S = s`, ten degrees of freedom and few outliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Shaped
from scipy.optimize import brentq
from scipy.special import ndtri_exp, stdtr, stdtrit
from scipy.stats import t as student_t

# Prior standard deviations of a_0, of the other coefficients and of u, and the prior of
# ln(ν - 2.5).
_CONSTANT_STD, _STD, _SURVEY_STD = 0.5, 0.3, 0.3
_LEAST_DEGREES, _DEGREES, _DEGREES_STD = 2.5, 2.0, 1.0
# Factor on S of outliers, and the prior of logit q.
_WIDE, _LOGIT, _LOGIT_STD = 10.0, -5.0, 1.0
# Least relative distance error, and steps of the search.
_PLACED, _STEPS = 1e-3, 100

Column = Float[np.ndarray, " n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Predicted measurements of stars, shape ``(n,)``.

    ``std`` is the standard deviation of prediction and stated noise together, and
    ``extinction`` the predicted mean [mag]; ``placing`` is the distance error and
    ``distance`` the distance [pc]; ``survey`` are names.
    """

    std: Column
    extinction: Column
    placing: Column
    distance: Column
    survey: Shaped[np.ndarray, " n"] | None = None

    def logarithms(self) -> Float[np.ndarray, "n 4"]:
        """Return the logarithms on which the scale depends."""
        columns = (
            self.std,
            np.maximum(self.extinction, self.std),
            np.maximum(self.placing / self.distance, _PLACED),
            self.distance,
        )
        return np.log(np.column_stack(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictiveLaw:
    """The law of a map's stars, see the module.

    Parameters
    ----------
    coefficients
        ``a_0`` to ``a_4``, with logarithms about their ``centres``, and the terms of
        ``surveys``.
    centres
        Means of the four logarithms over the stars that were learnt from.
    degrees
        ν, at least 2.5.
    surveys
        Names of surveys with a term of their own.
    outliers
        Their fraction q.
    """

    coefficients: Float[np.ndarray, " p"]
    centres: Float[np.ndarray, "4"]
    degrees: float
    surveys: tuple[str, ...] = ()
    outliers: float = 0.0

    def scale(self, stars: Measured) -> Column:
        """Return S of stars [mag]."""
        factors = _factors(stars, self.centres, self.surveys)
        return stars.std * np.exp(factors @ self.coefficients)

    def std(self, scale: Column) -> Column:
        """Return ``S √((1 + 99 q) ν / (ν - 2))`` for scales S [mag]."""
        wider = 1 + self.outliers * (_WIDE**2 - 1)
        return scale * np.sqrt(wider * self.degrees / (self.degrees - 2))

    def quantile(self, scale: Column, probability: float) -> Column:
        """Return a quantile of the difference from the predicted mean [mag]."""
        core = float(stdtrit(self.degrees, probability))
        if core == 0:
            return 0 * scale
        # A little more than the quantiles of either part.
        low, high = 0.5 * core, 2 * _WIDE * core
        root = brentq(lambda x: float(self._below(x)) - probability, low, high)
        return scale * cast(float, root)

    def log_density(self, error: Column, scale: Column) -> Column:
        """Return the log density of differences from the mean [1/mag]."""
        parts = [
            student_t.logpdf(error, self.degrees, scale=wide * scale)
            for wide in (1, _WIDE)
        ]
        weights = np.log([[1 - self.outliers], [max(self.outliers, 1e-300)]])
        return np.logaddexp(*(weights + np.array(parts)))

    def z_scores(self, error: Column, scale: Column) -> Column:
        """Return the standard normal deviates of differences from the mean [mag]."""
        tail = self._below(-np.abs(error) / scale)
        return -np.sign(error) * ndtri_exp(np.log(tail))

    def _below(self, x: Column | float) -> Column:
        """Return the probability of differences below x S."""
        core, wide = stdtr(self.degrees, x), stdtr(self.degrees, x / _WIDE)
        return (1 - self.outliers) * core + self.outliers * wide


def learn_law(error: Column, stars: Measured) -> PredictiveLaw:
    """Learn the law from differences, measured minus predicted, of unseen stars."""
    centres = stars.logarithms().mean(axis=0)
    surveys = () if stars.survey is None else tuple(np.unique(stars.survey).tolist())
    surveys = surveys if len(surveys) > 1 else ()
    factors = torch.from_numpy(_factors(stars, centres, surveys))
    given, start = torch.as_tensor(error), torch.as_tensor(stars.std).log()
    deviations = [_CONSTANT_STD, *[_STD] * 4, *[_SURVEY_STD] * len(surveys)]
    width = torch.tensor(deviations, dtype=torch.float64)
    steps = torch.zeros(len(width) + 2, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([steps], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def degrees() -> torch.Tensor:
        return _LEAST_DEGREES + (_DEGREES + _DEGREES_STD * steps[-2]).exp()

    def logit() -> torch.Tensor:
        return _LOGIT + _LOGIT_STD * steps[-1]

    def closure() -> torch.Tensor:
        search.zero_grad()
        scale = (start + factors @ (width * steps[:-2])).exp()
        core, wide = (
            torch.distributions.StudentT(degrees(), 0.0, w * scale).log_prob(given)
            for w in (1, _WIDE)
        )
        logsigmoid = torch.nn.functional.logsigmoid
        score = torch.logaddexp(logsigmoid(-logit()) + core, logsigmoid(logit()) + wide)
        value = steps.square().sum() / 2 - score.sum()
        value.backward()
        return value

    with torch.enable_grad():
        search.step(closure)
    with torch.no_grad():
        return PredictiveLaw(
            coefficients=(width * steps[:-2]).numpy(),
            centres=centres,
            degrees=float(degrees()),
            surveys=surveys,
            outliers=float(logit().sigmoid()),
        )


def _factors(
    stars: Measured, centres: Float[np.ndarray, "4"], surveys: tuple[str, ...]
) -> Float[np.ndarray, "n p"]:
    """Return the factors of the coefficients."""
    parts = [np.ones((len(stars.std), 1)), stars.logarithms() - centres]
    if surveys:
        names = np.zeros(len(stars.std)) if stars.survey is None else stars.survey
        parts.append(names[:, None] == np.array(surveys))
    return np.hstack(parts).astype(np.float64)
