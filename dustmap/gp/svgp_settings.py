"""Settings of stochastic variational regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["full", "mean-field", "low-rank"]
Update = Literal["natural", "adam"]
Solves = Literal["cholesky", "iterative"]

# Epochs 1, 5, 10 and 15 of 20 (Pleiss et al. 2020, section 5.1).
PLEISS_SCHEDULE = (0.05, 0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgpSettings:
    """How the bound is climbed.

    Parameters
    ----------
    family
        Of q(ε). ``full`` holds P × P numbers.
    update
        How q moves: by natural gradients in alternation with Adam for everything else
        (``full`` only), or by Adam along with everything else.
    solves
        With the precision of q, under natural gradients: ``cholesky`` is ``O(P³)`` a
        step, ``iterative`` ``O(J P²)``; see :mod:`dustmap.gp.natural`.
    rank
        Columns of the ``low-rank`` family.
    batch_size
        Observations per step.
    epochs, steps
        Passes through the data; ``steps``, if given, counts.
    natural_rate
        l of the natural gradient, in (0, 1].
    rate
        Adam's, of logarithms, of the mean and inducing points in units of their
        scale, and of q.
    decay_at, decay
        At these fractions of all steps both rates are multiplied by ``decay``.
        :data:`PLEISS_SCHEDULE` with rates of 0.01 is the published one.
    learn
        What Adam learns: names of the kernel's parameters with the prefix
        ``kernel.``, the likelihood's with ``likelihood.``, ``mean`` and ``points``.
        ``None`` is all of them but ``points``.
    rest
        Fraction of all steps at the start during which hyperparameters rest: while q is
        near the prior, all data look like noise to them.
    record_every
        Steps between two records of the minibatch bound and the hyperparameters.
    watch_rows
        Observations, drawn at random, by which it is measured what the last tenth of
        the steps added to the bound; 0 leaves that unasked.
    tolerance
        ``v_n ≥ −tolerance · k_nn`` counts as rounding (of the solves, too); it is
        counted and zero. Anything lower is an error.
    solver_rtol, solver_max_steps
        Of the iterative solves.
    single_precision
        Keep the precision of q in 4 bytes a number.
    dense_limit
        Largest P for which ``ln |S|`` in the bound is taken from a factorisation.
    row_memory
        Bytes that features may take to be kept where they do not change.
    covariance_memory
        Bytes that q may take.

    Raises
    ------
    ValueError
        If a number or a rate is out of its range, a choice unknown, or natural
        gradients are asked of a family that is not ``full``.
    """

    family: Family = "full"
    update: Update = "natural"
    solves: Solves = "cholesky"
    rank: int = 16
    batch_size: int = 256
    epochs: int = 20
    steps: int | None = None
    natural_rate: float = 0.3
    rate: float = 0.03
    decay_at: tuple[float, ...] = (0.6, 0.85)
    decay: float = 0.1
    learn: tuple[str, ...] | None = None
    rest: float = 0.02
    record_every: int = 10
    watch_rows: int = 0
    tolerance: float = 1e-2
    solver_rtol: float = 1e-3
    solver_max_steps: int = 500
    single_precision: bool = False
    dense_limit: int = 4096
    row_memory: int = 2**30
    covariance_memory: int = 2**32

    def __post_init__(self) -> None:
        for name in ("rank", "batch_size", "epochs", "record_every"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.watch_rows < 0:
            raise ValueError(f"watch_rows must not be negative, got {self.watch_rows}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        choices = {"family": Family, "update": Update, "solves": Solves}
        for name, choice in choices.items():
            if getattr(self, name) not in get_args(choice):
                raise ValueError(
                    f"{name} is one of {', '.join(get_args(choice))}, got "
                    f"{getattr(self, name)!r}"
                )
        if self.update == "natural" and self.family != "full":
            raise ValueError(
                f"natural gradients move a full-rank q, got {self.family!r}: ask for "
                "update='adam'"
            )
        self._check_rates()

    def _check_rates(self) -> None:
        for name in ("natural_rate", "decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} must lie in (0, 1], got {getattr(self, name)}"
                )
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be positive and finite, got {self.rate}")
        for fraction in (*self.decay_at, self.rest):
            if not 0 <= fraction < 1:
                raise ValueError(
                    f"fractions of the steps lie between 0 and 1, got {fraction}"
                )

    def total_steps(self, count: int) -> int:
        """Steps for so many observations."""
        return self.steps or self.epochs * math.ceil(count / self.batch_size)

    def decayed(self, done: float) -> float:
        """What both rates are multiplied with after this fraction of all steps."""
        return self.decay ** sum(done >= fraction for fraction in self.decay_at)
