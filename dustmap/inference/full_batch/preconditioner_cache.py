"""The preconditioner of an inference, which a checkpoint can rebuild."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dustmap.inference.full_batch.gauss_newton import OnStep, Precision
from dustmap.inference.full_batch.noise_covariance import Independent, NoiseCovariance
from dustmap.linalg.preconditioners import NystromPreconditioner
from dustmap.models.base import ForwardModel, Linearisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The inputs of a preconditioner: ε, Σ, and the generator's state before it."""

    eps: Float[Tensor, " p"]
    total: Float[Tensor, " n"]
    generator: Tensor


class PreconditionerCache:
    """A Nyström preconditioner of some rank (0 for none), kept until the next is made.

    Checkpoints hold its ``origin`` instead of its vectors; rebuilding costs ``rank``
    products with Λ. ``iterations`` counts those of conjugate gradients with it;
    ``covariance`` makes that of the noise from its variances; the vectors are in a
    ``subspace`` of some latent numbers, or of all.
    """

    def __init__(
        self,
        rank: int,
        generator: torch.Generator,
        on_step: OnStep,
        covariance: Callable[[Float[Tensor, " n"]], NoiseCovariance] = Independent,
        subspace: Int[Tensor, " k"] | None = None,
    ) -> None:
        self.preconditioner: NystromPreconditioner | None = None
        self.origin: Origin | None = None
        self.iterations = 0
        self._rank = rank
        self._generator = generator
        self._on_step = on_step
        self._covariance = covariance
        self._subspace = subspace

    def worth_it(self, *, linear: bool) -> bool:
        """Whether to make one now; for a linear model, once."""
        if linear:
            return self._rank > 0 and self.preconditioner is None
        # Tangents change with every step. A new one pays after so many iterations for
        # each vector, whose products are made in blocks: first maps of 116,000 stars
        # took 27 s with a third and 29 s with one.
        return self.iterations > self._rank / 3 > 0

    def make(
        self,
        tangent: Linearisation,
        eps: Float[Tensor, " p"],
        total: Float[Tensor, " n"],
    ) -> None:
        """Make and keep a preconditioner of the precision at ε."""
        precision = Precision(tangent.operator, self._covariance(total))
        size = precision.shape[0]
        rank = min(self._rank, size if self._subspace is None else len(self._subspace))
        self.iterations = 0
        if rank == 0:
            return
        origin = Origin(eps=eps, total=total, generator=self._generator.get_state())
        # Free the memory of the old one first.
        self.preconditioner = self.origin = None
        self._on_step("preconditioner", rank, math.nan)
        self.preconditioner = NystromPreconditioner.build(
            precision.data_term,
            precision.shape[0],
            rank,
            self._generator,
            dtype=precision.dtype,
            device=precision.device,
            subspace=self._subspace,
        )
        self.origin = origin

    def restore(self, model: ForwardModel, origin: Origin) -> None:
        """Rebuild the preconditioner; the generator's state is unchanged."""
        now = self._generator.get_state()
        self._generator.set_state(origin.generator)
        self.make(model.linearise(origin.eps), origin.eps, origin.total)
        self._generator.set_state(now)
