"""A fit that saves itself: where it works, what it resumes from, how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dustmap.checkpoint import State
from dustmap.distributed.group import Group
from pipelines.base.allocation import release_freed_memory
from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import say
from pipelines.base.timing import Countdown, StageClock, in_words
from pipelines.config import FitConfig
from pipelines.model.problem import Place, place_of
from pipelines.saving.checkpoint import Checkpoint, newest_checkpoint
from pipelines.saving.checkpoint_manager import CheckpointManager, machine
from pipelines.saving.fit_state import FitState
from pipelines.saving.identity import Identity, command_of
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace, claimed, finish, unfinished
from pipelines.storage.metrics import Metrics

# What status calls the work that follows a stage.
_NEXT = {
    "planned": "learning",
    "learnt": "running",
    "mapped": "running",
    "inferring": "running",
    "inferred": "writing",
}


@dataclass(slots=True, kw_only=True)
class Session:
    """What the stages of one fit share.

    The ranks of ``team`` share out the stars, ``teams`` the samples. ``state`` is where
    an earlier process left it, without the ``inference`` that was under way; ``None``
    at its beginning.
    """

    source: Path
    output: Path
    config: FitConfig
    place: Place
    manager: CheckpointManager
    team: Group
    teams: Group
    state: FitState | None = None
    inference: State | None = None
    countdown: Countdown | None = None

    def begin_part(self, part: str, known: Mapping[str, float] | None = None) -> None:
        """A part of the fit begins, for the time that is told to be left.

        ``known`` are the seconds that parts are expected to take, the first time or
        anew.
        """
        if self.countdown is None and known is not None:
            self.countdown = Countdown(known, ceiling=lambda: self.seconds_left)
        if self.countdown is not None:
            self.countdown.expect(known or {})
            self.countdown.enter(part)
            self.manager.update_status(ends=time.time() + self.countdown.left())

    def begin_silent_part(self, part: str, doing: str) -> None:
        """One without steps begins: tell what is done, and how long it may take."""
        self.begin_part(part)
        if self.countdown is None or not self.group.first:
            return
        say(f"{part}: {doing}; {in_words(self.countdown.left())} left")

    @property
    def group(self) -> Group:
        """The processes that make it together."""
        return self.manager.group

    @property
    def seconds_left(self) -> float:
        """What is left of ``budget.minutes``, with earlier processes' time [s]."""
        return 60 * self.config.budget.minutes - self.manager.clock.total

    @property
    def is_in_time(self) -> bool:
        """Whether the present part is expected to end within ``budget.minutes``."""
        needed = 0.0 if self.countdown is None else self.countdown.present
        return self.seconds_left > needed

    def begin_from(self, found: Checkpoint | None) -> None:
        """Go on from what an earlier process saved, if it did."""
        command = command_of(self.source, self.output, self.config)
        self.manager.update_status(
            state="planning", command=command if self.group.size == 1 else None
        )
        if found is not None:
            state = FitState.restore(found, self.place["device"])
            self.place["generator"].set_state(state.generator)
            self.state = replace(state, inference=None)
            self.inference = state.inference
            self.manager.update_status(state=_NEXT[state.stage])

    def reached(self, state: FitState, part: str) -> None:
        """A stage is done, which the clock calls ``part``: report and save it.

        Raises
        ------
        Stopped
            If a signal asked for it.
        """
        self.manager.clock.lap(part)
        release_freed_memory()
        self.manager.facts["state"] = _NEXT[state.stage]
        self.manager.save(state)


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
) -> Iterator[Session]:
    """The session of a fit, begun or resumed.

    Once the block is through, nothing but the run itself is left.

    Raises
    ------
    InputError
        If a fit was begun there and ``resume`` is false, is being made by another
        process, has no whole checkpoint, or (unless ``anyway``) was one of another
        configuration, catalogue or code.
    """
    place = place_of(config)
    team, teams = _teams(group, config)
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        if group.first:
            claim = claimed(output, overwrite=overwrite, resume=resume)
            work = stack.enter_context(claim)
        group.meet()
        if not group.first:
            work = _joined(output)
        # The first rank alone reads the whole catalogue for its hash.
        told = group.from_first(lambda: json.dumps(asdict(Identity.of(source, config))))
        identity = Identity(**json.loads(told))
        found, history = _found(work, identity, anyway=anyway)
        manager = CheckpointManager(
            work=work,
            identity=identity,
            settings=config.checkpoint,
            stop=stop,
            clock=StageClock({} if found is None else found.content["seconds"]),
            metrics=_metrics(stack, work if group.first else None, found),
            group=group,
            last=None if found is None else found.path,
            history=history,
        )
        # The first rank writes the next checkpoint only after all have read this one.
        group.meet()
        session = Session(
            source=source,
            output=output,
            config=config,
            place=place,
            manager=manager,
            team=team,
            teams=teams,
        )
        session.begin_from(found)
        # The session has its tensors, and lets them go.
        del found
        with _ending(manager):
            yield session
        if group.first:
            finish(work)


def _teams(group: Group, config: FitConfig) -> tuple[Group, Group]:
    """A team of this rank's, and its counterparts in all teams."""
    try:
        return group.split(config.inference.teams)
    except ValueError as error:
        raise InputError(
            f"inference.teams = {config.inference.teams}: {error}; start as many "
            "processes as that divides (torchrun --nproc-per-node)"
        ) from error


def _metrics(
    stack: ExitStack, work: Workspace | None, found: Checkpoint | None
) -> Metrics:
    """The iterations, with those before the checkpoint; in memory without a folder."""
    known = 0 if found is None else found.content["records"]
    metrics = Metrics(None if work is None else work.metrics, known)
    stack.callback(metrics.close)
    return metrics


@contextmanager
def _ending(manager: CheckpointManager) -> Iterator[None]:
    """Record how the fit ended; on failure, report the remaining checkpoint."""
    try:
        yield
    except Stopped as reason:
        manager.update_status(state="stopped", message=str(reason))
        raise
    except BaseException as error:
        manager.update_status(
            state="failed", message=f"{type(error).__name__}: {error}"
        )
        if manager.last is not None:
            say(
                f"the checkpoint {manager.last} stays: remove the cause, then continue "
                "with the same command and --resume"
            )
        raise


def _joined(output: Path) -> Workspace:
    """The workspace that the first rank has claimed."""
    work = unfinished(output)
    if work is None:
        raise InputError(
            f"{output}: this rank does not see what rank 0 has begun there: all ranks "
            "need one file system"
        )
    return work


def _found(
    work: Workspace, identity: Identity, *, anyway: bool
) -> tuple[Checkpoint | None, list[dict[str, Any]]]:
    """The checkpoint to resume, and when and from what this fit was resumed so far."""
    found, faults = newest_checkpoint(work.checkpoints)
    for fault in faults:
        say(f"warning: {fault}")
    if found is None:
        return None, []
    content = found.content
    differences = identity.differences(Identity(**content["identity"]))
    if differences and not anyway:
        raise InputError(
            f"{found.path} is of another fit:\n  "
            + "\n  ".join(differences)
            + "\nContinue with the original ones, start again with --overwrite, or "
            "continue all the same with --resume-anyway"
        )
    for line in differences:
        say(f"warning: resumed all the same, {line}")
    before, now = content["machine"], machine()
    if before != now:
        say(f"note: the last digits may differ: saved with {before}, now {now}")
    age = time.time() - found.written
    say(f"resumed from {found.path} ({content['stage']}, {age:.0f} s old)")
    once = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "checkpoint": found.path.name,
        "stage": content["stage"],
        "differences": differences,
    }
    return found, [*content["history"], once]
