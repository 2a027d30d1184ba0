"""Settings of stochastic variational inference, and HIP-GP's published settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["mean-field", "block", "full"]
Solves = Literal["cholesky", "iterative"]

_LEAST = {
    **dict.fromkeys(("block", "batch_size", "epochs", "steps", "record_every"), 1),
    "watch_rows": 0,
    "lengthscale_range": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgpSettings:
    """Settings of the ascent of the bound.

    Parameters
    ----------
    family
        Family of q(ε). ``full`` holds P × P numbers.
    solves
        Solver for the precision of a full q: ``cholesky`` takes ``O(P³)`` a step,
        ``iterative`` ``O(J P²)`` for J iterations to a relative residual of
        ``solver_rtol``.
    block
        Points per axis of one block of ``family = "block"`` (HIP-GP: 2).
    batch_size
        Observations per step.
    epochs, steps
        Passes through the data, or number of steps, which has precedence.
    natural_rate
        l of the natural gradient, in (0, 1]; ``None`` averages: see :meth:`length`.
    rate
        Adam's rate, for logarithms and for the mean in units of the prior's std.
    decay_at
        At these fractions of all steps the rates fall to a tenth. (Published: 0.05,
        0.25, 0.5 and 0.75 with rates of 0.01; Pleiss et al. 2020, section 5.1.)
    learn
        Parameters that Adam learns: the kernel's with the prefix ``kernel.``, the
        likelihood's with ``likelihood.``, and ``mean``; ``kernel`` and ``likelihood``
        stand for all of their parameters.
    rest
        Fraction of all steps during which hyperparameters rest at the start, ``None``
        for the first epoch: while q is near the prior, all data look like noise.
    lengthscale_range
        Lengthscales stay within this factor of where they started.
    record_every
        Steps between two records of the minibatch bound.
    watch_rows
        Observations, drawn at random, by which the gain of the bound in the last tenth
        of the steps is measured; 0 does not measure it.
    solve_mean, mean_tolerance
        Solve ``Λ m = b`` at the end (normal noise only), to this relative residual.
    tolerance
        ``v_n ≥ −tolerance · k_nn`` counts as rounding (of the solves, too); it is
        counted and zero. Anything lower is an error.
    row_memory, covariance_memory
        Limits on the memory of kept rows, if they do not change, and of q [bytes].

    Raises
    ------
    ValueError
        If a number or a rate is out of its range, or a choice unknown.
    """

    family: Family = "full"
    solves: Solves = "cholesky"
    block: int = 2
    batch_size: int = 256
    epochs: int = 20
    steps: int | None = None
    natural_rate: float | None = 0.3
    rate: float = 0.03
    decay_at: tuple[float, ...] = (0.6, 0.85)
    learn: tuple[str, ...] = ("kernel", "likelihood", "mean")
    rest: float | None = 0.02
    lengthscale_range: float = math.inf
    record_every: int = 10
    watch_rows: int = 0
    solve_mean: bool = False
    mean_tolerance: float = 1e-8
    tolerance: float = 1e-2
    solver_rtol: float = 1e-3
    row_memory: int = 2**30
    covariance_memory: int = 2**32

    def __post_init__(self) -> None:
        for name, lowest in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {value}")
        for name, choice in (("family", Family), ("solves", Solves)):
            if getattr(self, name) not in get_args(choice):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(choice))}, got "
                    f"{getattr(self, name)!r}"
                )
        if self.natural_rate is not None and not 0 < self.natural_rate <= 1:
            raise ValueError(
                f"natural_rate must lie in (0, 1], got {self.natural_rate}: beyond 1 "
                "the covariance loses its positive definiteness"
            )
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be positive and finite, got {self.rate}")
        for fraction in (*self.decay_at, self.rest or 0.0):
            if not 0 <= fraction < 1:
                raise ValueError(
                    f"fractions of the steps must lie between 0 and 1, got {fraction}"
                )

    def learns(self, what: str) -> bool:
        """Return whether any parameter of this name or prefix is learnt."""
        return any(name.split(".")[0] == what for name in self.learn)

    def batches(self, count: int) -> int:
        """Return the number of steps in an epoch of ``count`` observations."""
        return math.ceil(count / self.batch_size)

    def total_steps(self, count: int) -> int:
        """Return the number of steps for ``count`` observations."""
        return self.steps or self.epochs * self.batches(count)

    def decayed(self, done: float) -> float:
        """Return the factor of both rates after this fraction of all steps."""
        return 0.1 ** sum(done >= fraction for fraction in self.decay_at)

    def length(self, batch: int, step: int, count: int) -> float:
        """Return the natural gradient's l for ``batch`` rows of ``count`` at a step.

        Without a stated rate it is ``|B| / Σ|B|``: ``S⁻¹`` becomes the plain average of
        all minibatches' Λ̂, which after every whole epoch is Λ itself. If there are
        parameters to learn, ``Σ|B|`` is at most N: the average decays over an epoch.
        """
        if self.natural_rate is not None:
            return self.natural_rate * self.decayed(step / self.total_steps(count))
        epoch, within = divmod(step, self.batches(count))
        # torch.tensor_split gives the first batches of an epoch one row more.
        size, longer = divmod(count, self.batches(count))
        seen = epoch * count + within * size + min(within, longer) + batch
        return batch / (min(seen, count) if self.learn else seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class HipSettings(SvgpSettings):
    """Defaults of HIP-GP as published: blocks, averaged precisions, m solved."""

    family: Family = "block"
    batch_size: int = 64
    natural_rate: float | None = None
    decay_at: tuple[float, ...] = ()
    learn: tuple[str, ...] = ()
    rest: float | None = None
    lengthscale_range: float = 2.0
    record_every: int = 1
    solve_mean: bool = True
    covariance_memory: int = 2**31
