r"""Zero points, slopes and errors of several catalogues, from the field they share.

A catalogue (survey) s measures the extinction :math:`A_n` of its stars as

.. math:: y_n = c_s + g_s A_n + e_n , \qquad e_n \sim t_{\nu_s}(0, V_n) ,

.. math::
   V_n = (f_s \sigma_n)^2 + \tau_s^2
       + \left(\kappa_s g_s A_n (\sigma_{d,n} / 0.03\, d_n)^{q_s}\right)^2
       + (g_s \rho_n \sigma_{d,n})^2 ,

where 68% of a survey's errors are within :math:`\sqrt{V}`. One survey is the
reference, with c = 0 and g = 1. Rows are predicted from their neighbours
(:mod:`dustmap.residual.learning`), with mean :math:`m_n` and variance :math:`v_n`. The
parameters maximise the log density of :math:`y_n` about
:math:`c_s + g_s m_n` with :math:`V_n + g_s^2 v_n`, times a prior; then all extinctions
are calibrated, and predicted anew: first from the reference, then from all other
surveys, as a large survey would confirm its own zero point, and last from all other
rows, whose predictions are sharper. As a prediction has not seen its own row, its error
is independent of the noise.

A survey whose stated errors are all alike states a guess: f is one there, and
:math:`\tau` is learnt. Without rows near other surveys the prior alone determines zero
point and slope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.minimise import minimise
from dustmap.residual.corrections import central_factor
from dustmap.residual.covariance import Rays
from dustmap.residual.learning import (
    LocalMeanKriging,
    learn_local_mean_kriging,
    local_means,
)
from dustmap.residual.neighbours import RowIndex, nearest, without_self
from dustmap.shapes import Vector
from dustmap.tails import log_student

FEWEST = 50
"""Fewest rows of a survey with parameters of its own."""
# Neighbours of a row.
_NEAREST = 32
# Normal priors: mean and standard deviation.
_SURVEY_PRIORS = {
    "zero": (0.0, 0.3),  # c [mag]
    "slope": (0.0, 0.2),  # ln g
    "factor": (0.0, 0.5),  # ln f
    "common": (-1.0, 1.0),  # ln τ over the median error
    "growth": (-3.5, 1.0),  # ln κ
    "power": (0.9, 0.3),  # q
    "degrees": (1.4, 1.0),  # ln(ν - 2)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyLaw:
    """Parameters of one survey.

    ``zero`` (c) and ``common`` (τ) are in mag; ``slope`` (g), ``factor`` (f),
    ``growth`` (κ), ``power`` (q) and ``degrees`` (ν) have no unit. Errors of zero
    point and slope, which have this ``correlation``, are zero where both are known;
    ``rows`` is the survey's number of rows, and ``overlap`` the fraction of them within
    one degree and 20% in distance of a row of another survey.
    """

    name: str
    rows: int
    zero: float = 0.0
    zero_error: float = 0.0
    slope: float = 1.0
    slope_error: float = 0.0
    correlation: float = 0.0
    factor: float = 1.0
    common: float = 0.0
    growth: float = 0.0
    power: float = 1.0
    degrees: float = 100.0
    overlap: float = 0.0

    @property
    def unconstrained(self) -> bool:
        """True if the prior rather than other surveys decides on the zero point."""
        return self.zero_error >= _SURVEY_PRIORS["zero"][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyRows:
    """Measured extinctions of all surveys.

    Parameters
    ----------
    directions, lengths
        Unit vectors to the stars, and distances [pc].
    extinction, error
        Measured extinctions and their stated standard deviations [mag].
    distance_std
        Standard deviation of the distance [pc].
    survey
        Number of each row's survey.
    """

    directions: Float[Tensor, "n 3"]
    lengths: Vector
    extinction: Vector
    error: Vector
    distance_std: Vector
    survey: Int[Tensor, " n"]

    def calibrated(
        self, laws: Sequence[SurveyLaw], others: Rays | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return extinctions and 68% errors on the scale of the reference [mag].

        The part of the noise that grows with extinction follows the mean extinction of
        the nearest rows, or of ``others`` on the same scale; the first-order effect of
        distance errors is left out.
        """
        names = ("zero", "slope", "factor", "common", "growth", "power")
        numbers = [[getattr(law, name) for law in laws] for name in names]
        columns = torch.tensor(numbers, dtype=torch.float64)
        c, g, f, tau, kappa, q = columns[:, self.survey]
        extinction = (self.extinction - c) / g
        variance = ((f * self.error) ** 2 + tau**2) / g**2
        if bool((kappa > 0).any()):
            own = self.observed(extinction)
            known, places = (own, None) if others is None else (others, own)
            nearby = local_means(known, places, (_NEAREST,))[:, 0]
            about = (nearby * self.lengths).clamp_min(0.0)
            variance += (kappa * about * self.relative**q) ** 2
        return extinction, variance.sqrt()

    @property
    def relative(self) -> Vector:
        """Relative distance errors, in units of 3%."""
        return (self.distance_std / self.lengths / 0.03).clamp_min(1e-9)

    def observed(self, extinction: Vector) -> Rays:
        """Return rays whose density is extinction over distance."""
        density = extinction / self.lengths
        return Rays(directions=self.directions, lengths=self.lengths, density=density)


def shared_errors(
    laws: Sequence[SurveyLaw], survey: Int[Tensor, " n"], extinction: Vector
) -> Float[Tensor, "n r"]:
    """Return changes of calibrated extinctions by unknown zero points and slopes [mag].

    There is a column for each independent unknown, changed by one standard deviation:
    the columns times standard normals draw a calibration. Known zero points have none.
    """
    names = ("zero_error", "slope_error", "correlation", "slope")
    numbers = [[getattr(law, name) for law in laws] for name in names]
    c, g, both, slope = torch.tensor(numbers, dtype=torch.float64)[:, survey]
    tilt, own = g * extinction, torch.nn.functional.one_hot(survey, len(laws)).T
    parts = c + both * tilt, (1 - both**2).sqrt() * tilt
    found = torch.cat([-part / slope * own for part in parts]).T
    return found[:, (found != 0).any(dim=0)]


def learn_surveys(
    rows: SurveyRows, names: Sequence[str], reference: int, generator: torch.Generator
) -> tuple[SurveyLaw, ...]:
    """Learn the law of every survey; see the module.

    Of four rounds, with at most 3,000 rows of each survey, the first two predict across
    surveys and learn a covariance from at most 1,500 rows. A survey of fewer than
    `FEWEST` rows has the zero point and slope of the reference, and its errors as
    stated.

    Raises `FloatingPointError` if a covariance is not positive definite.
    """
    counts = torch.bincount(rows.survey, minlength=len(names)).tolist()
    shuffled = torch.randperm(len(rows.survey), generator=generator)
    each = [shuffled[rows.survey[shuffled] == s][:3_000] for s in range(len(names))]
    laws, apart = [], math.log1p(0.2)
    points = rows.observed(rows.extinction).coordinates(apart / math.radians(1))
    for s, (name, some) in enumerate(zip(names, each, strict=True)):
        others = points[rows.survey != s]
        away = others[nearest(others, points[some], 1)[:, 0]] - points[some]
        overlap = float((away.norm(dim=1) < apart).double().mean())
        laws.append(SurveyLaw(name=name, rows=counts[s], overlap=overlap))
    own, learning = torch.cat(each), min(1_500, len(shuffled) // 5)
    kriging, across = None, 2
    # Six rounds had half the error of a mock galaxy's zero points, .01 mag, but let
    # 49,000 Gaia stars drift .04 mag towards their own zero point.
    for number in range(4):
        extinction, error = rows.calibrated(laws)
        given = rows.observed(extinction), error**2, rows.distance_std
        if kriging is None or number < 2:
            kriging = learn_local_mean_kriging(*given, shuffled[:learning])
        else:
            kriging = kriging.renewed(*given)
        parts = []
        for s, some in enumerate(each):
            seen = torch.ones_like(rows.survey)
            if number < across and s != reference:
                seen = rows.survey != s if number else rows.survey == reference
            parts.append(_predicted(kriging, some, seen.nonzero()[:, 0]))
        predicted = [torch.cat(part) for part in zip(*parts, strict=True)]
        found = _fitted(rows, own, predicted, laws, reference)
        if number >= across:
            # By its own rows a survey would seem better known than it is.
            kept = ("zero_error", "slope_error", "correlation")
            found = [
                replace(law, **{name: getattr(known, name) for name in kept})
                for law, known in zip(found, laws, strict=True)
            ]
        laws = found
    return tuple(laws)


def _predicted(
    kriging: LocalMeanKriging, own: Int[Tensor, " m"], seen: Int[Tensor, " k"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean, variance, density and coordinates of rows from others seen."""
    field, places = kriging.field, kriging.field.rays[own]
    points = field.rays.coordinates(field.stretch)
    near = seen[nearest(points[seen], points[own], _NEAREST + 1)]
    if len(seen) == len(points):
        near = without_self(near, own)
    else:
        found = local_means(kriging.observed[seen], places, (kriging.count,))[:, 0]
        places = replace(places, density=found.clamp_min(field.darkest))
    found = field.krige(places, near)
    mean = places.density * places.lengths + found.mean(field.residuals[0])
    variance = central_factor(field.tails) * found.variance
    return mean, variance, places.density, points[own]


def _fitted(
    rows: SurveyRows,
    own: Int[Tensor, " m"],
    predicted: Sequence[Tensor],
    laws: Sequence[SurveyLaw],
    reference: int,
) -> list[SurveyLaw]:
    r"""Maximise the posterior density of the parameters, from some rows.

    Errors of neighbours are correlated, as their predictions are alike. With
    the curvature H and the sums of gradients over groups of 32 neighbours,
    :math:`s_k`, the covariance of the parameters is
    :math:`H^{-1} (\sum_k s_k s_k^\top + P) H^{-1}`, with the prior's precision P
    (Liang & Zeger 1986, Biometrika 73, 13). In three mocks, errors of zero points and
    slopes were 0.8 to 1.4 times these standard deviations, and 1.3 to 2 times the ones
    from the curvature alone.
    """
    mean, variance, density, points = predicted
    survey, observed, stated = rows.survey[own], rows.extinction[own], rows.error[own]
    relative, distance_std = rows.relative[own], rows.distance_std[own]
    shape = len(laws), len(_SURVEY_PRIORS)
    priors = torch.tensor(list(_SURVEY_PRIORS.values()), dtype=torch.float64)
    origin, width = (x.expand(shape).clone() for x in priors.T)
    # The prior of a parameter that is known.
    fixed = 1e-9
    for s, law in enumerate(laws):
        errors = stated[survey == s]
        if law.rows < FEWEST:
            width[s] = fixed
            origin[s, 3:5] = -30.0
            continue
        origin[s, 3] += errors.median().log()
        # Errors that are all alike are one guess.
        if errors.std() < 0.02 * errors.mean():
            width[s, 2] = fixed
    width[reference, :2] = fixed
    # Far from other surveys, extrapolated fields would pass for zero points.
    alone = torch.tensor([law.overlap == 0 and law.rows >= FEWEST for law in laws])
    alone[reference] = False
    width[alone, :2] = fixed

    def scores(steps: Tensor) -> Tensor:
        law = origin + width * steps[1:].view(shape)
        c, g, f, tau, kappa, q, tail = law[survey].T
        g, f, tau, kappa, tail = (x.exp() for x in (g, f, tau, kappa, tail))
        growing = (kappa * mean.clamp_min(0.0) * relative**q) ** 2
        # The variance of predictions is uncertain, too.
        left = (0.5 * steps[0]).exp() * variance
        known = growing + left + (density * distance_std) ** 2
        scale = (f * stated) ** 2 + tau**2 + g**2 * known
        square = (observed - c - g * mean) ** 2
        return log_student(square, scale, 2 + tail, of="central68")

    def loss(steps: Tensor) -> Tensor:
        return steps.square().sum() / 2 - scores(steps).sum()

    start = torch.zeros(1 + origin.numel(), dtype=torch.float64)
    steps = minimise(loss, start).place
    with torch.enable_grad():
        curvature = torch.autograd.functional.hessian(loss, steps)
    assert isinstance(curvature, Tensor)
    group = RowIndex.of(points, points.new_ones(1), leaf=_NEAREST).leaves()[0]
    sums = curvature.new_zeros(len(steps), len(group.unique()))
    # In prior standard deviations.
    difference = 1e-4
    for row, move in zip(sums, difference * torch.eye(len(steps)), strict=True):
        ahead, behind = scores(steps + move), scores(steps - move)
        row.index_add_(0, group, (ahead - behind) / (2 * difference))
    inverse = torch.linalg.inv(curvature)
    covariance = inverse @ (sums @ sums.T + torch.eye(len(steps))) @ inverse
    covariance = covariance[1:, 1:]
    error = covariance.diagonal().clamp_min(1e-30).sqrt()
    c = torch.arange(0, len(error), shape[1])
    correlations = covariance[c, c + 1] / (error[c] * error[c + 1])
    free = width > fixed
    # Errors are no larger than the prior's.
    error = error.view(shape).clamp_max(1.0)
    errors = torch.where(free, width * error, 0.0)
    errors[alone, :2] = priors[:2, 1]
    found = origin + torch.where(free, width * steps[1:].view(shape), 0.0)
    return [
        replace(
            law,
            zero=float(one[0]),
            zero_error=float(doubt[0]),
            slope=float(one[1].exp()),
            slope_error=float(one[1].exp() * doubt[1]),
            correlation=float(both.clamp(-1.0, 1.0)) if doubt[0] else 0.0,
            factor=float(one[2].exp()),
            common=float(one[3].exp()),
            growth=float(one[4].exp()),
            power=float(one[5]),
            degrees=2 + float(one[6].exp()),
        )
        for law, one, doubt, both in zip(laws, found, errors, correlations, strict=True)
    ]
