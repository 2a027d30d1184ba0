"""A fit that keeps itself: where it works, what it has saved, how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dustmap.distributed.group import Group
from dustmap.inference.journal import State as JournalState
from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import say
from pipelines.base.timing import StageClock
from pipelines.config import FitConfig
from pipelines.saving.checkpoint import Checkpoint, newest_checkpoint
from pipelines.saving.command import command_of
from pipelines.saving.fit_state import FitState, Stage, restored
from pipelines.saving.heartbeat import Heartbeat
from pipelines.saving.identity import Identity
from pipelines.saving.keeper import Keeper, machine
from pipelines.saving.place import Place, place_of
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace, claimed, finish, unfinished
from pipelines.storage.metrics import Metrics

# What status calls the work that follows a stage.
_NEXT = {
    None: "planning",
    "planned": "learning",
    "learnt": "running",
    "inferring": "running",
    "inferred": "writing",
}


@dataclass(slots=True, kw_only=True)
class Session:
    """What the stages of one fit share.

    ``state`` is where an earlier process left it, without the ``journal`` of an
    inference on its way; ``None`` at its beginning.
    """

    source: Path
    output: Path
    config: FitConfig
    place: Place
    work: Workspace
    keeper: Keeper
    state: FitState | None
    journal: JournalState | None

    @property
    def clock(self) -> StageClock:
        """Seconds by stage, those of earlier processes included."""
        return self.keeper.clock

    @property
    def metrics(self) -> Metrics:
        """Iterations, those of earlier processes included."""
        return self.keeper.metrics

    @property
    def group(self) -> Group:
        """The ranks that make this fit together."""
        return self.keeper.group

    def reached(self, state: FitState) -> None:
        """A stage is done: say so and save it.

        Raises
        ------
        Stopped
            If a signal asked for it.
        """
        self.keeper.heart.tell(state=_NEXT[state.stage])
        self.keeper.save(state, "")

    def take_journal(self) -> JournalState | None:
        """The inference on its way, once: whoever goes on lets its tensors go."""
        journal, self.journal = self.journal, None
        return journal

    def splitter(self) -> torch.Generator:
        """For keeping stars back: the same draws as at the beginning."""
        if self.state is None:
            return self.place["generator"]
        return torch.Generator().manual_seed(self.config.inference.seed)

    def generator_state(self) -> torch.Tensor:
        """To be kept with a stage that is done."""
        return self.place["generator"].get_state()


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
    """The session of a fit, begun or taken up again.

    Once the block is through, nothing but the run itself is left.

    Raises
    ------
    InputError
        If a fit was begun there and ``resume`` is false, is being made by another
        process, has no whole checkpoint, or (unless ``anyway``) was one of another
        configuration, catalogue or code.
    """
    generator = torch.Generator().manual_seed(config.inference.seed)
    place = place_of(config, generator)
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        if group.first:
            work = stack.enter_context(
                claimed(output, overwrite=overwrite, resume=resume)
            )
        group.meet()
        if not group.first:
            work = _joined(output)
        # The first rank alone reads the whole catalogue for its hash.
        told = group.from_first(
            lambda: json.dumps(Identity.of(source, config).as_dict())
        )
        identity = Identity.from_dict(json.loads(told))
        found = _found(work, identity, anyway=anyway)
        keeper = _keeper(stack, work, identity, found, config, stop, group)
        state = None if found is None else restored(found, place["device"])
        # Its tensors are those of the journal, which are to be let go there.
        del found
        if state is not None:
            generator.set_state(state.generator)
        journal = None if state is None else state.journal
        state = None if state is None else replace(state, journal=None)
        keeper.heart.tell(state=_NEXT[_stage_of(state)])
        if group.size == 1:
            keeper.heart.tell(command=command_of(source, output, config))
        session = Session(
            source=source,
            output=output,
            config=config,
            place=place,
            work=work,
            keeper=keeper,
            state=state,
            journal=journal,
        )
        # The session has it now.
        del journal
        with _ending(keeper):
            yield session
        if group.first:
            finish(work)


def _keeper(
    stack: ExitStack,
    work: Workspace,
    identity: Identity,
    found: Checkpoint | None,
    config: FitConfig,
    stop: StopFlag,
    group: Group,
) -> Keeper:
    """What keeps the fit from here on, with the time and the history it has had."""
    heart = stack.enter_context(Heartbeat(work.status if group.first else None))
    clock = StageClock(dict(found.content["seconds"]) if found else {})
    metrics = Metrics(
        work.metrics if group.first else None, found.content["records"] if found else 0
    )
    stack.callback(metrics.close)
    # The first rank writes the next only after all have read this one.
    group.meet()
    return Keeper(
        work=work,
        identity=identity,
        settings=config.checkpoint,
        stop=stop,
        clock=clock,
        metrics=metrics,
        heart=heart,
        group=group,
        last=None if found is None else found.path,
        history=[] if found is None else _history(found, identity),
    )


@contextmanager
def _ending(keeper: Keeper) -> Iterator[None]:
    """The last word of a fit, and what remains when it was none of success."""
    heart = keeper.heart
    try:
        yield
    except Stopped as reason:
        heart.end("stopped", message=str(reason))
        raise
    except BaseException as error:
        heart.end("failed", message=f"{type(error).__name__}: {error}")
        if keeper.last is not None:
            say(
                f"the checkpoint {keeper.last} stays: when the reason is gone, go on "
                "with the same command and --resume"
            )
        raise
    heart.end("finished")


def _joined(output: Path) -> Workspace:
    """The workspace that the first rank has claimed."""
    work = unfinished(output)
    if work is None:
        raise InputError(
            f"{output}: this rank does not see what rank 0 has begun there: all ranks "
            "need one file system"
        )
    return work


def _found(work: Workspace, identity: Identity, *, anyway: bool) -> Checkpoint | None:
    """The checkpoint to go on from, of the same fit; what is not as it was is said."""
    found, faults = newest_checkpoint(work.checkpoints)
    for fault in faults:
        say(f"warning: {fault}")
    if found is None:
        return None
    differences = identity.differences(Identity.from_dict(found.content["identity"]))
    if differences and not anyway:
        raise InputError(
            f"{found.path} is of another fit:\n  "
            + "\n  ".join(differences)
            + "\nGo on with what it was begun with, begin anew with --overwrite, or "
            "go on all the same with --resume-anyway"
        )
    for line in differences:
        say(f"warning: taken up all the same, {line}")
    before, now = found.content["machine"], machine()
    if before != now:
        say(f"note: the last digits may differ: saved with {before}, now {now}")
    age = time.time() - found.written
    say(f"taken up from {found.path} ({found.content['stage']}, {age:.0f} s old)")
    return found


def _history(found: Checkpoint, identity: Identity) -> list[dict[str, object]]:
    """When this fit was taken up, from what, and what had become another."""
    earlier = Identity.from_dict(found.content["identity"])
    once = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "checkpoint": found.path.name,
        "stage": found.content["stage"],
        "differences": identity.differences(earlier),
    }
    return [*found.content["history"], once]


def _stage_of(state: FitState | None) -> Stage | None:
    return None if state is None else state.stage
