r"""Hyperparameters of largest marginal likelihood by L-BFGS.

Positive ones move in their logarithm, the mean in units of the largest residual, so
that no step depends on the unit of the data. The search is SciPy's (Byrd, Lu, Nocedal &
Zhu 1995, SIAM J. Sci. Comput. 16).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from dustmap.gp.regression import MEAN, Regression

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

    Raises
    ------
    ValueError
        If no step is allowed, or a tolerance or the reach is not positive.
    """

    names: tuple[str, ...] | None = None
    max_steps: int = 100
    gradient_tolerance: float = 1e-2
    relative_tolerance: float = 1e-8
    reach: float = 10.0

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")
        for name in ("gradient_tolerance", "relative_tolerance", "reach"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFit(Generic[Model]):
    """The best model found, and how the search ended.

    ``gradient`` is the largest derivative that could still move; ``at_bounds`` names
    hyperparameters that ended where their range does; ``failures`` counts points at
    which a covariance had no Cholesky factor, which are taken for worse than any other.
    """

    model: Model
    log_marginal: float
    start: float
    gradient: float
    converged: bool
    message: str
    steps: int
    evaluations: int
    failures: int
    at_bounds: tuple[str, ...]


class _Path(Generic[Model]):
    """The vector that the optimiser moves, and the best point it has seen."""

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
        centred = model.residual
        self.unit = max(float(centred.abs().max()), float(model.noise.sqrt()))
        self.labels = [n for n, v in self.start.items() for _ in range(v.numel())]
        # The optimiser caps a derivative at the distance to a bound before it compares
        # it with the tolerance: in this unit the cap is a thousand tolerances wide.
        self.scale = _TOLERANCES * settings.gradient_tolerance / settings.reach
        self.best: tuple[float, Model] | None = None
        self.failures = 0

    def at(self, vector: np.ndarray) -> Model:
        values, place = {}, 0
        for name, start in self.start.items():
            step = torch.as_tensor(vector[place : place + start.numel()])
            step = step.reshape(start.shape).to(torch.float64)
            place += start.numel()
            moved = start + self.unit * step if name == MEAN else start * step.exp()
            values[name] = moved
        return self.model.with_parameters(values)

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        model = self.at(vector)
        try:
            value, gradient = model.value_and_gradient()
        except ValueError:
            # Only a missing Cholesky factor comes here: the values were checked.
            self.failures += 1
            if self.best is None:
                raise
            return (abs(self.best[0]) * 10 + 1e6) / self.scale, np.zeros_like(vector)
        if self.best is None or value > self.best[0]:
            self.best = value, model
        derivatives = self._by_step(model.parameters(), gradient)
        return -value / self.scale, -derivatives / self.scale

    def _by_step(
        self, values: dict[str, Tensor], gradient: dict[str, Tensor]
    ) -> np.ndarray:
        parts = [
            gradient[name] * (self.unit if name == MEAN else values[name])
            for name in self.start
        ]
        return torch.cat([p.reshape(-1) for p in parts]).numpy()


def maximise(model: Model, settings: LBFGS | None = None) -> EvidenceFit[Model]:
    """Hyperparameters of largest ``log_marginal``, from those of the model.

    Raises
    ------
    ValueError
        If a name is unknown, or the start itself has no Cholesky factor.
    """
    settings = LBFGS() if settings is None else settings
    path = _Path(model, settings)
    first = np.zeros(len(path.labels))
    start = -path(first)[0] * path.scale
    found = scipy.optimize.minimize(
        path,
        first,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-settings.reach, settings.reach)] * len(first),
        options={
            "maxiter": settings.max_steps,
            "gtol": settings.gradient_tolerance / path.scale,
            "ftol": settings.relative_tolerance,
        },
    )
    assert path.best is not None
    edge = np.abs(found.x) >= settings.reach * (1 - 1e-9)
    labels = np.array(path.labels)
    free = path.scale * np.abs(found.jac)[~edge]
    return EvidenceFit(
        model=path.best[1],
        log_marginal=path.best[0],
        start=start,
        gradient=float(free.max()) if len(free) else 0.0,
        converged=bool(found.success),
        message=str(found.message),
        steps=int(found.nit),
        evaluations=int(found.nfev) + 1,
        failures=path.failures,
        at_bounds=tuple(dict.fromkeys(labels[edge].tolist())),
    )
