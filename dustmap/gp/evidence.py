r"""Hyperparameters of largest marginal likelihood by L-BFGS.

The search is over logarithms of positive hyperparameters and the mean in units of the
largest residual, so that steps do not depend on the unit of the data
(:func:`dustmap.minimise.minimise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from dustmap.gp.regression import MEAN, ScoredRegression
from dustmap.minimise import minimise

Model = TypeVar("Model", bound=ScoredRegression)


@dataclass(frozen=True, slots=True, kw_only=True)
class LBFGS:
    """Settings of the search.

    Parameters
    ----------
    names
        Hyperparameters to learn; all if ``None``.
    max_steps
        Limit on iterations.
    gradient_tolerance
        Converged if no derivative exceeds it [nats per unit of a logarithm].
    relative_tolerance
        Converged if a step gains less than this fraction of the value.
    reach
        Limit on the change of a logarithm: a factor of ``e^±reach``.
    ranges
        Least and largest value by name, in the unit of the hyperparameter, of a shape
        that broadcasts with it.

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
    """The best model found, and the status of the search.

    ``at_bounds`` names hyperparameters that ended at a bound of their range;
    ``failures`` counts trial points without a Cholesky factor, treated as the worst.
    """

    model: Model
    log_marginal: float
    converged: bool
    message: str
    steps: int
    failures: int
    at_bounds: tuple[str, ...]


def maximise(model: Model, settings: LBFGS | None = None) -> EvidenceFit[Model]:
    """Maximise ``log_marginal`` over hyperparameters, from the values of the model.

    Raises `ValueError` if a name is unknown, or the start is out of its range;
    `FloatingPointError` if the start itself has no Cholesky factor.
    """
    settings = LBFGS() if settings is None else settings
    known = model.parameters()
    names = tuple(known) if settings.names is None else settings.names
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(
            f"cannot learn {', '.join(unknown)}: there are {', '.join(known)}"
        )
    start = {name: known[name] for name in names}
    lengths = [value.numel() for value in start.values()]
    unit = max(float(model.residual.abs().max()), float(model.noise) ** 0.5)

    def at(steps: Tensor) -> Model:
        values = {}
        for (name, value), step in zip(start.items(), steps.split(lengths)):
            step = step.reshape(value.shape)
            values[name] = value + unit * step if name == MEAN else value * step.exp()
        return model.with_parameters(values)

    def loss(steps: Tensor) -> Tensor:
        moved = at(steps.detach())
        value, gradient = moved.value_and_gradient()
        units = {**moved.parameters(), MEAN: torch.tensor(unit)}
        slopes = [(gradient[name] * units[name]).reshape(-1) for name in start]
        # A linear function with this gradient.
        return -value - torch.cat(slopes) @ (steps - steps.detach())

    lower, upper = [], []
    for name, value in start.items():
        low, high = (torch.full_like(value, s * settings.reach) for s in (-1, 1))
        if name in settings.ranges:
            ends = settings.ranges[name]
            least, most = ((torch.as_tensor(end) / value).log() for end in ends)
            # By rounding a start at the end of the range may be beyond.
            if bool((least > 1e-9).any() or (most < -1e-9).any()):
                raise ValueError(f"{name} starts at {value.tolist()}, out of its range")
            low = torch.maximum(low, least.clamp_max(0))
            high = torch.minimum(high, most.clamp_min(0))
        lower.append(low.reshape(-1))
        upper.append(high.reshape(-1))
    found = minimise(
        loss,
        torch.zeros_like(torch.cat(lower)),
        slope=settings.gradient_tolerance,
        flat=settings.relative_tolerance,
        lower=torch.cat(lower),
        upper=torch.cat(upper),
        max_steps=settings.max_steps,
    )
    labels = np.repeat(list(start), lengths)
    return EvidenceFit(
        model=at(found.place),
        log_marginal=-found.value,
        converged=found.converged,
        message=found.message,
        steps=found.steps,
        failures=found.failures,
        at_bounds=tuple(dict.fromkeys(labels[found.at_bound].tolist())),
    )
