"""The state of a fit between or within stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from dustmap.checkpoint import State, require_finite
from dustmap.residual.surveys import SurveyLaw
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference

_CONFIG = ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """The results of a fit so far.

    ``done`` counts the finished stages, ``generator`` is the state of the random
    generator after them. ``plan`` holds the learnt scales, ``speed`` is that of the
    machine with a limit of time, else the reference, and ``box`` (of the first plan)
    holds the stars to fit. ``learning`` are diagnostics of the prior, ``inference`` is
    the state of an unfinished one, ``result`` the posterior of the last map.
    ``residual`` holds the bytes of the residual shared by neighbouring stars: empty if
    none, ``None`` before learning. ``surveys`` are the laws of several catalogues, by
    which all extinctions and errors are replaced. All extinctions are ``raised`` by
    these [mag] because of a magnitude limit, with the β ``selection_beta``.
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
    surveys: tuple[SurveyLaw, ...] = ()
    selection_beta: float = 0.0
    raised: Tensor | None = None

    @property
    def planned(self) -> tuple[Plan, Speed]:
        """The plan and the speed, known after the first stage."""
        assert self.plan is not None
        assert self.speed is not None
        return self.plan, self.speed

    def require_finite(self) -> None:
        """Raise `FloatingPointError` if a tensor of the state is not finite."""
        found = {} if self.inference is None else dict(self.inference)
        if self.result is not None:
            found |= {"mean": self.result.mean, "samples": self.result.samples}
        tensors = {name: x for name, x in found.items() if isinstance(x, Tensor)}
        require_finite(f"the state of a fit after {self.done} stages", **tensors)

    @classmethod
    def restore(cls, plain: Any, path: Path, device: torch.device) -> FitState:
        """Return the state from plain values of a file, its result on a device.

        Raises
        ------
        InputError
            If the values are not a state.
        """
        try:
            state = TypeAdapter(FitState).validate_python(plain)
        except ValueError as error:
            raise InputError(
                f"{path} does not hold a fit's state ({error}): start again with "
                "--overwrite"
            ) from error
        if state.result is None:
            return state
        result = state.result
        moved = {n: getattr(result, n).to(device) for n in ("mean", "samples", "noise")}
        return replace(state, result=replace(result, **moved))
