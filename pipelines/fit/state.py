"""Where a fit stands between two of its stages, or within one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dustmap.checkpoint import State, part_of, require_finite, scoped
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.model.cost import Speed
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference
from pipelines.saving.state_file import SavedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a finished map is worth.

    Parameters
    ----------
    support
        Lengths of sight lines in the cells of every grid [cells], the coarsest first.
    columns
        Predictions of the held-out stars, one tensor for each column.
    score, messages
        Errors and coverage of these predictions, and lines for people.
    residual
        What neighbouring stars share beyond the samples, as bytes; ``None`` if nothing.
    """

    support: tuple[Tensor, ...]
    columns: dict[str, Tensor] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    residual: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """All that a fit has found out, without what its catalogue says.

    Parameters
    ----------
    done
        How many stages have ended.
    generator
        State of the random generator when the last of them ended.
    plan, speed
        The plan, as it was learnt, and the speed of the machine that planned.
    box
        Whose stars are fitted: that of the first plan, which learning may change.
    learning
        Diagnostics of learning the prior.
    inference
        State of an inference under way.
    result
        The posterior of the first map, then of the last one.
    residual
        What neighbouring stars share beyond the first map, as bytes: none if this is
        nothing, ``None`` before it is known.
    judgement
        Of the last map.
    """

    done: int = 0
    generator: Tensor
    plan: Plan | None = None
    speed: Speed | None = None
    box: Box | None = None
    learning: dict[str, Any] | None = None
    inference: State | None = None
    result: Inference | None = None
    residual: bytes | None = None
    judgement: Judgement | None = None

    @property
    def planned(self) -> tuple[Plan, Speed]:
        """The plan and the speed, which every stage but the first one has."""
        assert self.plan is not None
        assert self.speed is not None
        return self.plan, self.speed

    def entries(self) -> dict[str, Any]:
        """Return tensors and plain JSON by name.

        Raises
        ------
        FloatingPointError
            If a tensor of the inference or its result is not finite.
        """
        found: dict[str, Any] = {
            "done": self.done,
            "generator": self.generator,
            "plan": None if self.plan is None else self.plan.as_dict(),
            "speed": None if self.speed is None else asdict(self.speed),
            "box": None if self.box is None else asdict(self.box),
            "learning": self.learning,
        }
        if self.inference is not None:
            found |= scoped("inference", self.inference)
        if self.result is not None:
            found |= scoped("result", self.result.entries())
        tensors = {n: v for n, v in found.items() if isinstance(v, Tensor)}
        require_finite(f"the state of a fit after {self.done} stages", **tensors)
        if self.residual is not None:
            found["residual"] = _packed(self.residual)
        if (judged := self.judgement) is not None:
            found |= {"score": judged.score, "messages": list(judged.messages)}
            found |= {f"support.{n}": x for n, x in enumerate(judged.support)}
            found |= scoped("columns", judged.columns)
            if judged.residual is not None:
                found["last residual"] = _packed(judged.residual)
        return found

    @classmethod
    def restore(cls, saved: SavedState, device: torch.device) -> Self:
        """Return the state in a file, the result on a device; inverse of `entries`.

        Raises
        ------
        InputError
            If the file holds none.
        """
        entries = saved.content
        try:
            plan, speed, box = entries["plan"], entries["speed"], entries["box"]
            result, judgement = part_of(entries, "result"), None
            if "score" in entries:
                support = part_of(entries, "support")
                judgement = Judgement(
                    support=tuple(support[str(n)] for n in range(len(support))),
                    columns=part_of(entries, "columns"),
                    score=entries["score"],
                    messages=tuple(entries["messages"]),
                    residual=_unpacked(entries.get("last residual")),
                )
            return cls(
                done=entries["done"],
                generator=entries["generator"],
                plan=None if plan is None else Plan.from_dict(plan),
                speed=None if speed is None else Speed(**speed),
                box=None if box is None else Box(**{k: (*v,) for k, v in box.items()}),
                learning=entries["learning"],
                inference=part_of(entries, "inference") or None,
                result=Inference.from_entries(result, device) if result else None,
                residual=_unpacked(entries.get("residual")),
                judgement=judgement,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{saved.path} holds no state of a fit ({type(error).__name__}: "
                f"{error}): start again with --overwrite"
            ) from error


def _packed(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _unpacked(content: Tensor | None) -> bytes | None:
    return None if content is None else content.numpy().tobytes()
