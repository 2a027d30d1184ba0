"""The context of a fit's stages: processes, time and saved state.

The ranks of a group run the same stages. They agree on when to save a state and when to
stop after a signal; rank 0 writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dustmap.distributed.group import Group
from dustmap.inference.full_batch.gauss_newton import OnStep, Task
from pipelines.base.allocation import release_freed_memory
from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import StageClock, say
from pipelines.config import FitConfig
from pipelines.fit.state import FitState
from pipelines.model.problem import Device
from pipelines.saving.identity import identity_of
from pipelines.saving.state_file import write_state
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace

# The state in `dustmap status` by stage; "running" during the others.
_SHOWN = {"plan": "planning", "learn prior": "learning", "write": "writing"}
# Kinds of a step's value by task, unless it is a relative residual.
_VALUES = {
    "svi bound": "bound",
    "misfit": "misfit",
    "gain": "expected_gain",
    "scales likelihood": "expected_gain",
}
# Interval between notes of the last step [s].
_NOTED = 1.0


@dataclass(slots=True, kw_only=True)
class Context:
    """The surroundings of a stage, beside stars and state of the fit.

    The ranks of ``team`` divide the stars, those of ``teams``, the counterparts in
    other teams, the samples. ``metrics`` are the records of solvers' steps, ``history``
    those of earlier resumptions.
    """

    config: FitConfig
    device: Device
    group: Group
    team: Group
    teams: Group
    work: Workspace
    stop: StopFlag
    inputs: list[dict[str, str]]
    clock: StageClock = field(default_factory=StageClock)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    now: Callable[[], float] = time.monotonic
    # Called at each iteration of a solver, with its ``task`` and the ``iteration``.
    follow: Callable[..., object] = dict
    stage: str = field(default="", init=False)
    _since: float = field(init=False)
    _steps: int = field(default=0, init=False)
    _noted: float = field(init=False)
    # The state after the last step, if unwritten, and its number of records.
    _latest: tuple[FitState, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._since, self._noted = self.now(), time.monotonic()

    @property
    def last(self) -> Path | None:
        """The saved state, if any."""
        return self.work.state if self.work.state.is_file() else None

    def begin(self, stage: str) -> None:
        """Record the beginning of a stage for `dustmap status`."""
        self.stage = stage.replace("_", " ")
        self.note(state=_SHOWN.get(self.stage, "running"))

    def note(self, **facts: object) -> None:
        """Update ``status.json`` on rank 0."""
        if self.group.first:
            self._noted = time.monotonic()
            try:
                self.work.note(last=self.metrics[-1] if self.metrics else {}, **facts)
            except OSError as error:
                say(f"status.json could not be written; the fit continues: {error}")

    def by_first(self, make: Callable[[], FitState]) -> FitState:
        """Make a state on rank 0 and return it on all ranks.

        Results that depend on rounding, such as plans, could otherwise differ between
        ranks. All generators take the final state of rank 0's.

        Raises the `InputError` or `Stopped` of ``make`` on all ranks; `PeerError` on
        the others, after any other failure.
        """
        generator = self.device["generator"]

        def attempt() -> tuple[FitState | InputError | Stopped, torch.Tensor]:
            try:
                return make(), generator.get_state()
            except (InputError, Stopped) as reason:
                return reason, generator.get_state()

        made, drawn = self.group.from_first(attempt)
        if isinstance(made, Exception):
            raise made
        generator.set_state(drawn)
        return made

    def recorder(
        self, tolerances: Mapping[str, float] | None = None, *, alone: bool = False
    ) -> OnStep:
        """Return a function that records every step, and stops after a signal.

        A residual is recorded with the tolerance of its task. With ``alone`` the other
        ranks wait.
        """
        started, records = time.perf_counter(), self.metrics
        before = records[-1]["seconds"] if records else 0.0

        def on_step(task: Task, step: int, value: float) -> None:
            # Each team solves for samples on its own: all stop between samples.
            if alone or self.teams.size == 1 or not task.total:
                self.stop_if_asked(alone=alone)
            if value == value:
                kind = _VALUES.get(task.name, "residual")
                record = {"stage": task.name, "iteration": step}
                record |= {"kind": kind, "value": value}
                if task.total:
                    record |= {"first": task.first, "last": task.last}
                tolerance = (tolerances or {}).get(task.name)
                if kind == "residual" and tolerance is not None:
                    record["tolerance"] = tolerance
                passed = before + time.perf_counter() - started
                records.append({**record, "seconds": round(passed, 3)})
                if time.monotonic() - self._noted >= _NOTED:
                    self.note()
                # A misfit follows a step of many iterations.
                if kind != "misfit":
                    self.follow(task=task, iteration=step)

        return on_step

    def save(self, state: FitState) -> FitState:
        """Save the state after a stage, and return it.

        Raises `Stopped` after a signal.
        """
        release_freed_memory()
        drawn = self.device["generator"].get_state()
        state = replace(state, done=state.done + 1, generator=drawn, progress=None)
        self._latest = state, len(self.metrics)
        self._write()
        self.stop_if_asked()
        return state

    def offer(self, state: FitState) -> None:
        """Write a state within a stage, with its progress, if one is due.

        After a signal, the last state offered is written.
        """
        self._latest = state, len(self.metrics)
        self._steps += 1
        settings = self.config.checkpoint
        due = self.now() - self._since >= 60 * settings.minutes
        if settings.iterations is not None:
            due = due or self._steps >= settings.iterations
        if self.group.agree(due):
            self._write()
        self.stop_if_asked()

    def stop_if_asked(self, *, alone: bool = False) -> None:
        """Stop after a signal; with ``alone``, without agreement of the other ranks.

        Raises `Stopped` after a signal; the unfinished step is dropped, earlier ones
        are saved.
        """
        asked = self.stop.name is not None
        if not (asked if alone else self.group.agree(asked)):
            return
        self._write()
        by = self.stop.name or "a signal to another rank"
        kept = "nothing is saved yet" if self.last is None else f"saved in {self.last}"
        raise Stopped(
            f"stopped by {by}, {kept}: continue with the same command and --resume"
        )

    def _write(self) -> None:
        """Write the latest state on rank 0 unless already written; report failures."""
        if self._latest is None:
            return
        (state, records), self._latest = self._latest, None
        if self.group.first:
            self.clock.lap(self.stage)
            state.require_finite()
            # Fails if another process may write there.
            self.note()
            under_way = ", under way" if state.progress is not None else ""
            content = {
                "fit": state,
                "stage": self.stage + under_way,
                "identity": identity_of(self.config, self.inputs),
                "seconds": self.clock.seconds,
                # Not in the header, as there may be many.
                "records": json.dumps(self.metrics[:records]).encode(),
                "history": self.history,
                "threads": torch.get_num_threads(),
            }
            try:
                write_state(self.work.state, content)
                size, stage = self.work.state.stat().st_size, content["stage"]
                saved = {"stage": stage, "written": time.time(), "bytes": size}
                self.note(checkpoint=saved, seconds=self.clock.seconds)
            except OSError as error:
                kept = "the last one stays" if self.last else "there is none yet"
                why = f"{kept}; the fit continues: {error}"
                say(f"a checkpoint could not be written, {why}")
            self.clock.lap("checkpoints")
        self.group.meet()
        self._since, self._steps = self.now(), 0
