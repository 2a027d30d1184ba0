"""Progress (a bar on a terminal, lines in a log), and time spent by stage."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Self, TextIO

from tqdm import tqdm

# Least time between two lines of a log [s].
_INTERVAL = 10.0


def rank() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as torchrun sets them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_mark() -> str:
    """Return the mark of this process on its lines; empty where it is alone."""
    own, size = rank()
    return f"[rank {own}/{size}] " if size > 1 else ""


def say(message: str, *, stream: TextIO | None = None) -> None:
    """Write a line to ``stream`` (standard error) without breaking a bar there.

    Of several processes only the first one talks.
    """
    if rank()[0] == 0:
        tqdm.write(rank_mark() + message, file=stream or sys.stderr)


class Progress:
    """The progress of one stage, as a context; only the first process shows it.

    On a terminal it is a bar, elsewhere lines: the first step, the last one, and one
    every ten seconds.

    Parameters
    ----------
    description, total, unit
        The work, its number of steps (``None`` if unknown), and their name.
    stream
        Where to write; standard error unless given.

    Examples
    --------
    >>> with Progress(description="solve", total=500) as progress:  # doctest: +SKIP
    ...     progress.update(residual=0.01)
    """

    def __init__(
        self,
        *,
        description: str,
        total: int | None = None,
        unit: str = "it",
        stream: TextIO | None = None,
    ) -> None:
        self._description = description
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._silent = rank()[0] > 0
        self._bar: tqdm | None = None
        self._postfix: dict[str, object] = {}
        self._start = self._spoken = time.monotonic()
        self._count = 0
        self._reported: int | None = None

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._stream.isatty() and not self._silent:
            self._bar = tqdm(
                total=self._total,
                desc=self._description,
                unit=self._unit,
                file=self._stream,
                dynamic_ncols=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._reported != self._count and (self._count or kind is None):
            self._report()

    def update(self, steps: int = 1, **postfix: object) -> None:
        """Count ``steps`` more, and show ``postfix`` (name to value) beside them."""
        self._count += steps
        self.show(**postfix)
        if self._bar is not None:
            self._bar.update(steps)
        elif (
            self._reported is None
            or self._count == self._total
            or time.monotonic() - self._spoken >= _INTERVAL
        ):
            self._report()

    def show(self, **postfix: object) -> None:
        """Change the notes beside the count; they appear with the next report.

        A number that is not known, NaN, leaves the last one.
        """
        known = {name: value for name, value in postfix.items() if value == value}
        self._postfix.update(known)
        if self._bar is not None and postfix:
            self._bar.set_postfix_str(self._beside(), refresh=False)

    def _beside(self) -> str:
        return ", ".join(
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self._postfix.items()
        )

    def _report(self) -> None:
        self._spoken, self._reported = time.monotonic(), self._count
        if self._silent:
            return
        done, share = str(self._count), ""
        if self._total:
            done, share = f"{done}/{self._total}", f" ({self._count / self._total:.0%})"
        parts = [
            f"{self._description}: {done} {self._unit}{share}",
            f"{self._spoken - self._start:.1f} s",
            self._beside(),
        ]
        line = ", ".join(part for part in parts if part)
        print(rank_mark() + line, file=self._stream, flush=True)


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
