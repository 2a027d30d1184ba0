r"""Learn the prior's scales from stars, without a grid.

1. Climb to the maximum of an approximate likelihood ``q(y; θ)``
   (:mod:`dustmap.inference.scales.neighbour_likelihood`), with the outer product of
   the stars' scores for a curvature (Berndt et al. 1974, Ann. Econ. Soc. Meas. 3, 653).
2. Its maximum :math:`\hat\theta` is biased. Simulate the catalogue from the prior at θ
   (:mod:`dustmap.inference.scales.periodic_fields`), and move θ until the mean score of
   the simulated extinctions is that of the observed ones,

   .. math::
      E_\theta\, \nabla \ln q(y; \hat\theta)
      = \nabla \ln q(y_\mathrm{obs}; \hat\theta) ,

   the efficient method of moments (Gallant & Tauchen 1996, Econometric Theory 12, 657).
   It is consistent for any q; q affects the scatter of the estimate.

Every simulation has the same white noise at all θ. Broyden's method, starting from
finite differences, finds the root.
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
from dustmap.inference.scales.periodic_fields import PeriodicFields
from dustmap.inference.scales.prior_scales import Coordinates, PriorScales

OnStep = Callable[[str, int, float], None]

# Finite differences of logarithms, and the longest step in one of them. Differences are
# one-sided: simulations correct their bias. Those of the simulations' mean score are
# wider, to exceed its fluctuations with the white noise.
_DIFFERENCE, _SIMULATED_DIFFERENCE, _LONGEST = 0.02, 0.1, 0.7
_CLIMB_STEPS, _MATCH_STEPS, _HALVINGS = 15, 12, 6
# Consecutive steps that come no closer to the root, after which the search ends.
_FAILURES = 7
# The search starts from the maximum for one in _FIRST stars, if these are at least
# _FEWEST_FIRST: most steps then take a fraction of the time.
_FIRST, _FEWEST_FIRST = 4, 1000
# Expected gain [nats] at which climbing ends: simulations correct for more.
_STILL = 0.5
# Standard deviations of a normal prior of the logarithms around the start; that of the
# common noise is wider. The prior constrains coordinates that few stars do not;
# thousands of stars outweigh it by far.
_SPREAD, _NOISE_SPREAD = 1.5, 4.0
# Limit on the decrease of the logarithm of a lengthscale: simulations of shorter ones
# need much more memory. A search that ends at the limit has not converged.
_SHORTEST = math.log(10)
# Distance from the root, in standard deviations, that does not affect maps.
_SETTLED = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntScales:
    """The scales, standard errors of their logarithms, and how the search ended.

    ``at_edge`` is true if a lengthscale ended at its lower limit.
    """

    scales: PriorScales
    errors: dict[str, float]
    steps: int
    converged: bool
    at_edge: bool


def learn_scales(
    likelihood: NeighbourLikelihood,
    extinction: Float[Tensor, " n"],
    coordinates: Coordinates,
    fields: PeriodicFields,
    generator: torch.Generator,
    on_step: OnStep = lambda *_: None,
) -> LearntScales:
    """Return the scales at which simulations have the score of the data.

    Raises
    ------
    FloatingPointError
        If a covariance is not positive definite.
    """
    search = _Search(likelihood, coordinates, fields, generator, on_step)
    return search.match(extinction, search.climb(extinction))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summit:
    """Maximum of the likelihood, with densities around it and the information there."""

    place: Float[Tensor, " p"]
    around: list[Conditionals]
    information: Float[Tensor, "p p"]


class _Search:
    """Climb and match, with a common count of steps."""

    def __init__(
        self,
        likelihood: NeighbourLikelihood,
        coordinates: Coordinates,
        fields: PeriodicFields,
        generator: torch.Generator,
        on_step: OnStep,
    ) -> None:
        self.likelihood, self.coordinates, self.fields = likelihood, coordinates, fields
        self.on_step, self.steps = on_step, 0
        spreads = [
            _NOISE_SPREAD if label == "common_noise" else _SPREAD
            for label in coordinates.labels
        ]
        self.precision = torch.tensor(spreads, dtype=torch.float64) ** -2
        self.lowest = torch.tensor(
            [
                -_SHORTEST if label.startswith("lengthscale") else -math.inf
                for label in coordinates.labels
            ],
            dtype=torch.float64,
        )
        shape = (len(fields.fields), len(likelihood.ends))
        self.white = torch.randn(shape, generator=generator, dtype=torch.float64)

    def climb(self, extinction: Float[Tensor, " n"]) -> _Summit:
        """Find the maximum of the likelihood, first with some of many stars."""
        place = torch.zeros(len(self.coordinates.labels), dtype=torch.float64)
        some = len(extinction) // _FIRST
        if some >= _FEWEST_FIRST:
            beginning = self.likelihood.of_first(some)
            place = self._climbed(beginning, extinction[:some], place).place
        return self._climbed(self.likelihood, extinction, place)

    def _climbed(
        self, likelihood: NeighbourLikelihood, extinction: Tensor, place: Tensor
    ) -> _Summit:
        """Find the maximum of a likelihood, starting at a place."""
        value = self._value(likelihood, place, extinction)
        for _ in range(_CLIMB_STEPS):
            around = self._around(likelihood, place)
            scores = _scores(around, extinction)
            information = scores.T @ scores + self.precision.diag()
            slope = scores.sum(dim=0) - self.precision * place
            step = torch.linalg.solve(information, slope)
            summit = _Summit(place=place, around=around, information=information)
            gain = 0.5 * float(slope @ step)
            self._tell("likelihood", gain)
            if gain < _STILL:
                break
            before = value
            step = _trusted(information, slope)
            place, value = self._uphill(likelihood, place, step, value, extinction)
            if value == before:
                break
        return summit

    def match(self, extinction: Float[Tensor, " n"], summit: _Summit) -> LearntScales:
        """Move until the mean score of simulations is the observed one."""
        around, information = summit.around, summit.information
        place = summit.place
        observed = _scores(around, extinction).sum(dim=0)

        def simulated_at(place: Tensor) -> tuple[Tensor, Tensor]:
            scores = self._simulated_scores(around, place)
            return scores, observed - scores.mean(dim=0) - self.precision * place

        scores, gap = simulated_at(place)
        ends = _SIMULATED_DIFFERENCE * torch.eye(len(place), dtype=torch.float64)
        columns = [gap - simulated_at(place + end)[1] for end in ends]
        jacobian = torch.stack(columns, dim=1) / _SIMULATED_DIFFERENCE
        converged, longest, failures = False, _LONGEST, 0
        for _ in range(_MATCH_STEPS):
            distance = _squared(gap, information)
            self._tell("simulations", distance / 2)
            converged = distance < _SETTLED**2
            step, singular = torch.linalg.solve_ex(jacobian, gap)
            if converged or int(singular) or failures == _FAILURES:
                break
            # Limit the step of every coordinate, and its total decrease.
            step = self._within(place + step.clamp(-longest, longest)) - place
            if not bool(step.any()):
                break
            tried, left = simulated_at(place + step)
            jacobian = jacobian + torch.outer(gap - left - jacobian @ step, step) / (
                step @ step
            )
            if _squared(left, information) < distance:
                place, scores, gap = place + step, tried, left
                longest, failures = min(2 * longest, _LONGEST), 0
                continue
            longest, failures = longest / 2, failures + 1
        return LearntScales(
            scales=self.coordinates.at(place),
            errors=self._errors(jacobian, scores),
            steps=self.steps,
            converged=converged,
            at_edge=bool((place <= self.lowest).any()),
        )

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
            tried = self._within(place + step / 2**halving)
            reached = self._value(likelihood, tried, extinction)
            if reached > value:
                return tried, reached
        return place, value

    def _within(self, place: Tensor) -> Float[Tensor, " p"]:
        """Return the nearest place where no lengthscale is below its limit."""
        return place.clamp(min=self.lowest)

    def _value(
        self, likelihood: NeighbourLikelihood, place: Tensor, extinction: Tensor
    ) -> float:
        """Return the log likelihood plus the log prior."""
        density = self._at(likelihood, place).log_density(extinction).sum()
        return float(density - (self.precision * place) @ place / 2)

    def _at(self, likelihood: NeighbourLikelihood, place: Tensor) -> Conditionals:
        return likelihood.conditionals(self.coordinates.at(place))

    def _around(
        self, likelihood: NeighbourLikelihood, place: Tensor
    ) -> list[Conditionals]:
        """Return the densities at a place and one difference along each coordinate."""
        steps = _DIFFERENCE * torch.eye(len(place), dtype=torch.float64)
        around = (self._at(likelihood, place + step) for step in steps)
        return [self._at(likelihood, place), *around]

    def _simulated_scores(
        self, around: list[Conditionals], place: Tensor
    ) -> Float[Tensor, "s p"]:
        """Return the total score of every simulation."""
        scales = self.coordinates.at(place)
        clean = self.fields.extinctions(
            self.likelihood.ends,
            scales.lengthscale,
            scales.std,
            scales.mean,
            positive=self.likelihood.positive,
        )
        noise = (self.likelihood.noise + scales.common_noise).sqrt() * self.white
        rows = clean + noise
        return torch.stack([_scores(around, row).sum(dim=0) for row in rows])

    def _errors(self, jacobian: Tensor, simulated: Tensor) -> dict[str, float]:
        """Return standard errors, including that of the simulations' mean."""
        inverse = torch.linalg.inv_ex(jacobian).inverse
        covariance = inverse @ torch.cov(simulated.T).reshape(inverse.shape) @ inverse.T
        covariance = covariance * (1 + 1 / len(simulated))
        errors = covariance.diagonal().sqrt().tolist()
        found: dict[str, float] = {}
        for label, error in zip(self.coordinates.labels, errors, strict=True):
            found[label] = max(error, found.get(label, 0.0))
        return found

    def _tell(self, stage: str, value: float) -> None:
        self.steps += 1
        self.on_step(stage, self.steps, value)


def _scores(around: list[Conditionals], extinction: Tensor) -> Float[Tensor, "m p"]:
    """Return derivatives of every star's log density by the coordinates."""
    here, *above = (density.log_density(extinction) for density in around)
    return (torch.stack(above, dim=1) - here[:, None]) / _DIFFERENCE


def _squared(gap: Tensor, information: Tensor) -> float:
    """Return the squared distance from a root in standard deviations."""
    return float(gap @ torch.linalg.solve(information, gap))


def _trusted(information: Tensor, slope: Tensor) -> Float[Tensor, " p"]:
    """Return Newton's step, damped until no coordinate exceeds the longest step."""
    damping, unit = 0.0, torch.eye(len(slope), dtype=torch.float64)
    while True:
        step = torch.linalg.solve(information + damping * unit, slope)
        if float(step.abs().max()) <= _LONGEST:
            return step
        damping = max(1.0, 2 * damping)
