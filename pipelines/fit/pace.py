"""The stages of a fit in words, and the time to its end by the pace so far."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from pipelines.base.progress import Progress, Ticker, bar, in_words, say
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
# Seconds of work for which the foreseen pace counts beside the measured one.
_TRUSTED = 5.0
# A stage that takes less than this part of what was foreseen was left out.
_SKIPPED = 0.05


class Pace(Progress):
    """A line at the start of every stage and every 30 s; on a terminal a bar.

    ``names`` are the stages' names, of `WORDS`, and ``taken`` the seconds of those that
    were finished before a stop. A signal is answered at once.
    """

    every = 30.0

    def __init__(
        self,
        names: Sequence[str],
        stop: StopFlag,
        stream: TextIO | None = None,
        *,
        taken: Sequence[float] = (),
    ) -> None:
        super().__init__(description="fit", stream=stream)
        self._names, self._number = names, len(taken)
        self._stop, self._answered = stop, False
        self._foreseen: Sequence[float] = ()
        self._taken = dict(enumerate(taken))
        self._first = self._began = time.monotonic()
        self._ends = math.inf
        # Kind and number of the samples under way, and when the first of them began.
        self._samples: tuple[str, int, float] | None = None
        self._of = 0

    def begin(
        self, number: int, foreseen: Mapping[str, float], *, samples: int, left: float
    ) -> None:
        """Report the start of a stage, before which ``number`` others are finished.

        ``foreseen`` are the seconds of stages by their names, if known, ``samples``
        those of the last map, ``left`` the seconds left of the budget.
        """
        now = time.monotonic()
        if number > self._number:
            self._taken[self._number] = now - self._began
        self._number, self._began, self._samples = number, now, None
        self._of, self._ends = samples, now + left
        self._foreseen = [foreseen.get(name, 0.0) for name in self._names if foreseen]
        self._report()

    def show(self, **postfix: object) -> None:
        """Take note of a solver's ``stage``, such as ``samples 9-16``."""
        if found := re.match(r"(|refined )samples (\d+)-", str(postfix["stage"])):
            kind, number = found[1], int(found[2])
            same = self._samples is not None and self._samples[0] == kind
            since = self._samples[2] if same and self._samples else time.monotonic()
            self._samples = kind, number, since

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

    def left(self) -> float:
        """Return the seconds to the end; NaN before the first plan."""
        if not self._foreseen:
            return math.nan
        now, own = time.monotonic(), self._foreseen[self._number]
        pairs = [(s, self._foreseen[n]) for n, s in self._taken.items()]
        pairs = [(taken, usual) for taken, usual in pairs if taken > _SKIPPED * usual]
        passed = now - self._began
        if passed > own:
            pairs.append((passed, own))
        taken, usual = (sum(part) + _TRUSTED for part in zip((0.0, 0.0), *pairs))
        rate = taken / usual
        here = max(rate * own - passed, 0.0)
        if self._samples is not None and (done := self._samples[1] - 1):
            here = (now - self._samples[2]) * max(self._of - done, 0) / done
        rest = rate * sum(self._foreseen[self._number + 1 :])
        return min(here + rest, max(self._ends - now, 0.0))

    def _line(self) -> str:
        name, left = self._names[self._number], self.left()
        line = f"stage {self._number + 1} of {len(self._names)}: {WORDS[name]}"
        if math.isnan(left):
            return line
        passed = time.monotonic() - self._first
        drawn = f"{bar(passed / (passed + left))} " if self._is_live else ""
        return f"{drawn}{line}, about {in_words(left)} left"
