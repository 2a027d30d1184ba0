"""The state that the stages of one full-batch inference share."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import State, part_of, scoped
from dustmap.inference.full_batch.gauss_newton import OnStep
from dustmap.inference.full_batch.noise_state import NoiseState
from dustmap.inference.full_batch.preconditioner_cache import (
    Origin,
    PreconditionerCache,
)
from dustmap.inference.full_batch.settings import FullBatch
from dustmap.models.base import ForwardModel, Linearisation


class Fit:
    """Current model, noise, preconditioner and generator of one inference."""

    def __init__(
        self,
        model: ForwardModel,
        noise: NoiseState,
        settings: FullBatch,
        generator: torch.Generator,
        *,
        on_step: OnStep | None,
    ) -> None:
        self.model = model
        self.noise = noise
        self.settings = settings
        self.generator = generator
        self.on_step = on_step
        self.cache = PreconditionerCache(
            settings.preconditioner_rank, generator, on_step
        )
        self.share_settled = True

    @property
    def count(self) -> int:
        """The number of observations."""
        return len(self.noise.observations)

    @property
    def inexact(self) -> bool:
        """Whether the tangent or Σ changes with ε, so that one step is not enough."""
        return not self.model.linear or self.noise.given.depends_on_field

    def tangent(self, eps: Float[Tensor, " p"]) -> tuple[Linearisation, Tensor]:
        """The tangent at ε, and Σ with the current weights."""
        tangent = self.model.linearise(eps)
        return tangent, self.noise.total(eps[None], tangent.variance)

    def state(self) -> State:
        """Everything that does not follow from ε."""
        return {
            "generator": self.generator.get_state(),
            "share": float(self.model.subgrid_share),
            "share_settled": self.share_settled,
            "samples": self.settings.samples,
            **scoped("noise", self.noise.state()),
            **self.cache.state(),
        }

    def restore(self, state: State, origin: Origin | None) -> None:
        """Restore a checked state; ``origin`` is the preconditioner's.

        Raises
        ------
        ValueError
            If the state has another number of samples.
        """
        if state["samples"] != self.settings.samples:
            raise ValueError(
                f"the saved state does not fit: it has {state['samples']} samples, "
                f"expected {self.settings.samples}"
            )
        self.generator.set_state(state["generator"])
        if state["share"] != self.model.subgrid_share:
            self.model = self.model.with_subgrid_share(state["share"])
        self.share_settled = state["share_settled"]
        self.noise.restore(part_of(state, "noise"))
        self.cache.restore(self.model, state["iterations"], origin)
