"""Time: spent by stage, and left until the end."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Stages of the posterior's samples in blocks, refined after all are fitted.
_SAMPLES = re.compile(r"((?:first |refined )?samples) (\d+)-\d+")
# As long [s] as the estimates themselves are believed; of what has passed, the least
# that an overdue part may still take; a third of a part tells what the whole takes.
_TRUSTED, _OVERDUE, _TOLD = 10.0, 0.1, 3.0


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


class Countdown:
    """How long a fit still takes, from what each of its parts is expected to take.

    Parts that have ended tell how much slower the machine is than expected, and those
    left take as much longer; what of the present part is done tells its own time.

    Parameters
    ----------
    parts
        Expected seconds by part, in their order.
    clock
        Monotonic time [s].
    ceiling
        The most that is left [s], while it is positive.
    """

    def __init__(
        self,
        parts: Mapping[str, float],
        clock: Callable[[], float] = time.perf_counter,
        ceiling: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.parts, self._clock, self._ceiling = dict(parts), clock, ceiling
        self._part, self._begun = "", clock()
        # Of parts that have ended: what they took, and what was expected.
        self._taken = self._expected = _TRUSTED

    def enter(self, part: str) -> None:
        """This part begins; what was before it has ended, or is not made."""
        if part == self._part or part not in self.parts:
            return
        now = self._clock()
        if self._part in self.parts:
            self._taken += now - self._begun
            self._expected += self.parts[self._part]
        self._part, self._begun = part, now
        before = itertools.takewhile(lambda name: name != part, list(self.parts))
        for name in list(before):
            del self.parts[name]

    def expect(self, parts: Mapping[str, float]) -> None:
        """Revise what parts that are still to come, or under way, take [s]."""
        self.parts = {n: parts.get(n, e) for n, e in self.parts.items()}

    def left(self, done: float = 0.0) -> float:
        """Seconds until the end, with this share of the present part done."""
        passed = self._clock() - self._begun
        present = self.present
        if done > 0:
            weight = min(_TOLD * done, 1.0)
            present = (1 - weight) * present + weight * passed / done
        left = self.after(self._part) + max(present - passed, _OVERDUE * passed)
        most = self._ceiling()
        return min(left, most) if most > 0 else left

    def after(self, part: str) -> float:
        """Seconds that what follows a part will take."""
        names = list(self.parts)
        first = names.index(part) + 1 if part in names else 0
        return self._pace * sum(self.parts[name] for name in names[first:])

    @property
    def present(self) -> float:
        """Seconds that the present part is expected to take."""
        return self._pace * self.parts.get(self._part, 0.0)

    @property
    def _pace(self) -> float:
        """How much longer parts take than expected."""
        return self._taken / self._expected

    def at(self, stage: str, samples: int = 0) -> float:
        """Seconds until the end from a stage, such as ``samples 17-32`` of 48."""
        found = _SAMPLES.fullmatch(stage)
        if found is None or not samples or found[1] not in self.parts:
            return self.left()
        self.enter(found[1])
        return self.left((int(found[2]) - 1) / samples)


def in_words(seconds: float) -> str:
    """A time that is roughly known: ``40 s``, ``3 min``, ``1.5 h``."""
    if seconds < 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
