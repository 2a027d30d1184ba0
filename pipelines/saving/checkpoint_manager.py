"""When a fit saves where it stands, and ends because it was asked to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dustmap.checkpoint import State, require_finite
from dustmap.distributed.group import Group
from pipelines.base.errors import Stopped
from pipelines.base.progress import say
from pipelines.base.timing import StageClock
from pipelines.config.fitting import CheckpointConfig
from pipelines.saving.checkpoint import write_checkpoint
from pipelines.saving.fit_state import FitState
from pipelines.saving.identity import Identity
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace
from pipelines.storage.atomic import replace_text
from pipelines.storage.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class CheckpointManager:
    """Writes a fit's states, and raises `Stopped` after a signal.

    ``last`` is the newest checkpoint that is known to be whole, ``history`` when and
    from what the fit was resumed. ``facts`` are written to ``status.json`` with every
    checkpoint. The ranks of ``group`` agree on what is due; the first one writes.
    """

    work: Workspace
    identity: Identity
    settings: CheckpointConfig
    stop: StopFlag
    clock: StageClock
    metrics: Metrics
    group: Group
    last: Path | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    _since: float = field(default=0.0, init=False)
    _steps: int = field(default=0, init=False)
    # The state after the last step, if it was not written, and how many records it has.
    _latest: tuple[FitState, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._since = self.now()

    def update_status(self, **facts: object) -> None:
        """Write the facts for `dustmap status`, and with them these."""
        self.facts |= facts
        if not self.group.first:
            return
        text = json.dumps(self.facts, indent=1) + "\n"
        try:
            replace_text(self.work.status, text, durable=False)
        except OSError as error:
            say(f"status.json is not written: {error}")

    def save(self, state: FitState) -> None:
        """Write the state after a stage of the fit, and end after a signal.

        A checkpoint that cannot be written is reported, and those before it stay.
        """
        self._latest = None
        self._write(state, len(self.metrics), "")
        self.stop_if_asked()

    def offer(self, state: FitState) -> None:
        """Write the state after a step of the inference if that is due.

        Otherwise the last one offered is written when a signal comes, which ends it.
        """
        self._latest = state, len(self.metrics)
        self._steps += 1
        often = self.settings.iterations
        passed = self.now() - self._since >= 60 * self.settings.minutes
        if self.group.agree(passed or (often is not None and self._steps >= often)):
            self._write_latest()
        self.stop_if_asked()

    def stop_if_asked(self, *, alone: bool = False) -> None:
        """End after a signal; ``alone`` if the other ranks are not asked.

        Raises
        ------
        Stopped
            If a signal came; a step under way is dropped, those before it are saved.
        """
        asked = self.stop.name is not None
        if not (asked if alone else self.group.agree(asked)):
            return
        if self._latest is not None:
            self._write_latest()
        by = self.stop.name or "a signal to another rank"
        kept = "nothing was saved yet" if self.last is None else f"saved in {self.last}"
        raise Stopped(
            f"stopped by {by}, {kept}: continue with the same command and --resume"
        )

    def _write_latest(self) -> None:
        assert self._latest is not None
        (state, records), self._latest = self._latest, None
        self._write(state, records, "inference")

    def _write(self, state: FitState, records: int, stage: str) -> None:
        """Write a checkpoint of the fit, whose clock is in ``stage``."""
        if self.group.first:
            start = time.perf_counter()
            self._write_here(state, records, stage)
            self.clock.aside("checkpoints", time.perf_counter() - start)
        self.group.meet()
        self._since, self._steps = self.now(), 0

    def _write_here(self, state: FitState, records: int, stage: str) -> None:
        self.update_status()
        entries = state.entries()
        tensors = {n: v for n, v in entries.items() if torch.is_tensor(v)}
        require_finite(f"the state of a fit, {state.stage}", **tensors)
        content = {
            **entries,
            "identity": asdict(self.identity),
            "seconds": self.clock.so_far(stage),
            "records": records,
            "history": self.history,
            "machine": machine(),
        }
        try:
            self.metrics.sync()
            self.last = write_checkpoint(
                self.work.checkpoints, content, before=self.last
            )
        except OSError as error:
            kept = f"{self.last.name} stays" if self.last else "there is none before it"
            say(
                f"a checkpoint could not be written, {kept}; the fit continues: {error}"
            )


@dataclass(slots=True, kw_only=True)
class InferenceCheckpointer:
    """The `dustmap.checkpoint.Checkpointer` of the inference of a fit.

    ``state`` is the fit before its inference, ``inference`` what this resumes.
    """

    manager: CheckpointManager
    state: FitState
    inference: State | None

    def save(self, state: State) -> None:
        """Offer it to the manager."""
        self.manager.offer(replace(self.state, stage="inferring", inference=state))

    def restore(self) -> State | None:
        """What the fit had saved, once."""
        found, self.inference = self.inference, None
        return found


def machine() -> dict[str, Any]:
    """On what the last digits of a result depend beside the code."""
    return {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
