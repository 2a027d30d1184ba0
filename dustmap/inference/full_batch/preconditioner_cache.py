"""The preconditioner of an inference, which a checkpoint can rebuild."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import State, flatten
from dustmap.inference.full_batch.gauss_newton import OnStep, Precision
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs of a preconditioner: ε, Σ, and the generator's state before it."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    generator: Tensor


class PreconditionerCache:
    """A Nyström preconditioner, kept until a new one is made.

    Checkpoints hold its inputs (ε, Σ and the generator's state) instead of its vectors;
    rebuilding costs ``rank`` products with Λ.

    Parameters
    ----------
    rank
        Rank; 0 for none.
    generator
        For the random vectors.
    on_step
        Called with the stage ``preconditioner`` and the rank.
    """

    def __init__(
        self, rank: int, generator: torch.Generator, on_step: OnStep | None
    ) -> None:
        self.preconditioner: NystromPreconditioner | None = None
        # Iterations of conjugate gradients with the current preconditioner.
        self.iterations = 0
        self._rank = rank
        self._generator = generator
        self._on_step = on_step
        self._origin: Origin | None = None

    def worth_it(self, *, linear: bool) -> bool:
        """Whether to make one now; for a linear model, once."""
        if self._rank == 0:
            return False
        if linear:
            return self.preconditioner is None
        # Tangents change with every step; a new one pays after ``rank`` iterations.
        return self.iterations > self._rank

    def make(
        self,
        tangent: Linearisation,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
    ) -> None:
        """Make and keep a preconditioner of the precision at ε."""
        precision = Precision(tangent.operator, total)
        rank = min(self._rank, precision.domain.length(precision.shape[0]))
        self.iterations = 0
        if rank == 0:
            return
        before = self._generator.get_state()
        # Free the memory of the old one first.
        self.preconditioner = self._origin = None
        if self._on_step is not None:
            self._on_step("preconditioner", rank, float("nan"))
        self.preconditioner = NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            rank,
            self._generator,
            dtype=precision.dtype,
            device=precision.device,
            space=precision.domain,
        )
        self._origin = Origin(eps=eps, total=total, generator=before)

    def state(self) -> State:
        """The preconditioner's inputs, and its iterations."""
        made = {} if self._origin is None else flatten("origin", self._origin)
        return {"iterations": self.iterations, **made}

    def restore(
        self, model: ForwardModel, iterations: int, origin: Origin | None
    ) -> None:
        """Rebuild the preconditioner; the generator's state is unchanged."""
        if origin is not None:
            now = self._generator.get_state()
            self._generator.set_state(origin.generator)
            self.make(model.linearise(origin.eps), origin.eps, origin.total)
            self._generator.set_state(now)
        self.iterations = iterations
