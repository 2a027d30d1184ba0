"""The state of a fit between two of its stages, or within one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from dustmap.checkpoint import State, require_finite
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference

_CONFIG = ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """Everything that a fit has found out, except its catalogue.

    ``done`` counts the stages that have ended, ``generator`` is the state of the random
    generator then. ``plan`` holds the scales as they were learnt, ``speed`` is that of
    the machine that planned, and ``box`` (of the first plan) holds the stars to fit.
    ``learning`` are diagnostics of the prior, ``inference`` is the state of one under
    way, ``result`` the posterior of the last map. ``residual`` is what neighbouring
    stars share beyond it, as bytes: empty if nothing, ``None`` before it is known.
    """

    __pydantic_config__ = _CONFIG

    done: int = 0
    generator: Tensor
    plan: Plan | None = None
    speed: Speed | None = None
    box: Box | None = None
    learning: dict[str, Any] | None = None
    inference: State | None = None
    result: Inference | None = None
    residual: bytes | None = None

    @property
    def planned(self) -> tuple[Plan, Speed]:
        """The plan and the speed, which every stage but the first one has."""
        assert self.plan is not None
        assert self.speed is not None
        return self.plan, self.speed

    def require_finite(self) -> None:
        """Refuse a state that is not worth saving.

        Raises
        ------
        FloatingPointError
            If a tensor of the inference or its result is not finite.
        """
        found = {} if self.inference is None else dict(self.inference)
        if self.result is not None:
            found |= {"mean": self.result.mean, "samples": self.result.samples}
        tensors = {name: x for name, x in found.items() if isinstance(x, Tensor)}
        require_finite(f"the state of a fit after {self.done} stages", **tensors)

    @classmethod
    def restore(cls, plain: Any, path: Path, device: torch.device) -> FitState:
        """Return the state that a file holds as plain values, its result on a device.

        Raises
        ------
        InputError
            If the values are none of a state.
        """
        try:
            state = TypeAdapter(FitState).validate_python(plain)
        except ValueError as error:
            raise InputError(
                f"{path} holds no state of a fit ({error}): start again with "
                "--overwrite"
            ) from error
        if state.result is None:
            return state
        result = state.result
        moved = {n: getattr(result, n).to(device) for n in ("mean", "samples", "noise")}
        return replace(state, result=replace(result, **moved))
