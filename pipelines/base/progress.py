"""Progress (a changing line on a terminal, or a log), and time by stage."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Self, TextIO

# Shortest time between two reports in a log and on a terminal [s].
_IN_LOG, _LIVE = 10.0, 0.1
# Escape sequence that erases a line of a terminal.
_CLEAR = "\r\033[K"


def rank() -> tuple[int, int]:
    """Return this process's rank and the number of processes, as torchrun sets them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_mark() -> str:
    """Return the mark of this process on its lines; empty for a single process."""
    own, size = rank()
    return f"[rank {own}/{size}] " if size > 1 else ""


def say(message: str, *, stream: TextIO | None = None) -> None:
    """Write a line to ``stream`` (standard error) on rank 0, above any progress."""
    if rank()[0] == 0:
        out = stream or sys.stderr
        clear = _CLEAR if out.isatty() else ""
        print(clear + rank_mark() + message, file=out, flush=True)


class Progress:
    """The progress of one stage, as a context; only rank 0 shows it.

    A terminal shows a changing line, a log one line for the first step, the last one,
    and every ten seconds.

    Parameters
    ----------
    description, total, unit
        The work, its number of steps (``None`` if unknown), and their name.
    stream
        Output stream, by default standard error.

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
        self._description, self._total, self._unit = description, total, unit
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty()
        self._postfix: dict[str, object] = {}
        self._start = self._spoken = time.monotonic()
        self._count = 0
        self._reported: int | None = None

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._reported != self._count and (self._count or kind is None):
            self._report()
        if self._is_live and rank()[0] == 0:
            print(file=self._stream, flush=True)

    def update(self, steps: int = 1, **postfix: object) -> None:
        """Count ``steps`` more, and show ``postfix`` (values by name)."""
        self._count += steps
        self.show(**postfix)
        interval = _LIVE if self._is_live else _IN_LOG
        is_due = time.monotonic() - self._spoken >= interval
        if self._reported is None or self._count == self._total or is_due:
            self._report()

    def show(self, **postfix: object) -> None:
        """Change the notes of the next report; NaN keeps the last number."""
        known = {name: value for name, value in postfix.items() if value == value}
        self._postfix.update(known)

    def _report(self) -> None:
        self._spoken, self._reported = time.monotonic(), self._count
        if rank()[0] > 0:
            return
        done, share = str(self._count), ""
        if self._total:
            done, share = f"{done}/{self._total}", f" ({self._count / self._total:.0%})"
        parts = [
            f"{self._description}: {done} {self._unit}{share}",
            f"{self._spoken - self._start:.1f} s",
        ]
        for name, value in self._postfix.items():
            shown = f"{value:.3g}" if isinstance(value, float) else value
            parts.append(f"{name}={shown}")
        line = rank_mark() + ", ".join(parts)
        start, end = (_CLEAR, "") if self._is_live else ("", "\n")
        print(start + line, end=end, file=self._stream, flush=True)


@dataclass(slots=True)
class StageClock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to this stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Return the seconds of all stages until now."""
        return sum(self.seconds.values()) + time.perf_counter() - self._last


def in_words(seconds: float) -> str:
    """Format a rough time: ``40 s``, ``3 min``, ``1.5 h``."""
    if seconds < 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
