"""When a fit saves where it stands, and ends because it was asked to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import Stopped
from pipelines.base.progress import say
from pipelines.base.timing import StageClock
from pipelines.config.fitting import CheckpointConfig
from pipelines.saving.checkpoint import write_checkpoint
from pipelines.saving.fit_state import FitState
from pipelines.saving.heartbeat import Heartbeat
from pipelines.saving.identity import Identity
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import Workspace
from pipelines.storage.metrics import Metrics

_PART = "checkpoints"


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Saves a fit's states and raises `Stopped` at the first after a signal.

    Parameters
    ----------
    work
        Where checkpoints go.
    last
        The newest checkpoint that is known to be whole.
    history
        When and from what the fit was taken up again.
    group
        Its ranks agree on what is due; the first one writes.
    """

    work: Workspace
    identity: Identity
    settings: CheckpointConfig
    stop: StopFlag
    clock: StageClock
    metrics: Metrics
    heart: Heartbeat
    group: Group
    last: Path | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    now: Callable[[], float] = time.monotonic
    _since: float = field(default=0.0, init=False)
    _points: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._since = self.now()

    def due(self) -> bool:
        """Whether to save now; called at every safe point of an inference."""
        self._points += 1
        often = self.settings.iterations
        passed = self.now() - self._since >= 60 * self.settings.minutes
        counted = often is not None and self._points >= often
        return self.group.agree(passed or counted or self.stop.name is not None)

    def save(self, state: FitState, stage: str) -> None:
        """Write a checkpoint of the fit, whose clock is in ``stage``.

        One that cannot be written is said, and those before it stay.

        Raises
        ------
        Stopped
            If a signal came on any rank.
        """
        if self.group.first:
            self._write(state, stage)
        self.group.meet()
        self._since, self._points = self.now(), 0
        self.end_if_asked()

    def end_if_asked(self, *, alone: bool = False) -> None:
        """Where there is nothing to save that is not saved.

        Raises
        ------
        Stopped
            If a signal came on any rank.
        """
        asked = self.stop.name is not None
        if asked if alone else self.group.agree(asked):
            raise self._stopped()

    def _write(self, state: FitState, stage: str) -> None:
        start = time.perf_counter()
        content = {
            **state.content(),
            "identity": self.identity.as_dict(),
            "seconds": self.clock.so_far(stage),
            "records": len(self.metrics),
            "history": self.history,
            "machine": machine(),
        }
        try:
            self.metrics.sync()
            self.last = write_checkpoint(
                self.work.checkpoints, state.tensors(), content, before=self.last
            )
        except OSError as error:
            kept = f"{self.last.name} stays" if self.last else "there is none before it"
            say(f"a checkpoint could not be written, {kept}; the fit goes on: {error}")
            return
        finally:
            self.clock.aside(_PART, time.perf_counter() - start)
        self.heart.tell(
            checkpoint={
                "name": self.last.name,
                "stage": state.stage,
                "written": time.time(),
                "seconds": round(time.perf_counter() - start, 3),
                "bytes": sum(item.stat().st_size for item in self.last.iterdir()),
            }
        )

    def _stopped(self) -> Stopped:
        by = self.stop.name or "a signal to another rank"
        kept = "nothing was saved yet"
        if self.last is not None:
            kept = f"saved in {self.last}"
        return Stopped(
            f"stopped by {by}, {kept}: go on with the same command and --resume"
        )


def machine() -> dict[str, Any]:
    """On what the last digits of a result depend beside the code."""
    return {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
