"""What the phases of a full-batch inference share, and how it is taken up again."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch_settings import FullBatch
from dustmap.inference.gauss_newton import OnStep
from dustmap.inference.journal import (
    generator_kind,
    saved_weighing,
    take_up_weighing,
    weighing_pattern,
)
from dustmap.inference.noise import Weighing
from dustmap.inference.sketching import Sketching
from dustmap.journal import Journal, Pattern, State
from dustmap.models.base import ForwardModel, Linearisation


class Fit:
    """The state that the phases of one inference share."""

    def __init__(
        self,
        model: ForwardModel,
        weighing: Weighing,
        settings: FullBatch,
        generator: torch.Generator,
        *,
        on_step: OnStep | None,
        journal: Journal,
    ) -> None:
        self.model = model
        self.weighing = weighing
        self.settings = settings
        self.generator = generator
        self.on_step = on_step
        self.journal = journal
        self.sketching = Sketching(settings.preconditioner_rank, generator, on_step)
        self.share_settled = True

    @property
    def count(self) -> int:
        """The number of observations."""
        return len(self.weighing.observations)

    @property
    def inexact(self) -> bool:
        """Whether the tangent or Σ changes with ε, so that one step is not enough."""
        return not self.model.linear or self.weighing.noise.depends_on_field

    def tangent(self, eps: Float[Tensor, " p"]) -> tuple[Linearisation, Tensor]:
        """The tangent at ε, and Σ with the weights at hand."""
        tangent = self.model.linearise(eps)
        return tangent, self.weighing.total(eps[None], tangent.variance)

    def saved(self) -> State:
        """All of it, but what follows from ε."""
        return {
            "generator": self.generator.get_state(),
            "share": float(self.model.subgrid_share),
            "share_settled": self.share_settled,
            **saved_weighing(self.weighing),
            **self.sketching.saved(),
        }

    def pattern(self) -> Pattern:
        """What :meth:`saved` always saves; a part ``sketch`` may be beside it."""
        return {
            "generator": generator_kind(self.generator),
            "share": float,
            "share_settled": bool,
            "iterations": int,
            **weighing_pattern(self.weighing),
        }

    def take_up(self, known: dict[str, Any]) -> None:
        """Bring all of it to where it was."""
        self.generator.set_state(known["generator"])
        if known["share"] != self.model.subgrid_share:
            self.model = self.model.with_subgrid_share(known["share"])
        self.share_settled = known["share_settled"]
        take_up_weighing(self.weighing, known)
        self.sketching.take_up(self.model, known)
