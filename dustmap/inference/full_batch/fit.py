"""All that changes during one full-batch inference, and its checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.checkpoint import (
    Checkpointer,
    State,
    check_state,
    flatten,
    part_of,
    rebuild,
    scoped,
)
from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import GaussNewton, OnStep, Target
from dustmap.inference.full_batch.noise import NoiseState
from dustmap.inference.full_batch.pace import SecondsLeft, unlimited
from dustmap.inference.full_batch.preconditioner_cache import (
    Origin,
    PreconditionerCache,
)
from dustmap.inference.full_batch.progress import (
    Batch,
    Fitted,
    Iterate,
    Mode,
    Round,
)
from dustmap.inference.full_batch.settings import FullBatch
from dustmap.linalg.cg import Solution
from dustmap.models.base import ForwardModel, Linearisation


class Fit:
    """Model, noise, preconditioner, generator and progress of one inference.

    Its stages in order: ``search`` is the current iterate of the mode; ``seed`` that of
    the samples' white noise, negative before they begin; ``blocks`` finished samples of
    a linear model; ``round`` is that of a non-linear one, ``batch`` what it works on,
    and ``samples`` are those fitted in it or in the round before, by number.
    ``out_of_time`` says whether a stage ended before it was done.
    """

    search: Iterate | None = None
    mode: Mode | None = None
    seed: int = -1
    blocks: Solution | None = None
    round: Round | None = None
    batch: Batch | None = None
    share_settled: bool = True
    out_of_time: bool = False

    def __init__(
        self,
        model: ForwardModel,
        noise: NoiseState,
        settings: FullBatch,
        generator: torch.Generator,
        *,
        on_step: OnStep,
        checkpointer: Checkpointer,
        time_left: SecondsLeft = unlimited,
        teams: Group | None = None,
    ) -> None:
        self.model = model
        self.noise = noise
        self.settings = settings
        self.generator = generator
        self.on_step = on_step
        self.cache = PreconditionerCache(
            settings.preconditioner_rank,
            generator,
            on_step,
            noise.covariance,
            subspace=model.leading,
        )
        self.samples: dict[int, Fitted] = {}
        self.time_left = time_left
        self.teams = Group() if teams is None else teams
        self._checkpointer = checkpointer
        state = checkpointer.restore()
        if state is not None:
            self._restore(state)

    @property
    def enough(self) -> float:
        """The expected decrease at which steps end [nats]."""
        return self.settings.newton_tolerance * len(self.noise.observations)

    @property
    def inexact(self) -> bool:
        """Whether the tangent or Σ changes with ε, so that one step is not enough."""
        return not self.model.linear or self.noise.given.depends_on_field

    def tangent(self, eps: Float[Tensor, " p"]) -> tuple[Linearisation, Tensor]:
        """The tangent at ε, and Σ with the current weights."""
        tangent = self.model.linearise(eps)
        return tangent, self.noise.total(eps[None], tangent.variance)

    def target(self, total: Float[Tensor, " n"]) -> Target:
        """The objective of the mode for this Σ."""
        return Target(y=self.noise.observations, noise=self.noise.covariance(total))

    def newton(self, target: Target, **options: Any) -> GaussNewton:
        """Steps towards a target, with the current preconditioner."""
        return GaussNewton(
            model=self.model,
            target=target,
            preconditioner=self.cache.preconditioner,
            on_step=self.on_step,
            **options,
        )

    def save(self, **progress: Any) -> None:
        """Record progress by name, and save the state."""
        for name, value in progress.items():
            setattr(self, name, value)
        state = self._values()
        for name, part in self._parts().items():
            state |= {} if part is None else flatten(name, part)
        self._checkpointer.save(state)

    def _values(self) -> State:
        """The entries of every state, without copies."""
        return {
            "generator": self.generator.get_state(),
            "share": float(self.model.subgrid_share),
            "share_settled": self.share_settled,
            "out_of_time": self.out_of_time,
            "count": self.settings.samples,
            "seed": self.seed,
            "iterations": self.cache.iterations,
            **scoped("noise", self.noise.state()),
        }

    def _parts(self) -> dict[str, Any]:
        """The entries of some states."""
        names = ("search", "mode", "blocks", "round", "batch")
        parts = {"origin": self.cache.origin, **{n: getattr(self, n) for n in names}}
        return parts | {f"sample {i}": each for i, each in self.samples.items()}

    def _restore(self, state: State) -> None:
        """Go on from a state, or raise a ValueError if it belongs to another fit."""
        examples, expected = self._examples(), self._values()
        for name, example in examples.items():
            expected |= flatten(name, example)
        rows = {
            name
            for name, value in expected.items()
            if name.startswith(("blocks.", "batch.")) and isinstance(value, Tensor)
        }
        check_state(state, expected, optional=examples, any_length=rows)
        if state["count"] != self.settings.samples:
            raise ValueError(
                f"the saved state does not fit: it has {state['count']} samples, "
                f"expected {self.settings.samples}"
            )
        found = {
            name: rebuild(name, example, state)
            for name, example in examples.items()
            if part_of(state, name)
        }
        if state["share"] != self.model.subgrid_share:
            self.model = self.model.with_subgrid_share(state["share"])
        self.generator.set_state(state["generator"])
        self.share_settled, self.seed = state["share_settled"], state["seed"]
        self.out_of_time = state["out_of_time"]
        self.noise.restore(part_of(state, "noise"))
        if "origin" in found:
            self.cache.restore(self.model, found.pop("origin"))
        self.cache.iterations = state["iterations"]
        for name in [each for each in found if not each.startswith("sample ")]:
            setattr(self, name, found.pop(name))
        self.samples = {int(name.split()[1]): each for name, each in found.items()}

    def _examples(self) -> dict[str, Any]:
        """An example of every part of a state of this fit."""
        place = {"dtype": self.model.dtype, "device": self.model.device}
        p = torch.zeros(self.model.latent_size, **place)
        n = torch.zeros(len(self.noise.observations), **place)
        zero = torch.zeros(1, dtype=torch.float64, device=p.device)
        solution = Solution(
            value=p[None], residual=zero, iterations=zero.long(), converged=zero.bool()
        )
        fitted = Fitted(eps=p, expected_decrease=0.0, iterations=0, converged=False)
        return {
            "origin": Origin(eps=p, total=n, generator=self.generator.get_state()),
            "search": Iterate(eps=p, total=n),
            "mode": Mode(eps=p, steps=0, converged=False, solution=solution),
            "blocks": solution,
            "round": Round(total=n),
            "batch": Batch.at(p[None]),
            **{f"sample {i}": fitted for i in range(self.settings.samples)},
        }
