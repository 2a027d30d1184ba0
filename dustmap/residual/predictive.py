r"""The distribution of measured extinctions about their predictions.

Errors of real stars grow with extinction, and some are outliers. A measurement differs
from its predicted mean by a Student-T of :math:`\nu` degrees of freedom about a shift
M, with the scale S,

.. math::
   x = \left(\ln s, \ln E, \ln \frac{\sigma_d}{d}, \ln d\right) - \bar x , \qquad
   \ln \frac{S}{s} = a_0 + a \cdot x + u , \\
   \frac{M}{E} = \sum_{i + j \le 3} b_{ij}\, x_3^i\, x_4^j ,

with the standard deviation s of prediction and stated noise together, the predicted
extinction E (at least s), the relative distance error (at least 0.001), and a term u of
each survey; for the fraction q of outliers S is ten times as large. At a given distance
faint stars have larger parallax errors, and stars with more dust before them than their
neighbours are faint: hence M, in which x₃ and x₄ end at their 1% and 99% quantiles. The
parameters maximise the log density of stars that were not fitted, times a prior about
:math:`S = s`, :math:`M = 0`, ten degrees of freedom and few outliers.
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

# Prior standard deviations of a_0, of the other coefficients, of u and of the shift's
# coefficients, the part of stars beyond either end of a shift, and the prior of
# ln(ν - 2.5).
_CONSTANT_STD, _STD, _SURVEY_STD, _SHIFT_STD, _BEYOND = 0.5, 0.3, 0.3, 0.1, 0.01
_LEAST_DEGREES, _DEGREES, _DEGREES_STD = 2.5, 2.0, 1.0
# Factor on S of outliers, and the prior of logit q.
_WIDE, _LOGIT, _LOGIT_STD = 10.0, -5.0, 1.0
# Gain of unseen halves [nats] at which a law has a shift: of catalogues of 600 stars
# without one, one in forty has it.
_GAIN = 3.0
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

    def select(self, rows: Shaped[np.ndarray, " k"]) -> Measured:
        """Return some of the stars."""
        survey = None if self.survey is None else self.survey[rows]
        names = ("std", "extinction", "placing", "distance")
        columns = {name: getattr(self, name)[rows] for name in names}
        return Measured(**columns, survey=survey)

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
    slopes, ends
        Coefficients ``b`` of every survey's shift, and the ends of its x₃ and x₄.
    degrees
        ν, at least 2.5.
    surveys
        Names of surveys with terms of their own, empty for a single one.
    outliers
        Their fraction q.
    """

    coefficients: Float[np.ndarray, " p"]
    centres: Float[np.ndarray, "4"]
    degrees: float
    slopes: Float[np.ndarray, "s 10"]
    ends: Float[np.ndarray, "2 2"]
    surveys: tuple[str, ...] = ()
    outliers: float = 0.0

    def shift(self, stars: Measured) -> Column:
        """Return M of stars [mag]."""
        factors = _shifts(stars, self.centres, self.ends, self.surveys)
        return factors @ self.slopes.ravel()

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
    """Learn the law from differences, measured minus predicted, of unseen stars.

    A survey has a shift if those of two halves raise the density of its stars in the
    other halves. Errors of neighbours are alike: halves are alternate tenths of the
    rows, whose order should be that of places in the sky.
    """
    surveys = () if stars.survey is None else tuple(np.unique(stars.survey).tolist())
    surveys = surveys if len(surveys) > 1 else ()
    members = _members(stars, surveys)
    gain = np.zeros(members.shape[1])
    even = 10 * np.arange(len(error)) // max(len(error), 1) % 2 == 0
    for seen in (even, ~even):
        others, left = stars.select(~seen), error[~seen]
        every = np.full(len(gain), _SHIFT_STD)
        law = _learnt(error[seen], stars.select(seen), surveys, every)
        scale = law.scale(others)
        more = law.log_density(left - law.shift(others), scale)
        gain += (more - law.log_density(left, scale)) @ members[~seen]
    return _learnt(error, stars, surveys, _SHIFT_STD * (gain > _GAIN))


def _learnt(
    error: Column,
    stars: Measured,
    surveys: tuple[str, ...],
    shift_std: Float[np.ndarray, " s"],
) -> PredictiveLaw:
    """Learn the law with these prior standard deviations of shifts' coefficients."""
    logarithms = stars.logarithms()
    centres = logarithms.mean(axis=0)
    ends = np.quantile((logarithms - centres)[:, 2:], (_BEYOND, 1 - _BEYOND), axis=0)
    spread = np.repeat(shift_std, 10)
    shifts = torch.from_numpy(spread * _shifts(stars, centres, ends, surveys))
    factors = torch.from_numpy(_factors(stars, centres, surveys))
    given, start = torch.as_tensor(error), torch.as_tensor(stars.std).log()
    deviations = [_CONSTANT_STD, *[_STD] * 4, *[_SURVEY_STD] * len(surveys)]
    width = torch.tensor(deviations, dtype=torch.float64)
    count = len(width) + 2 + shifts.shape[1]
    steps = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    parts = len(width), 1, 1, shifts.shape[1]
    search = torch.optim.LBFGS([steps], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def parameters() -> tuple[torch.Tensor, ...]:
        scale, tail, odds, slopes = steps.split(parts)
        degrees = _LEAST_DEGREES + (_DEGREES + _DEGREES_STD * tail[0]).exp()
        return width * scale, degrees, _LOGIT + _LOGIT_STD * odds[0], slopes

    def closure() -> torch.Tensor:
        search.zero_grad()
        coefficients, degrees, logit, slopes = parameters()
        scale, shift = (start + factors @ coefficients).exp(), shifts @ slopes
        core, wide = (
            torch.distributions.StudentT(degrees, shift, w * scale).log_prob(given)
            for w in (1, _WIDE)
        )
        logsigmoid = torch.nn.functional.logsigmoid
        score = torch.logaddexp(logsigmoid(-logit) + core, logsigmoid(logit) + wide)
        value = steps.square().sum() / 2 - score.sum()
        value.backward()
        return value

    with torch.enable_grad():
        search.step(closure)
    with torch.no_grad():
        coefficients, degrees, logit, slopes = parameters()
        return PredictiveLaw(
            coefficients=coefficients.numpy(),
            centres=centres,
            degrees=float(degrees),
            slopes=(spread * slopes.numpy()).reshape(-1, 10),
            ends=ends,
            surveys=surveys,
            outliers=float(logit.sigmoid()),
        )


def _shifts(
    stars: Measured,
    centres: Float[np.ndarray, "4"],
    ends: Float[np.ndarray, "2 2"],
    surveys: tuple[str, ...],
) -> Float[np.ndarray, "n 10*s"]:
    """Return the factors of the shifts' coefficients [mag]."""
    placing, distance = np.clip((stars.logarithms() - centres)[:, 2:], *ends).T
    parts = [placing**i * distance**j for i in range(4) for j in range(4 - i)]
    own = np.maximum(stars.extinction, stars.std)[:, None] * np.column_stack(parts)
    whole = _members(stars, surveys)[:, :, None] * own[:, None]
    return whole.reshape(len(own), -1)


def _members(stars: Measured, surveys: tuple[str, ...]) -> Shaped[np.ndarray, "n s"]:
    """Return whose stars they are, all of them those of a single survey."""
    if not surveys:
        return np.ones((len(stars.std), 1), dtype=bool)
    names = np.zeros(len(stars.std)) if stars.survey is None else stars.survey
    return names[:, None] == np.array(surveys)


def _factors(
    stars: Measured, centres: Float[np.ndarray, "4"], surveys: tuple[str, ...]
) -> Float[np.ndarray, "n p"]:
    """Return the factors of the coefficients."""
    parts = [np.ones((len(stars.std), 1)), stars.logarithms() - centres]
    parts += [_members(stars, surveys)] if surveys else []
    return np.hstack(parts).astype(np.float64)
