"""Where a fit stands between two of its stages, or within its inference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dustmap.checkpoint import State
from pipelines.base.errors import InputError
from pipelines.engines import Inference
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.saving.checkpoint import Checkpoint

Stage = Literal["planned", "learnt", "inferring", "inferred"]
"""What was done last: the next is learning, inference, more of it, and the result."""

_GENERATOR, _INFERENCE, _RESULT = "generator", "inference:", "result:"
_TENSORS = ("mean", "samples", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """All that a fit has found out, without what the catalogue tells again.

    Parameters
    ----------
    plan
        As it was made, then as it was learnt.
    generator
        Its state when the stage that follows began; an inference under way also keeps
        its own.
    speed
        Of the machine that planned.
    learning
        What learning says of itself, if there was any.
    inference
        The state of an inference under way.
    result
        The inference, done.
    """

    stage: Stage
    plan: Plan
    generator: Tensor
    speed: Speed
    learning: dict[str, Any] | None = None
    inference: State | None = None
    result: Inference | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        found = {_GENERATOR: self.generator}
        for name, value in (self.inference or {}).items():
            if isinstance(value, Tensor):
                found[_INFERENCE + name] = value
        if self.result is not None:
            for name in _TENSORS:
                found[_RESULT + name] = getattr(self.result, name)
        return found

    def content(self) -> dict[str, Any]:
        """All else, as plain JSON."""
        plain: dict[str, Any] = {
            "stage": self.stage,
            "plan": self.plan.as_dict(),
            "speed": asdict(self.speed),
            "learning": self.learning,
        }
        if self.inference is not None:
            entries = self.inference.items()
            plain["inference"] = {n: v for n, v in entries if not isinstance(v, Tensor)}
        if self.result is not None:
            result = self.result
            plain["result"] = {
                "plan": result.plan.as_dict(),
                "converged": result.converged,
                "messages": list(result.messages),
                "facts": result.facts,
            }
        return plain

    @classmethod
    def restore(cls, checkpoint: Checkpoint, device: torch.device) -> FitState:
        """The inverse of `tensors` and `content`.

        Raises
        ------
        InputError
            If the checkpoint holds no such state.
        """
        plain, tensors = checkpoint.content, checkpoint.tensors
        try:
            return cls(
                stage=plain["stage"],
                plan=Plan.from_dict(plain["plan"]),
                generator=tensors[_GENERATOR],
                speed=Speed(**plain["speed"]),
                learning=plain["learning"],
                inference=_inference(plain, tensors),
                result=_result(plain, tensors, device),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{checkpoint.path} holds no state of a fit ({type(error).__name__}: "
                f"{error}): begin anew with --overwrite"
            ) from error


def _inference(plain: dict[str, Any], tensors: dict[str, Tensor]) -> State | None:
    if "inference" not in plain:
        return None
    own = {n: t for n, t in tensors.items() if n.startswith(_INFERENCE)}
    found = {name.removeprefix(_INFERENCE): tensor for name, tensor in own.items()}
    return {**plain["inference"], **found}


def _result(
    plain: dict[str, Any], tensors: dict[str, Tensor], device: torch.device
) -> Inference | None:
    if "result" not in plain:
        return None
    known = plain["result"]
    return Inference(
        plan=Plan.from_dict(known["plan"]),
        **{name: tensors[_RESULT + name].to(device) for name in _TENSORS},
        converged=bool(known["converged"]),
        messages=tuple(known["messages"]),
        facts=known["facts"],
    )
