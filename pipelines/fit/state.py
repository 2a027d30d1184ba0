"""The state of a fit between or within stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from dustmap.checkpoint import require_finite
from dustmap.inference.full_batch.state import Progress
from dustmap.inference.svi.training import Training
from dustmap.posterior import Posterior
from dustmap.residual.surveys import SurveyLaw
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.model.engine import posterior_model
from pipelines.model.plan import Plan
from pipelines.model.problem import Inference


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An assessment of a finished map.

    ``supports`` are lengths of sight lines in the cells of every grid [cells], the
    coarsest first; ``columns`` predictions of the held-out stars, ``score`` their
    errors and coverage, ``messages`` lines for the user, of which ``warnings`` remain
    of concern in a converged fit. ``residual`` holds the bytes of the residual shared
    by neighbours beyond the samples, empty without one.
    """

    supports: tuple[Tensor, ...]
    columns: dict[str, Tensor]
    score: dict[str, float]
    messages: tuple[str, ...]
    residual: bytes
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitState:
    """The results of a fit so far.

    ``done`` counts the finished stages, ``generator`` is the state of the random
    generator after them. ``plan`` holds the learnt scales. Stars in the ``box`` of the
    first plan are fitted. ``learning`` are diagnostics of the prior, ``progress`` is
    that of an unfinished inference, ``result`` the posterior of the last map, which on
    rank 0 is ``judged`` at the end. ``residual`` holds the bytes of the residual shared
    by neighbouring stars: empty if none, ``None`` before learning. ``surveys`` are the
    laws of several catalogues, by which all extinctions and errors are replaced. All
    extinctions are ``raised`` by these [mag] because of a magnitude limit, with the β
    ``selection_beta``.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    done: int = 0
    generator: Tensor
    plan: Plan | None = None
    box: Box | None = None
    learning: dict[str, Any] | None = None
    progress: Progress | Training | None = None
    result: Inference | None = None
    judged: Judgement | None = None
    residual: bytes | None = None
    surveys: tuple[SurveyLaw, ...] = ()
    selection_beta: float = 0.0
    raised: Tensor | None = None

    @property
    def planned(self) -> Plan:
        """The plan, known after the first stage."""
        assert self.plan is not None
        return self.plan

    def require_finite(self) -> None:
        """Raise `FloatingPointError` if a tensor of the state is not finite."""
        found = [self.progress]
        if self.result is not None:
            found += [self.result.mean, self.result.samples]
        for tensor in _tensors(found):
            require_finite(f"the state of a fit after {self.done} stages", it=tensor)

    def posterior(self, seed: int) -> Posterior:
        """Return the posterior of the last map, without functionals."""
        assert self.result is not None
        mean, samples = self.result.mean, self.result.samples
        model = posterior_model(
            self.result.plan, dtype=mean.dtype, device=mean.device, seed=seed
        )
        return Posterior(model=model, mean=mean, samples=samples)

    @classmethod
    def restore(cls, plain: Any, path: Path, device: torch.device) -> FitState:
        """Return the state from plain values of a file, its result on a device.

        Raises `InputError` if the values are not a state.
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


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree of sequences and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif is_dataclass(value):
        yield from _tensors([getattr(value, field.name) for field in fields(value)])
