"""Settings and results of learning hyperparameters from all observations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dustmap.inference.scales.learning_solve import State
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel

# How a path of learning ended; "stopped" is by the caller's wish.
Status = Literal["converged", "stopped", "out of steps", "solve failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Settings of the learning loop.

    Parameters
    ----------
    names
        What to learn: of the model's parameters and ``common_noise``. By default all
        that are above zero, save a disc's ``scale_height``.
    anisotropic
        Learn one lengthscale per axis where the kernel has them, instead of one
        factor for all.
    pairs
        S, posterior samples (of a model that is not linear: antithetic pairs). They add
        about 1/S to the variance of what is learnt.
    subgrid_noise
        Whether ``v_n`` is part of the noise.
    max_steps
        Points at which gradient and information are computed, at most.
    tolerance
        Stop when the expected gain of a Newton step is less than this [nats].
    trust_radius
        Largest change of a logarithm in one step.
    lengthscale_range
        Every lengthscale stays in this range, in the kernel's unit; ``None`` for none.
    prior_std
        Of a normal prior on every logarithm around its start [dex]; ``None`` for none.
        A weak one keeps what the data do not tell.
    residual
        Norm of the residual at which solves with Λ stop: an error of the gradient of at
        most so many of the hyperparameters' standard errors.
    solver, preconditioner_rank
        For Λ. The preconditioner is built anew at every point and worth it.
    """

    names: tuple[str, ...] | None = None
    anisotropic: bool = False
    pairs: int = 8
    subgrid_noise: bool = True
    max_steps: int = 8
    tolerance: float = 0.05
    trust_radius: float = 0.7
    lengthscale_range: tuple[float, float] | None = None
    prior_std: float | None = 1.0
    residual: float = 0.1
    solver: ConjugateGradients = field(
        default_factory=lambda: ConjugateGradients(rtol=1e-2, max_steps=4000)
    )
    preconditioner_rank: int = 200

    def __post_init__(self) -> None:
        if self.pairs < 2 or self.max_steps < 1 or self.preconditioner_rank < 0:
            raise ValueError(
                "pairs must be at least 2 (their scatter is the error), max_steps at "
                "least 1 and preconditioner_rank not negative, got "
                f"{self.pairs}, {self.max_steps} and {self.preconditioner_rank}"
            )
        positive = (self.tolerance, self.trust_radius, self.residual)
        positive = (*positive, 1.0 if self.prior_std is None else self.prior_std)
        if not all(0 < value < math.inf for value in positive):
            raise ValueError(
                "tolerance, trust_radius, residual and prior_std must be positive, got "
                f"{self.tolerance}, {self.trust_radius}, {self.residual} and "
                f"{self.prior_std}"
            )
        bounds = self.lengthscale_range
        if bounds is not None and not 0 < bounds[0] < bounds[1]:
            raise ValueError(f"lengthscale_range must grow from above 0, got {bounds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningStep:
    """One point of the path: where it was and what was found there.

    ``gradient`` and its standard errors ``scatter`` are by logarithms, the prior
    included; ``predicted_gain`` is the expected gain of a Newton step from the best
    point so far [nats]; ``gain`` what the step to here brought (``nan`` at the start);
    ``accepted`` whether it was kept; ``solved`` whether all solves there converged.
    """

    parameters: dict[str, Tensor]
    gradient: dict[str, float]
    scatter: dict[str, float]
    predicted_gain: float
    gain: float
    accepted: bool
    solved: bool
    products: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Learnt hyperparameters and what they are worth.

    ``errors`` are standard errors of the logarithms from the inverse information
    (``inf`` for what nothing tells), ``sampling_errors`` what the samples add;
    ``status`` says how the path ended: it converged if the expected gain of a Newton
    step is below the tolerance; a solve that does not converge ends it before that
    point;
    ``bounded_steps`` counts steps that the range of lengthscales cut short;
    ``products`` counts vectors that Φ or Φᵀ was applied to (draws behind ``v_n`` not
    among them). ``state`` is the posterior at the best point of ``history``, a start
    for the fit; where the loop converged, the model is one Newton step further, whose
    expected gain was below the tolerance.
    """

    model: ForwardModel
    common_noise: float
    parameters: dict[str, Tensor]
    errors: dict[str, float]
    sampling_errors: dict[str, float]
    status: Status
    bounded_steps: int
    products: int
    history: tuple[LearningStep, ...]
    state: State

    @property
    def converged(self) -> bool:
        """Whether the expected gain of a Newton step is below the tolerance."""
        return self.status == "converged"
