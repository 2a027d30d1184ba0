"""Time that was spent, by stage."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class StageClock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to this stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def aside(self, part: str, seconds: float) -> None:
        """Count seconds that just passed to this part, not to the stage at hand."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        self._last += seconds

    @property
    def total(self) -> float:
        """Seconds until now, of all stages."""
        return sum(self.seconds.values()) + time.perf_counter() - self._last

    def so_far(self, stage: str) -> dict[str, float]:
        """Return seconds by stage as if ``stage``, the one at hand, ended now.

        An empty ``stage`` leaves it out.
        """
        if not stage:
            return dict(self.seconds)
        passed = time.perf_counter() - self._last
        return {**self.seconds, stage: self.seconds.get(stage, 0.0) + passed}


def in_words(seconds: float) -> str:
    """Round a time as roughly as it is known: ``40 s``, ``3 min``, ``1.5 h``."""
    if seconds < 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
