"""Time: spent by stage, and left until the end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Stages of the posterior's samples in blocks, refined after all are fitted.
_SAMPLES = re.compile(r"(refined )?samples (\d+)-\d+")


@dataclass(slots=True)
class StageClock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        """What passed since the last lap belongs to this stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def aside(self, part: str, seconds: float) -> None:
        """Seconds that just passed belong to this part, not to the stage at hand."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        self._last += seconds

    @property
    def total(self) -> float:
        """Seconds until now, of all stages."""
        return sum(self.seconds.values()) + time.perf_counter() - self._last

    def so_far(self, stage: str) -> dict[str, float]:
        """Seconds by stage as if the one at hand, ``stage``, ended now.

        An empty ``stage`` stands for none at hand.
        """
        if not stage:
            return dict(self.seconds)
        passed = time.perf_counter() - self._last
        return {**self.seconds, stage: self.seconds.get(stage, 0.0) + passed}


class TimeLeft:
    """How long inference still takes, in words, from the stage it is in.

    Before the posterior's ``samples`` it is what the estimate, ``expected`` [s],
    leaves; once that has passed nothing is known. Samples take about as long as those
    before them, and so do ``refined`` ones. ``clock`` is monotonic time [s].
    """

    def __init__(
        self,
        expected: float,
        samples: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        refined: bool = False,
    ) -> None:
        self.expected = expected
        self.samples = samples
        self._fits = samples * (1 + refined)
        self._clock = clock
        self._start = clock()
        # When each sample began, by the number of those before it.
        self._begun: dict[int, float] = {}

    def at(self, stage: str) -> str:
        """The time left, or why it is unknown."""
        now = self._clock()
        passed = now - self._start
        left = self.expected - passed
        found = _SAMPLES.fullmatch(stage)
        by_samples = None
        if found:
            done = int(found[2]) - 1 + (self.samples if found[1] else 0)
            by_samples = self._of_samples(now, done)
        if by_samples is not None:
            left = max(by_samples, 0.0)
        if left >= 0:
            return f"{left:.0f} s"
        return f"unknown ({passed:.0f} s so far, {self.expected:.0f} s expected)"

    def _of_samples(self, now: float, done: int) -> float | None:
        """Seconds left by those that earlier samples took; ``None`` at the first."""
        begun = self._begun.setdefault(done, now)
        first = min(self._begun)
        if done == first:
            return None
        each = (begun - self._begun[first]) / (done - first)
        return each * (self._fits - done) - (now - begun)
