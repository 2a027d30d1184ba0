"""Time: spent by stage, left until the end, and allowed for a part."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# The stage of a block of the posterior's samples: first and last number.
_BLOCK = re.compile(r"samples (\d+)-(\d+)")


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


class Allowance:
    """A limit in seconds that a step which would pass it is not begun under.

    Parameters
    ----------
    limit
        Seconds from now.
    clock
        Monotonic time [s].
    """

    def __init__(
        self, limit: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limit = limit
        self._clock = clock
        self._start = self._last = clock()
        self._longest = 0.0

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._start

    def lap(self) -> None:
        """A step ended."""
        now = self._clock()
        self._longest = max(self._longest, now - self._last)
        self._last = now

    def over(self) -> bool:
        """Whether one more step as long as the longest would end beyond the limit."""
        return self.spent + self._longest > self.limit


class TimeLeft:
    """How long inference still takes, in words, from the stage it is in.

    Before the posterior's last samples it is what the estimate leaves; how many steps
    go before these depends on the data, so that nothing is known once the estimate has
    passed. Their blocks take about as long as each other.

    Parameters
    ----------
    expected
        The estimate [s].
    samples
        How many samples there will be.
    clock
        Monotonic time [s].
    """

    def __init__(
        self,
        expected: float,
        samples: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.expected = expected
        self.samples = samples
        self._clock = clock
        self._start = clock()
        self._begun: dict[int, float] = {}

    def at(self, stage: str) -> str:
        """The time left, or why none can be told."""
        now = self._clock()
        passed = now - self._start
        block = _BLOCK.fullmatch(stage)
        if block is not None:
            done = int(block[1]) - 1
            begun = self._begun.setdefault(done, now)
            if done and 0 in self._begun:
                each = (begun - self._begun[0]) / done
                left = each * (self.samples - done) - (now - begun)
                return f"{max(left, 0.0):.0f} s"
        if passed <= self.expected:
            return f"{self.expected - passed:.0f} s"
        return f"unknown ({passed:.0f} s so far, {self.expected:.0f} s expected)"
