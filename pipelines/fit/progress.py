"""The stages of a fit in words, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from dustmap.inference.full_batch.gauss_newton import Task
from pipelines.base.progress import Progress, Ticker, bar, say
from pipelines.saving.stopping import StopFlag

WORDS = {
    "plan": "choosing the volume, the grid and a first guess of the clouds",
    "learn_prior": "learning the size and contrast of clouds from the stars",
    "first_map": "a first map, in which every star counts by itself",
    "learn_residual": "learning the dust finer than the grid that neighbours share",
    "second_map": "a second map, with that shared dust",
    "map_and_samples": "the map and its samples",
    "judge": "predicting the held-out stars",
    "write": "writing the run",
}


class FitProgress(Progress):
    """A line at the start of every stage and every 30 s; on a terminal a bar.

    ``names`` are the stages' names, of `WORDS`. `update` takes the ``task`` and the
    ``iteration`` of a solver. A signal is answered at once.
    """

    every = 30.0

    def __init__(
        self, names: Sequence[str], stop: StopFlag, stream: TextIO | None = None
    ) -> None:
        super().__init__(description="fit", stream=stream)
        self._names, self._number = names, 0
        self._stop, self._answered = stop, False

    def begin(self, number: int) -> None:
        """Report the start of a stage, before which ``number`` others are finished."""
        self._number, self._postfix = number, {}
        self._report()

    def tick(self) -> None:
        if self._stop.name is not None and not self._answered:
            self._answered = True
            say(
                f"{self._stop.name}: the fit ends at its next step and saves it; the "
                "same command with --resume continues. A second Ctrl-C ends it at once",
                stream=self._stream,
            )
        super().tick()

    def __exit__(self, *_: object) -> None:
        # The report of the fit follows.
        Ticker.__exit__(self)
        if self._is_live:
            print(file=self._stream, flush=True)

    def _report(self) -> None:
        self._reported = self._count
        self._write(self._line())

    def _line(self) -> str:
        name, count, within = self._names[self._number], len(self._names), 0.0
        parts = [f"stage {self._number + 1} of {count}: {WORDS[name]}"]
        task = self._postfix.get("task")
        if isinstance(task, Task) and task.total:
            parts.append(f"{task} of {task.total}")
            within = (task.first - 1) / task.total
        elif task is not None:
            parts.append(f"iteration {self._postfix['iteration']}")
        parts.append(f"{time.monotonic() - self._start:.0f} s so far")
        drawn = f"{bar((self._number + within) / count)} " if self._is_live else ""
        return drawn + ", ".join(parts)
