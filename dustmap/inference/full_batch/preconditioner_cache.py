"""The preconditioner of an inference, and what it can be made from again."""

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
    """Where a preconditioner was made: ε, Σ, and the generator's state before it."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    generator: Tensor


class PreconditionerCache:
    """A Nyström preconditioner, kept until a new one is made.

    Its vectors are not saved. They are made again from ε, Σ and the state of the
    generator that they were first made from, for ``rank`` products with Λ.

    Parameters
    ----------
    rank
        Of the preconditioners; 0 for none.
    generator
        Of the random vectors.
    on_step
        Called with the stage ``preconditioner`` and the rank.
    """

    def __init__(
        self, rank: int, generator: torch.Generator, on_step: OnStep | None
    ) -> None:
        self.preconditioner: NystromPreconditioner | None = None
        # Of conjugate gradients, since the last preconditioner was made.
        self.iterations = 0
        self._rank = rank
        self._generator = generator
        self._on_step = on_step
        self._origin: Origin | None = None

    def worth_it(self, *, linear: bool) -> bool:
        """Whether to make one now: at once if the model is linear."""
        if self._rank == 0:
            return False
        if linear:
            return self.preconditioner is None
        # Tangents change with every step: a new one pays after so many iterations.
        return self.iterations > self._rank

    def make(
        self,
        tangent: Linearisation,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
    ) -> None:
        """A preconditioner of the precision at ε, kept from now on."""
        precision = Precision(tangent.operator, total)
        rank = min(self._rank, precision.domain.length(precision.shape[0]))
        self.iterations = 0
        if rank == 0:
            return
        before = self._generator.get_state()
        # The old one makes room first.
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
        """What the preconditioner can be made from, and what it has done."""
        made = {} if self._origin is None else flatten("origin", self._origin)
        return {"iterations": self.iterations, **made}

    def restore(
        self, model: ForwardModel, iterations: int, origin: Origin | None
    ) -> None:
        """Make the preconditioner again, and leave the generator as it is."""
        if origin is not None:
            now = self._generator.get_state()
            self._generator.set_state(origin.generator)
            self.make(model.linearise(origin.eps), origin.eps, origin.total)
            self._generator.set_state(now)
        self.iterations = iterations
