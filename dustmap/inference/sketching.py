"""The preconditioner of an inference, and what it can be made from again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.gauss_newton import OnStep, Precision
from dustmap.inference.journal import as_part, generator_kind, part
from dustmap.journal import Pattern, State
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where a sketch was made: ε, Σ, and the generator before it."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    generator: Tensor


class Sketching:
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
        # Of conjugate gradients, since the last sketch.
        self.iterations = 0
        self._rank = rank
        self._generator = generator
        self._on_step = on_step
        self._origin: _Origin | None = None

    def worth_it(self, *, linear: bool) -> bool:
        """Whether to sketch now: at once if the model is linear."""
        if self._rank == 0:
            return False
        if linear:
            return self.preconditioner is None
        # Tangents change with every step: a sketch pays after so many iterations.
        return self.iterations > self._rank

    def sketch(self, precision: Precision) -> NystromPreconditioner | None:
        """A preconditioner of this precision, kept from now on."""
        rank = min(self._rank, precision.domain.length(precision.shape[0]))
        self.iterations = 0
        if rank == 0:
            return None
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
        return self.preconditioner

    def sketch_at(
        self,
        tangent: Linearisation,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
    ) -> None:
        """A preconditioner of the precision at ε, which can be made again."""
        before = self._generator.get_state()
        if self.sketch(Precision(tangent.operator, total)) is not None:
            self._origin = _Origin(eps=eps, total=total, generator=before)

    def saved(self) -> State:
        """What the preconditioner can be made from, and what it has done."""
        state: State = {"iterations": self.iterations}
        if self._origin is not None:
            origin = self._origin
            made = {"eps": origin.eps, "total": origin.total}
            state |= as_part("sketch", {**made, "generator": origin.generator})
        return state

    def pattern(self, model: ForwardModel, count: int) -> Pattern:
        """Of the part ``sketch``, for so many observations."""
        return {
            "eps": (model.dtype, (model.latent_size,)),
            "total": (model.dtype, (count,)),
            "generator": generator_kind(self._generator),
        }

    def take_up(self, model: ForwardModel, known: dict[str, Any]) -> None:
        """Make the preconditioner again, and leave the generator as it is."""
        origin = part("sketch", known)
        if origin:
            eps = origin["eps"].to(model.device)
            now = self._generator.get_state()
            self._generator.set_state(origin["generator"])
            total = origin["total"].to(model.device)
            self.sketch_at(model.linearise(eps), eps, total)
            self._generator.set_state(now)
        self.iterations = known["iterations"]
