"""Where a fit stands between two of its stages, or within its inference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from dustmap.inference.journal import State
from pipelines.base.errors import InputError
from pipelines.engines import Inference
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.saving.checkpoint import Checkpoint

Stage = Literal["planned", "learnt", "inferring", "inferred"]
"""What was done last: the next is learning, inference, more of it, and the result."""

_GENERATOR, _JOURNAL, _RESULT = "generator", "journal:", "result:"
_RESULTS = ("mean", "samples", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """All that a fit has found out, without what the catalogue tells again.

    Parameters
    ----------
    plan
        As it was made, then as it was learnt.
    generator
        Its state when the stage that follows began; an inference that was saved on its
        way also keeps its own in ``journal``.
    speed
        Of the machine that planned.
    learning
        What learning says of itself, if there was any.
    journal
        The inference on its way.
    result
        The inference, done.
    """

    stage: Stage
    plan: Plan
    generator: Tensor
    speed: Speed
    learning: dict[str, Any] | None = None
    journal: State | None = None
    result: Inference | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        found = {_GENERATOR: self.generator}
        for name, value in (self.journal or {}).items():
            if isinstance(value, Tensor):
                found[_JOURNAL + name] = value
        if self.result is not None:
            for name in _RESULTS:
                # Moments may be views of what else an inference keeps.
                own = getattr(self.result, name).detach().cpu().contiguous()
                found[_RESULT + name] = own.clone()
        return found

    def content(self) -> dict[str, Any]:
        """All else, as plain JSON."""
        plain: dict[str, Any] = {
            "stage": self.stage,
            "plan": self.plan.as_dict(),
            "speed": asdict(self.speed),
            "learning": self.learning,
        }
        if self.journal is not None:
            plain["journal"] = {
                name: _written(value)
                for name, value in self.journal.items()
                if not isinstance(value, Tensor)
            }
        if self.result is not None:
            result = self.result
            plain["result"] = {
                "plan": result.plan.as_dict(),
                "converged": result.converged,
                "messages": list(result.messages),
                "facts": result.facts,
            }
        return plain


def restored(checkpoint: Checkpoint, device: torch.device) -> FitState:
    """The inverse of `FitState.tensors` and `FitState.content`.

    Raises
    ------
    InputError
        If the checkpoint holds no such state.
    """
    plain, tensors = checkpoint.content, checkpoint.tensors
    try:
        state = FitState(
            stage=plain["stage"],
            plan=Plan.from_dict(plain["plan"]),
            generator=tensors[_GENERATOR],
            speed=Speed(**plain["speed"]),
            learning=plain["learning"],
        )
        if "journal" in plain:
            state = replace(state, journal=_journal(plain["journal"], tensors))
        if "result" in plain:
            state = replace(state, result=_result(plain["result"], tensors, device))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{checkpoint.path} holds no state of a fit ({type(error).__name__}: "
            f"{error}): begin anew with --overwrite"
        ) from error
    return state


def _journal(plain: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    state: State = {name: _read(value) for name, value in plain.items()}
    for name, tensor in tensors.items():
        if name.startswith(_JOURNAL):
            state[name.removeprefix(_JOURNAL)] = tensor
    return state


def _result(
    plain: dict[str, Any], tensors: dict[str, Tensor], device: torch.device
) -> Inference:
    mean, samples, noise = (tensors[_RESULT + name].to(device) for name in _RESULTS)
    return Inference(
        plan=Plan.from_dict(plain["plan"]),
        mean=mean,
        samples=samples,
        noise=noise,
        converged=bool(plain["converged"]),
        messages=tuple(plain["messages"]),
        facts=plain["facts"],
    )


def _written(value: object) -> object:
    # JSON keeps every bit of a finite float, and knows no other.
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _read(value: Any) -> float | int | bool | str:
    return float(value["float"]) if isinstance(value, dict) else value
