"""Whether what is left of an inference still ends in time."""

from __future__ import annotations

import math
from collections.abc import Callable

# The seconds left to an inference, the same on all ranks; infinite without a limit.
SecondsLeft = Callable[[], float]


def unlimited() -> float:
    """The time left where there is no limit."""
    return math.inf


class Pace:
    """The parts of a stage: each takes about as long as the one before it.

    Parameters
    ----------
    left
        The seconds left.
    reserve
        The fraction of the time now left that later stages need.
    """

    def __init__(self, left: SecondsLeft, *, reserve: float = 0.0) -> None:
        self._left = left
        self._last = left()
        self._reserve = 0.0 if math.isinf(self._last) else reserve * self._last

    def allows(self, parts: float = 1.0) -> bool:
        """Whether so many parts, as long as that since the last call, end in time."""
        now = self._left()
        if math.isinf(now):
            return True
        took, self._last = self._last - now, now
        return now - parts * took >= self._reserve
