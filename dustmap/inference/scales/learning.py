r"""Learn the prior's scales from stars, without a grid.

They maximise an approximate likelihood ``q(y; θ)``
(:mod:`dustmap.inference.scales.neighbour_likelihood`); the climb has the outer product
of the stars' scores for a curvature H (Berndt et al. 1974, Ann. Econ. Soc. Meas. 3,
653). Standard errors allow for what is wrong with q, and for stars that share dust
beyond their neighbours (White 1982, Econometrica 50, 1; Liang & Zeger 1986, Biometrika
73, 13),

.. math::
   \operatorname{cov} \hat\theta = H^{-1} \Bigl(\sum_o s_o s_o^\top\Bigr) H^{-1} ,

with the total score :math:`s_o` of the stars of every octant of the sky; the error of
the approximation is added. A first map corrects the scales
(:mod:`dustmap.inference.scales.band_power`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.scales.neighbour_likelihood import (
    Conditionals,
    NeighbourLikelihood,
)
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales

OnStep = Callable[[str, int, float], None]

# Finite differences of logarithms, and the longest step in one of them.
_DIFFERENCE, _LONGEST = 0.002, 0.7
_STEPS, _HALVINGS = 20, 6
# The search starts from the maximum for one in _FIRST stars, if these are at least
# _FEWEST_FIRST: most steps then take a fraction of the time.
_FIRST, _FEWEST_FIRST = 4, 1000
# Expected gain [nats] at which climbing ends.
_STILL = 0.5
# Standard deviations of a normal prior of the logarithms around the start; that of the
# common noise is wider. The prior constrains coordinates that few stars do not;
# thousands of stars outweigh it by far.
_SPREAD, _NOISE_SPREAD = 1.5, 4.0
# Error that the approximations add: RMS errors of the logarithms of lengthscales and
# variances of 15 mocks of 1,000 stars were 0.16 and 0.17.
_APPROXIMATE = 0.16
# Limit on the decrease of the logarithm of a lengthscale, for stars that scatter
# independently. A search that ends at the limit has not converged.
_SHORTEST = math.log(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntScales:
    """The scales, standard errors of their logarithms, and how the search ended.

    ``at_edge`` is true if a lengthscale ended at its lower limit. ``finite`` is false
    if a density or a score was not finite: the search ended there, and the rows
    concerned do not count in the errors.
    """

    scales: PriorScales
    errors: dict[str, float]
    steps: int
    converged: bool
    at_edge: bool
    finite: bool


def learn_scales(
    likelihood: NeighbourLikelihood,
    extinction: Float[Tensor, " n"],
    coordinates: Coordinates,
    on_step: OnStep = lambda *_: None,
) -> LearntScales:
    """Return the scales that maximise the likelihood.

    Raises
    ------
    FloatingPointError
        If a covariance is not positive definite.
    """
    search, place = _Search(coordinates, on_step), None
    some = len(extinction) // _FIRST
    if some >= _FEWEST_FIRST:
        place = search.climb(likelihood.of_first(some), extinction[:some]).place
    summit = search.climb(likelihood, extinction, place)
    octant = (likelihood.ends > 0).long() @ torch.tensor([4, 2, 1])
    own = octant[len(octant) - len(summit.scores) :]
    parts = summit.scores.new_zeros(8, len(summit.place))
    parts = parts.index_add(0, own, summit.scores)
    inverse = torch.linalg.inv(summit.information)
    covariance = inverse @ (parts.T @ parts + search.precision.diag()) @ inverse
    errors: dict[str, float] = {}
    deviations = (covariance.diagonal() + _APPROXIMATE**2).sqrt().tolist()
    for label, error in zip(coordinates.labels, deviations, strict=True):
        errors[label] = max(error, errors.get(label, 0.0))
    at_edge = bool((summit.place <= search.lowest).any())
    return LearntScales(
        scales=coordinates.at(summit.place),
        errors=errors,
        steps=search.steps,
        converged=summit.reached and not at_edge,
        at_edge=at_edge,
        finite=summit.finite,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summit:
    """Maximum of the likelihood, with every star's score and the information there.

    ``reached`` is true if there is no more to gain, ``finite`` if all numbers are
    finite; other scores are zero here.
    """

    place: Float[Tensor, " p"]
    scores: Float[Tensor, "m p"]
    information: Float[Tensor, "p p"]
    reached: bool
    finite: bool


class _Search:
    """Climbs with a common count of steps."""

    def __init__(self, coordinates: Coordinates, on_step: OnStep) -> None:
        self.coordinates, self.on_step, self.steps = coordinates, on_step, 0
        labels = coordinates.labels
        spreads = [
            _NOISE_SPREAD if label == "common_noise" else _SPREAD for label in labels
        ]
        self.precision = torch.tensor(spreads, dtype=torch.float64) ** -2
        lowest = [
            -_SHORTEST if label.startswith("lengthscale") else -math.inf
            for label in labels
        ]
        self.lowest = torch.tensor(lowest, dtype=torch.float64)

    def climb(
        self,
        likelihood: NeighbourLikelihood,
        extinction: Float[Tensor, " n"],
        place: Float[Tensor, " p"] | None = None,
    ) -> _Summit:
        """Find the maximum of a likelihood from a place, or from the start."""
        place = torch.zeros_like(self.precision) if place is None else place
        value, limit = self._value(likelihood, place, extinction), self.steps + _STEPS
        while True:
            scores = self._scores(likelihood, place, extinction)
            whole = scores.isfinite().all(dim=1)
            scores = scores.where(whole[:, None], 0.0)
            finite = bool(whole.all()) and math.isfinite(value)
            information = scores.T @ scores + self.precision.diag()
            slope = scores.sum(dim=0) - self.precision * place
            gain = 0.5 * float(slope @ torch.linalg.solve(information, slope))
            self.steps += 1
            self.on_step("likelihood", self.steps, gain)
            tried = place
            if finite and gain >= _STILL and self.steps < limit:
                step = _trusted(information, slope)
                tried, value = self._uphill(likelihood, place, step, value, extinction)
            if tried is place:
                return _Summit(
                    place=place,
                    scores=scores,
                    information=information,
                    reached=finite and gain < _STILL,
                    finite=finite,
                )
            place = tried

    def _uphill(
        self,
        likelihood: NeighbourLikelihood,
        place: Tensor,
        step: Tensor,
        value: float,
        extinction: Tensor,
    ) -> tuple[Tensor, float]:
        """Halve a step until it gains; stay if no step does."""
        for halving in range(_HALVINGS):
            # No lengthscale falls below its limit.
            tried = (place + step / 2**halving).clamp(min=self.lowest)
            reached = self._value(likelihood, tried, extinction)
            if reached > value:
                return tried, reached
        return place, value

    def _value(
        self, likelihood: NeighbourLikelihood, place: Tensor, extinction: Tensor
    ) -> float:
        """Return the log likelihood plus the log prior."""
        density = self._at(likelihood, place).log_density(extinction).sum()
        return float(density - (self.precision * place) @ place / 2)

    def _at(self, likelihood: NeighbourLikelihood, place: Tensor) -> Conditionals:
        return likelihood.conditionals(self.coordinates.at(place))

    def _scores(
        self, likelihood: NeighbourLikelihood, place: Tensor, extinction: Tensor
    ) -> Float[Tensor, "m p"]:
        """Return derivatives of every star's log density by the coordinates."""
        steps = _DIFFERENCE * torch.eye(len(place), dtype=torch.float64)
        here, *above = (
            self._at(likelihood, place + step).log_density(extinction)
            for step in (torch.zeros_like(place), *steps)
        )
        return (torch.stack(above, dim=1) - here[:, None]) / _DIFFERENCE


def _trusted(information: Tensor, slope: Tensor) -> Float[Tensor, " p"]:
    """Return Newton's step, damped until no coordinate exceeds the longest step.

    The damping of finite numbers ends, as a step is at most the slope over it.
    """
    damping, unit = 0.0, torch.eye(len(slope), dtype=torch.float64)
    while True:
        step = torch.linalg.solve(information + damping * unit, slope)
        if float(step.abs().max()) <= _LONGEST:
            return step
        damping = max(1.0, 2 * damping)
