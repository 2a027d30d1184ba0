"""Where a fit stands between two of its stages, or within its inference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from dustmap.checkpoint import State, part_of, scoped
from pipelines.base.errors import InputError
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference
from pipelines.saving.checkpoint import Checkpoint

Stage = Literal["planned", "learnt", "mapped", "inferring", "inferred"]
"""What was done last: a plan, its scales, a first map, part of an inference, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """All that a fit has found out, without what the catalogue tells again.

    ``plan`` is as it was made, then as it was learnt; ``generator`` the state of the
    random generator when the stage that follows began; ``speed`` that of the machine
    that planned; ``learning`` holds the diagnostics of learning. An ``inference`` under
    way has a state of its own, one that is done a ``result``, as the first map has.
    ``residual`` is what neighbouring stars share beyond the first map, as bytes: none
    if this is nothing, ``None`` before.
    """

    stage: Stage
    plan: Plan
    generator: Tensor
    speed: Speed
    learning: dict[str, Any] | None = None
    inference: State | None = None
    result: Inference | None = None
    residual: Tensor | None = None

    def entries(self) -> dict[str, Any]:
        """Tensors and plain JSON by name."""
        found = {
            "stage": self.stage,
            "plan": self.plan.as_dict(),
            "generator": self.generator,
            "speed": asdict(self.speed),
            "learning": self.learning,
        }
        if self.inference is not None:
            found |= scoped("inference", self.inference)
        if self.result is not None:
            found |= scoped("result", self.result.entries())
        if self.residual is not None:
            found["residual"] = self.residual
        return found

    @classmethod
    def from_entries(cls, entries: dict[str, Any], device: torch.device) -> Self:
        """The inverse of `entries`; a result goes to the device."""
        result = part_of(entries, "result")
        return cls(
            stage=entries["stage"],
            plan=Plan.from_dict(entries["plan"]),
            generator=entries["generator"],
            speed=Speed(**entries["speed"]),
            learning=entries["learning"],
            inference=part_of(entries, "inference") or None,
            result=Inference.from_entries(result, device) if result else None,
            residual=entries.get("residual"),
        )

    @classmethod
    def restore(cls, checkpoint: Checkpoint, device: torch.device) -> Self:
        """The state that a checkpoint holds.

        Raises
        ------
        InputError
            If it holds none.
        """
        try:
            return cls.from_entries(checkpoint.content, device)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{checkpoint.path} holds no state of a fit ({type(error).__name__}: "
                f"{error}): start again with --overwrite"
            ) from error
