"""The context of a fit's stages: stars, processes, time and saved state.

The ranks of a group run the same stages. They agree on when to save a state and when to
stop after a signal; rank 0 writes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dustmap.checkpoint import State
from dustmap.distributed.group import Group
from pipelines.base.allocation import release_freed_memory
from pipelines.base.errors import InputError, Stopped
from pipelines.base.geometry import Box
from pipelines.base.progress import StageClock, say
from pipelines.catalog.schema import Split, Stars
from pipelines.config import FitConfig
from pipelines.fit.magnitude_limit import raised_by
from pipelines.fit.state import FitState
from pipelines.model.cost import LEARNERS
from pipelines.model.problem import OnStep, Place, place_of
from pipelines.planning.selection import inside_box, usable_stars
from pipelines.run.surveys import calibrated
from pipelines.saving.identity import differences, identity_of
from pipelines.saving.state_file import read_state, write_state
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace, claimed, unfinished
from pipelines.storage.digests import input_digests

# The state in `dustmap status` by stage; "running" during the others.
_SHOWN = {
    "plan": "planning",
    "learn prior": "learning",
    "write": "writing",
}
# Names of a step's number by stage, unless it is a relative residual.
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
    """The surroundings of a stage, beside the state of the fit.

    The ranks of ``team`` divide the stars, those of ``teams``, the counterparts in
    other teams, the samples. ``resumed`` is an unfinished inference of an earlier
    process. After planning, ``split`` holds the rows of ``stars`` in the box, and
    ``counts`` the excluded stars by reason. ``measured`` are the stars before the
    correction for a magnitude limit.
    """

    source: Path
    output: Path
    config: FitConfig
    place: Place
    group: Group
    team: Group
    teams: Group
    work: Workspace
    stop: StopFlag
    inputs: list[dict[str, str]]
    clock: StageClock = field(default_factory=StageClock)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    resumed: State | None = None
    now: Callable[[], float] = time.monotonic
    # Called at each step of a solver, with its ``stage``.
    follow: Callable[..., object] = dict
    stars: Stars = field(init=False)
    measured: Stars = field(init=False)
    split: Split = field(init=False)
    counts: dict[str, int] = field(init=False)
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

    def keep_inside(self, box: Box) -> None:
        """Exclude the stars outside a box."""
        self.split, counts = inside_box(self.stars, self.split, box)
        self.counts |= counts

    @property
    def fitted(self) -> Stars:
        """The stars to fit."""
        return self.stars.select(self.split.train)

    @property
    def learners(self) -> Split:
        """The rows of the maps to learn from: of many stars an even part on the sky."""
        train = self.split.train
        few = np.linspace(0, len(train) - 1, min(len(train), LEARNERS))
        return replace(self.split, train=train[few.astype(np.int64)])

    @property
    def seconds_left(self) -> float:
        """Return the rest of ``budget.minutes`` [s]; infinite without it."""
        return self.config.budget.seconds - self.clock.total

    def begin(self, stage: str) -> None:
        """Record the beginning of a stage for `dustmap status`."""
        self.stage = stage.replace("_", " ")
        self.note(state=_SHOWN.get(self.stage, "running"))
        if math.isfinite(left := self.seconds_left):
            self.note(ends=time.time() + max(left, 0.0))

    def note(self, **facts: object) -> None:
        """Update ``status.json`` on rank 0."""
        if self.group.first:
            self._noted = time.monotonic()
            last = self.metrics[-1] if self.metrics else {}
            try:
                self.work.note(last=last, **facts)
            except OSError as error:
                say(f"status.json could not be written; the fit continues: {error}")

    def by_first(self, make: Callable[[], FitState]) -> FitState:
        """Make a state on rank 0 and return it on all ranks.

        Results that depend on time, such as plans, would otherwise differ between
        ranks. All generators take the final state of rank 0's.

        Raises
        ------
        InputError, Stopped
            The error of ``make``, on all ranks.
        PeerError
            On the other ranks, after any other failure.
        """
        generator = self.place["generator"]

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

    @contextmanager
    def steps(
        self, tolerances: Mapping[str, float] | None = None, *, alone: bool = False
    ) -> Iterator[OnStep]:
        """Yield a function that records every step, and stops after a signal.

        A residual is recorded with the tolerance of the first word of its name. With
        ``alone`` the other ranks wait.
        """
        started, records = time.perf_counter(), self.metrics
        before = records[-1]["seconds"] if records else 0.0

        def on_step(stage: str, step: int, value: float) -> None:
            # Each team solves for samples on its own: all stop between samples.
            if alone or self.teams.size == 1 or "samples" not in stage:
                self.stop_if_asked(alone=alone)
            if value == value:
                kind = _VALUES.get(stage, "residual")
                record = {"stage": stage, "iteration": step, kind: value}
                tolerance = (tolerances or {}).get(stage.split()[0])
                if kind == "residual" and tolerance is not None:
                    record["tolerance"] = tolerance
                passed = before + time.perf_counter() - started
                records.append({**record, "seconds": round(passed, 3)})
                if time.monotonic() - self._noted >= _NOTED:
                    self.note()
            self.follow(stage=stage)

        yield on_step

    def save(self, state: FitState, *, ended: bool = True) -> FitState:
        """Save the state after or within a stage, and return it.

        Raises
        ------
        Stopped
            After a signal.
        """
        release_freed_memory()
        drawn = self.place["generator"].get_state()
        state = replace(state, done=state.done + ended, generator=drawn)
        self._latest = state, len(self.metrics)
        self._write()
        self.stop_if_asked()
        return state

    def offer(self, state: FitState) -> None:
        """Write a state with an unfinished inference if one is due.

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

        Raises
        ------
        Stopped
            After a signal; the unfinished step is dropped, earlier ones are saved.
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
            under_way = ", under way" if state.inference is not None else ""
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
                say(
                    f"a checkpoint could not be written, {kept}; the fit continues: "
                    f"{error}"
                )
            self.clock.lap("checkpoints")
        self.group.meet()
        self._since, self._steps = self.now(), 0


@contextmanager
def opened(
    source: Path,
    output: Path,
    config: FitConfig,
    *,
    overwrite: bool,
    resume: bool,
    anyway: bool,
    group: Group,
) -> Iterator[tuple[FitState, Context]]:
    """Begin or resume a fit; after the block, only the run remains.

    Raises
    ------
    InputError
        If the catalogue cannot be fitted; or if a fit exists at the output and
        ``resume`` is false, another process works on it, its state is incomplete, or
        (unless ``anyway``) its configuration, catalogue or version differs.
    """
    place = place_of(config)
    try:
        team, teams = group.split(config.inference.teams)
    except ValueError as error:
        raise InputError(
            f"inference.teams = {config.inference.teams}: {error}; start a multiple of "
            "that many processes (torchrun --nproc-per-node)"
        ) from error
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        if group.first:
            claim = claimed(output, overwrite=overwrite, resume=resume)
            work = stack.enter_context(claim)
        group.meet()
        if not group.first:
            # The workspace claimed by rank 0.
            work = unfinished(output)
            if work is None:
                raise InputError(
                    f"{output}: this rank cannot see the workspace of rank 0: run all "
                    "ranks on one file system"
                )
        # Only rank 0 reads the whole catalogue for its hash.
        inputs = group.from_first(lambda: input_digests(source))
        at = Context(
            source=source,
            output=output,
            config=config,
            place=place,
            group=group,
            team=team,
            teams=teams,
            work=work,
            stop=stop,
            inputs=inputs,
        )
        found = _taken_up(at, anyway=anyway)
        # Rank 0 writes the next state only after all ranks have read this one.
        group.meet()
        at.note(state="planning")
        try:
            # A resumed fit repeats its first draws, to hold out the same stars.
            generator = place["generator"]
            at.stars, at.counts = usable_stars(source, config, group)
            numbers = at.stars.places()
            at.split = at.stars.split(config, generator, numbers)
            sizes = np.bincount(numbers)
            say(
                f"{len(sizes):,} places, the largest with {sizes.max():,} stars: each "
                "is fitted or held out as a whole"
            )
            state = FitState(generator=generator.get_state())
            if found:
                state = FitState.restore(found.pop("fit"), work.state, place["device"])
                # Only the context refers to its tensors, and releases them.
                at.resumed, state = state.inference, replace(state, inference=None)
                generator.set_state(state.generator)
            at.measured = calibrated(at.stars, state.surveys)
            at.stars = raised_by(at.measured, state.raised)
            if state.box is not None:
                at.keep_inside(state.box)
            at.clock.lap("read")
            yield state, at
        except Stopped as reason:
            at.note(state="stopped", message=str(reason))
            raise
        except BaseException as error:
            at.note(state="failed", message=f"{type(error).__name__}: {error}")
            if at.last is not None:
                say(
                    f"the checkpoint {at.last} stays: remove the cause, then continue "
                    "with the same command and --resume"
                )
            raise


def _taken_up(at: Context, *, anyway: bool) -> dict[str, Any]:
    """Return the state to resume, or nothing, and restore the context."""
    path = at.last
    if path is None:
        return {}
    found = read_state(path)
    changed = differences(identity_of(at.config, at.inputs), found["identity"])
    if changed and not anyway:
        raise InputError(
            f"{path} belongs to another fit:\n  "
            + "\n  ".join(changed)
            + "\nContinue with the original settings, start again with --overwrite, or "
            "continue regardless with --resume-anyway"
        )
    for line in changed:
        say(f"warning: resumed regardless, {line}")
    threads = torch.get_num_threads()
    if threads != found["threads"]:
        before = found["threads"]
        say(f"note: last digits may differ: {threads} threads, before {before}")
    age = time.time() - found["written"]
    say(f"resumed from {path} ({found['stage']}, {age:.0f} s old)")
    once = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "stage": found["stage"],
        "differences": changed,
    }
    at.clock.seconds.update(found["seconds"])
    at.metrics += json.loads(found["records"])
    at.history += [*found["history"], once]
    return found
