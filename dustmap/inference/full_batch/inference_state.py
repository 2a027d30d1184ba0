"""Progress of a full-batch inference, and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import (
    State,
    check_state,
    flatten,
    part_of,
    rebuild,
    schema_of,
)
from dustmap.inference.full_batch.fit import Fit
from dustmap.inference.full_batch.mode import Iterate, Mode
from dustmap.inference.full_batch.preconditioner_cache import Origin
from dustmap.inference.full_batch.randomized_map import Fitted, SampleIterate, Samples
from dustmap.inference.full_batch.white_noise import White
from dustmap.linalg.cg import Solution


@dataclass(slots=True, kw_only=True)
class Round:
    """One round of sample fits.

    Parameters
    ----------
    total
        Its Σ.
    rough
        Whether it is one of the first rounds, of a few rough samples.
    number
        From 0, separately for rough and final rounds.
    done
        Number of samples fitted in it.
    """

    total: Float[Tensor, " n"]
    rough: bool = True
    number: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Finished samples of a non-linear model, and their Σ."""

    samples: Samples
    total: Float[Tensor, " n"]


@dataclass(slots=True, kw_only=True)
class InferenceState:
    """Results of the stages so far.

    Parameters
    ----------
    search
        The current search for the mode: the first, one with finer solves, or the last
        with the Σ of the samples.
    mode
        The mode.
    white
        The white noise of the samples.
    blocks
        Finished samples of a linear model.
    round, samples, iterate
        For a non-linear model: the current round, the samples fitted in it followed by
        those of the round before, and the iterate of the next sample.
    drawn
        All samples of a non-linear model.
    """

    search: Iterate | None = None
    mode: Mode | None = None
    white: White | None = None
    blocks: Solution | None = None
    round: Round | None = None
    samples: list[Fitted] = field(default_factory=list)
    iterate: SampleIterate | None = None
    drawn: Drawn | None = None

    def flat(self) -> State:
        """Entries by name, without copies."""
        state: State = {}
        for part in _parts():
            value = getattr(self, part)
            state |= {} if value is None else flatten(part, value)
        for number, sample in enumerate(self.samples):
            state |= flatten(f"sample {number}", sample)
        return state

    @classmethod
    def restore(cls, fit: Fit, state: State) -> InferenceState:
        """The inverse of :meth:`flat`; also restores the fit.

        Raises
        ------
        ValueError
            If the state belongs to another fit.
        """
        examples = _examples(fit)
        schemas = {}
        for part, example in examples.items():
            entries = part_of(flatten(part, example), part)
            free = entries if part == "blocks" else ()
            schemas[part] = schema_of(entries, any_length=free)
        check_state(state, schema_of(fit.state()), schemas)
        found = {
            part: rebuild(part, example, state)
            for part, example in examples.items()
            if part_of(state, part)
        }
        fit.restore(state, found.pop("origin", None))
        own = {part: found.pop(part) for part in _parts() if part in found}
        # The remaining entries are samples, in order.
        return cls(**own, samples=list(found.values()))


def _parts() -> list[str]:
    return [each.name for each in fields(InferenceState) if each.name != "samples"]


def _examples(fit: Fit) -> dict[str, Any]:
    """An example of every part of a state of this fit."""
    samples = fit.settings.samples
    place = {"dtype": fit.model.dtype, "device": fit.model.device}
    p = torch.zeros(fit.model.latent_size, **place)
    n = torch.zeros(fit.count, **place)
    zero = torch.zeros(1, dtype=torch.float64, device=p.device)
    solution = Solution(
        value=p[None], residual=zero, iterations=zero.long(), converged=zero.bool()
    )
    each = torch.zeros(samples)
    drawn = Samples(
        value=p.expand(samples, -1),
        expected_decrease=each,
        iterations=each.long(),
        converged=each.bool(),
        newton_decrement=0.0,
    )
    fitted = Fitted(eps=p, expected_decrease=0.0, iterations=0, converged=False)
    return {
        "origin": Origin(eps=p, total=n, generator=fit.generator.get_state()),
        "search": Iterate(eps=p, total=n),
        "mode": Mode(eps=p, steps=0, converged=False, solution=solution),
        "white": White(seed=0),
        "blocks": solution,
        "round": Round(total=n),
        **{f"sample {number}": fitted for number in range(samples)},
        "iterate": SampleIterate(eps=p),
        "drawn": Drawn(samples=drawn, total=n),
    }
