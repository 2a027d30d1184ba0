"""Progress of a full-batch inference, as its checkpoints hold it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.linalg.cg import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """ε between two Gauss–Newton steps, its Σ, and the numbers of steps and solves."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    steps: int = 0
    iterations: int = 0


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
    ``iterations`` are those of conjugate gradients in all its steps.
    """

    eps: Float[Tensor, " p"]
    expected_decrease: float
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples and the status of their fits.

    ``expected_decrease`` is that of each sample's last step [nats], from a rough solve,
    which underestimates it; ``newton_decrement`` is from an accurate solve of the
    sample with the largest.
    """

    value: Float[Tensor, "s p"]
    expected_decrease: Float[Tensor, " s"]
    iterations: Int[Tensor, " s"]
    converged: Bool[Tensor, " s"]
    newton_decrement: float

    @classmethod
    def of(cls, fits: list[Fitted], newton_decrement: float, limit: float) -> Samples:
        """Join fits; none has converged if the decrement exceeds its limit."""
        enough = newton_decrement <= limit
        return cls(
            newton_decrement=newton_decrement,
            value=torch.stack([fit.eps for fit in fits]),
            expected_decrease=torch.tensor([fit.expected_decrease for fit in fits]),
            iterations=torch.tensor([fit.iterations for fit in fits]),
            converged=torch.tensor([fit.converged and enough for fit in fits]),
        )

    @property
    def message(self) -> str:
        """One-line summary."""
        worst, most = float(self.expected_decrease.max()), int(self.iterations.max())
        tail = (
            f"{most} iterations at most; the last step raised the log posterior by "
            f"{worst:.3g} nats or less, the Newton decrement of the worst is "
            f"{self.newton_decrement:.3g}"
        )
        failed = int((~self.converged).sum())
        if not failed:
            return f"each fitted by itself, {tail}"
        return (
            f"{failed} of {len(self.converged)} did not converge ({tail}): raise "
            "the limits on steps and iterations, or loosen the tolerance"
        )


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
    done
        Number of samples fitted in it.
    decrement, finished
        The Newton decrement of the worst sample, and whether no round follows.
    """

    total: Float[Tensor, " n"]
    rough: bool = True
    number: int = 0
    done: int = 0
    decrement: float = 0.0
    finished: bool = False
