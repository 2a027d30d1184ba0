r"""Hyperparameters of largest marginal likelihood by L-BFGS.

Positive ones move in their logarithm, the mean in units of the largest residual, so
that no step depends on the unit of the data. The search is SciPy's (Byrd, Lu, Nocedal &
Zhu 1995, SIAM J. Sci. Comput. 16).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from dustmap.gp.regression import MEAN, Regression

# Of a logarithm: a start this far out of its range is at its end.
_ROUNDING = 1e-9
# Tolerances of a derivative that a bound is away from the start.
_TOLERANCES = 1000.0

Model = TypeVar("Model", bound=Regression)


@dataclass(frozen=True, slots=True, kw_only=True)
class LBFGS:
    """Settings of the search.

    Parameters
    ----------
    names
        What to learn; all hyperparameters if ``None``.
    max_steps
        Limit on iterations.
    gradient_tolerance
        Converged if no derivative exceeds it [nats per unit of a logarithm].
    relative_tolerance
        Converged if a step gains less than this share of the value.
    reach
        How far a logarithm may move from its start: ``e^±reach``.
    ranges
        Least and largest value by name, in the unit of the hyperparameter and of a
        shape that its own can be broadcast with; within them the search stays, too.

    Raises
    ------
    ValueError
        If a number is not positive.
    """

    names: tuple[str, ...] | None = None
    max_steps: int = 100
    gradient_tolerance: float = 1e-2
    relative_tolerance: float = 1e-8
    reach: float = 10.0
    ranges: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = ("max_steps", "gradient_tolerance", "relative_tolerance", "reach")
        for name in numbers:
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFit(Generic[Model]):
    """The best model found, and how the search ended.

    ``at_bounds`` names hyperparameters that ended where their range does; ``failures``
    counts points at which a covariance had no Cholesky factor, which are taken for
    worse than any other.
    """

    model: Model
    log_marginal: float
    converged: bool
    message: str
    steps: int
    failures: int
    at_bounds: tuple[str, ...]


class _Objective(Generic[Model]):
    """What SciPy minimises, as a function of one vector, and the best model seen."""

    def __init__(self, model: Model, settings: LBFGS) -> None:
        known = model.parameters()
        names = tuple(known) if settings.names is None else settings.names
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise ValueError(
                f"cannot learn {', '.join(unknown)}: there are {', '.join(known)}"
            )
        self.model = model
        self.start = {name: known[name] for name in names}
        self.lengths = [value.numel() for value in self.start.values()]
        self.unit = max(float(model.residual.abs().max()), float(model.noise) ** 0.5)
        # The optimiser caps a derivative at the distance to a bound before it compares
        # it with the tolerance: in this unit the cap is a thousand tolerances wide.
        self.scale = _TOLERANCES * settings.gradient_tolerance / settings.reach
        self.failures = 0
        # The start must have a value.
        self.best = model.log_marginal(), model

    def bounds(self, settings: LBFGS) -> np.ndarray:
        """Least and largest entry of the vector, one row each."""
        rows = []
        for name, start in self.start.items():
            low, high = (torch.full_like(start, s * settings.reach) for s in (-1, 1))
            if name in settings.ranges:
                least, most = (
                    (torch.as_tensor(end) / start).log()
                    for end in settings.ranges[name]
                )
                if bool((least > _ROUNDING).any() or (most < -_ROUNDING).any()):
                    raise ValueError(
                        f"{name} starts at {start.tolist()}, out of its range"
                    )
                low = torch.maximum(low, least.clamp_max(0))
                high = torch.minimum(high, most.clamp_min(0))
            rows.append(torch.stack([low.reshape(-1), high.reshape(-1)], dim=1))
        return torch.cat(rows).numpy()

    def at(self, vector: np.ndarray) -> Model:
        steps = torch.as_tensor(vector).split(self.lengths)
        values = {}
        for (name, start), step in zip(self.start.items(), steps, strict=True):
            step = step.reshape(start.shape)
            values[name] = start + self.unit * step
            if name != MEAN:
                values[name] = start * step.exp()
        return self.model.with_parameters(values)

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        model = self.at(vector)
        try:
            value, gradient = model.value_and_gradient()
        except (ValueError, FloatingPointError):
            # Only a missing Cholesky factor comes here: the values were checked.
            self.failures += 1
            return (abs(self.best[0]) * 10 + 1e6) / self.scale, np.zeros_like(vector)
        if value > self.best[0]:
            self.best = value, model
        values = {**model.parameters(), MEAN: torch.tensor(self.unit)}
        slopes = [(gradient[name] * values[name]).reshape(-1) for name in self.start]
        return -value / self.scale, -torch.cat(slopes).numpy() / self.scale


def maximise(model: Model, settings: LBFGS | None = None) -> EvidenceFit[Model]:
    """Hyperparameters of largest ``log_marginal``, from those of the model.

    Raises
    ------
    ValueError
        If a name is unknown, or the start itself has no Cholesky factor or is out of
        its range.
    """
    settings = LBFGS() if settings is None else settings
    objective = _Objective(model, settings)
    bounds = objective.bounds(settings)
    first = np.zeros(sum(objective.lengths))
    found = scipy.optimize.minimize(
        objective,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={
            "maxiter": settings.max_steps,
            "gtol": settings.gradient_tolerance / objective.scale,
            "ftol": settings.relative_tolerance,
        },
    )
    margin = settings.reach * _ROUNDING
    edge = (found.x <= bounds[:, 0] + margin) | (found.x >= bounds[:, 1] - margin)
    labels = np.repeat(list(objective.start), objective.lengths)
    log_marginal, best = objective.best
    return EvidenceFit(
        model=best,
        log_marginal=log_marginal,
        converged=bool(found.success),
        message=str(found.message),
        steps=int(found.nit),
        failures=objective.failures,
        at_bounds=tuple(dict.fromkeys(labels[edge].tolist())),
    )
