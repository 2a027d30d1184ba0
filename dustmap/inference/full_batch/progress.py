"""Progress of a full-batch inference, as its checkpoints hold it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.linalg.cg import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """ε between two Gauss–Newton steps to the mode, its Σ, and the number of steps."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The end of the Gauss–Newton steps: their number, status and last solve.

    ``refined`` says whether its solves were the finer ones.
    """

    eps: Float[Tensor, " p"]
    steps: int
    converged: bool
    solution: Solution
    refined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A sample of a non-linear model and the status of its fit.

    ``expected_decrease`` is that of the objective in the last step [nats];
    ``iterations`` are those of conjugate gradients in all steps of its last round.
    """

    eps: Float[Tensor, " p"]
    expected_decrease: float
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples that are fitted in lockstep, between two of their Gauss–Newton steps.

    ``going`` are those whose steps have not ended; the rest as of :class:`Fitted`.
    """

    eps: Float[Tensor, "b p"]
    going: Bool[Tensor, " b"]
    expected_decrease: Float[Tensor, " b"]
    iterations: Int[Tensor, " b"]
    steps: int = 0

    @classmethod
    def at(cls, eps: Float[Tensor, "b p"]) -> Batch:
        """Before the first step."""
        count, device = len(eps), eps.device
        return cls(
            eps=eps,
            going=torch.ones(count, dtype=torch.bool, device=device),
            expected_decrease=torch.full(
                (count,), math.inf, dtype=torch.float64, device=device
            ),
            iterations=torch.zeros(count, dtype=torch.int64, device=device),
        )

    def fitted(self, tolerance: float) -> list[Fitted]:
        """One by one; those have converged whose last step expected less than this."""
        return [
            Fitted(
                eps=eps,
                expected_decrease=left,
                iterations=n,
                converged=left < tolerance,
            )
            for eps, left, n in zip(
                self.eps.unbind(),
                self.expected_decrease.tolist(),
                self.iterations.tolist(),
                strict=True,
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples and the status of their fits.

    ``expected_decrease`` is that of each sample's last step [nats].
    """

    value: Float[Tensor, "s p"]
    expected_decrease: Float[Tensor, " s"]
    iterations: Int[Tensor, " s"]
    converged: Bool[Tensor, " s"]

    @classmethod
    def of(cls, fits: list[Fitted]) -> Samples:
        """Join fits."""
        return cls(
            value=torch.stack([fit.eps for fit in fits]),
            expected_decrease=torch.tensor([fit.expected_decrease for fit in fits]),
            iterations=torch.tensor([fit.iterations for fit in fits]),
            converged=torch.tensor([fit.converged for fit in fits]),
        )

    @property
    def message(self) -> str:
        """One-line summary."""
        worst, most = float(self.expected_decrease.max()), int(self.iterations.max())
        tail = (
            f"{most} iterations at most; the last step raised the log posterior by "
            f"at most {worst:.3g} nats"
        )
        failed = int((~self.converged).sum())
        if not failed:
            return f"each fitted by itself, {tail}"
        return f"{failed} of {len(self.converged)} did not converge ({tail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of sample fits.

    Parameters
    ----------
    total
        Its Σ.
    rough
        Whether it is one of the first rounds, of a few rough samples.
    number
        From 0, separately for rough and final rounds.
    batches
        Number of batches fitted in it.
    finished
        Whether no round follows.
    """

    total: Float[Tensor, " n"]
    rough: bool = True
    number: int = 0
    batches: int = 0
    finished: bool = False
