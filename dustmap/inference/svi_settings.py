"""Settings of stochastic variational inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from dustmap.inference.direct import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class SviSettings:
    """How the bound is climbed.

    Parameters
    ----------
    family
        Of q(ε).
    block
        Points per axis of one block of ``family = "block"`` (the paper: 2).
    rank
        Columns of the precision of ``family = "low-rank"``; 0 is mean-field.
    batch_size
        Stars per step.
    epochs
        Passes through the stars.
    learning_rate
        l of S11–S12, in (0, 1]; ``None`` averages: see :meth:`rate`.
    hyperparameter_rate
        Adam's rate for logarithms of hyperparameters; 0 holds them fixed.
    learn
        Names of the hyperparameters to learn (the kernel's, and ``common_noise``);
        ``None`` learns all.
    lengthscale_range
        Lengthscales stay within this factor of where they started.
    solve_mean
        Solve ``Λ m = b`` at the end.
    mean_tolerance, mean_max_steps
        Relative residual and iteration limit of that solve.
    row_memory
        Bytes that kept rows may take; beyond, rows are solved anew in every step.
    covariance_memory
        Bytes that the precision of q may take.
    """

    family: Family = "block"
    block: int = 2
    rank: int = 32
    batch_size: int = 64
    epochs: int = 20
    learning_rate: float | None = None
    hyperparameter_rate: float = 0.0
    learn: tuple[str, ...] | None = None
    lengthscale_range: float = 2.0
    solve_mean: bool = True
    mean_tolerance: float = 1e-8
    mean_max_steps: int = 2000
    row_memory: int = 2**30
    covariance_memory: int = 2**31

    def __post_init__(self) -> None:
        for name in ("block", "batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        if self.rank < 0:
            raise ValueError(f"rank must not be negative, got {self.rank}")
        if self.family not in get_args(Family):
            raise ValueError(
                f"family is {', '.join(get_args(Family))}, got {self.family!r}"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate <= 1:
            raise ValueError(
                f"learning_rate must lie in (0, 1], got {self.learning_rate}: beyond 1 "
                "the covariance loses its positive definiteness"
            )
        if not self.hyperparameter_rate >= 0:
            raise ValueError(
                f"hyperparameter_rate must not be negative, "
                f"got {self.hyperparameter_rate}"
            )
        if not self.lengthscale_range >= 1:
            raise ValueError(
                f"lengthscale_range must be at least 1, got {self.lengthscale_range}"
            )

    @property
    def learns(self) -> bool:
        """Whether hyperparameters move."""
        return self.hyperparameter_rate > 0 and self.learn != ()

    def rate(self, batch: int, seen: int, count: int) -> float:
        """The natural gradient's l for ``batch`` stars after ``seen`` of ``count``.

        Without a stated one it is ``|B| / Σ|B|``: ``S⁻¹`` becomes the plain average of
        all minibatches' Λ̂, which after every whole epoch is Λ itself. While
        hyperparameters move it forgets what is older than an epoch.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        total = seen + batch
        return batch / min(total, max(count, batch)) if self.learns else batch / total
