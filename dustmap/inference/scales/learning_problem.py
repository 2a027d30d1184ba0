"""What a step of learning sees: posterior, slope and curvature at one θ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dustmap.inference.scales.average_information import (
    average_information,
    residual_weights,
    responses,
)
from dustmap.inference.scales.dual_gradient import DualSamples
from dustmap.inference.scales.evidence_gradient import PairedSamples
from dustmap.inference.scales.hyperpoint import Hyperpoint, directions_of, reach
from dustmap.inference.scales.learning_settings import Learning
from dustmap.inference.scales.learning_solve import Samples, Solve, State
from dustmap.models.means import SCALE_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShape:
    """The objective's local shape at one point: slope, curvature and their cost."""

    state: State
    slope: Float[Tensor, " k"]
    scatter: Float[Tensor, "k k"]
    information: Float[Tensor, "k k"]
    solutions: Float[Tensor, "b p"]
    products: int
    solved: bool


class LearningProblem:
    """Data, settings and directions: what stays the same along the path."""

    def __init__(
        self,
        start: Hyperpoint,
        observations: Tensor,
        sigma2: Tensor,
        settings: Learning,
        solve: Solve,
    ) -> None:
        self.start = start
        self.observations = observations
        self.sigma2 = sigma2
        self.settings = settings
        self.solve = solve
        names = settings.names
        if names is None:
            names = tuple(
                name
                for name, value in start.values().items()
                if bool((value > 0).all()) and name != SCALE_HEIGHT
            )
        self.directions = directions_of(start, names, anisotropic=settings.anisotropic)
        self.lower, self.upper = reach(
            start, self.directions, settings.lengthscale_range
        )

    def at(self, moved: Tensor) -> Hyperpoint:
        """The point at these distances from the start."""
        return self.start.moved(self.directions, moved.tolist())

    def local(self, moved: Tensor, before: LocalShape | None) -> LocalShape:
        """Posterior, gradient and information at a point."""
        point, settings = self.at(moved), self.settings
        noise = point.noise(self.sigma2)
        state = self.solve(point.model, noise, before.state if before else None)
        samples = self._samples(point, state)
        gradient = samples.gradient(point, state.tangent)
        weights = residual_weights(state, self.observations)
        change = responses(point, self.directions, state, samples, weights, self.sigma2)
        information = average_information(
            state,
            change,
            settings.solver,
            settings.residual,
            before.solutions if before else None,
        )
        slope = [direction.of(gradient) for direction in self.directions]
        precision = self._prior_precision()
        return LocalShape(
            state=state,
            slope=torch.tensor(slope, dtype=torch.float64) - precision * moved,
            scatter=change.scatter.cpu(),
            information=information.matrix.cpu() + precision * torch.eye(len(slope)),
            solutions=information.solutions,
            products=state.products
            + samples.gradient_products
            + change.products
            + information.products,
            solved=state.converged and information.converged,
        )

    def _samples(self, point: Hyperpoint, state: State) -> Samples:
        subgrid = self.settings.subgrid_noise
        if state.draws is None:
            return PairedSamples(
                observations=self.observations,
                sigma2=self.sigma2,
                mean=state.mean,
                deltas=state.deltas,
                subgrid_noise=subgrid,
            )
        residual = self.observations.to(state.mean) - state.tangent.prediction
        return DualSamples(
            weights=(residual / state.total_variance).to(torch.float64),
            draws=state.draws.to(torch.float64),
            noise=point.noise(self.sigma2),
            variance=state.tangent.variance.to(torch.float64),
            subgrid_noise=subgrid,
        )

    def free(self, moved: Tensor, slope: Tensor) -> Bool[Tensor, " k"]:
        """Directions that no bound holds back."""
        held = (moved >= self.upper) & (slope > 0) | (moved <= self.lower) & (slope < 0)
        return ~held

    def named(self, values: Tensor) -> dict[str, float]:
        """One number per direction, by its label."""
        return {
            d.label: float(value)
            for d, value in zip(self.directions, values, strict=True)
        }

    def _prior_precision(self) -> float:
        dex = self.settings.prior_std
        return 0.0 if dex is None else (dex * math.log(10)) ** -2
