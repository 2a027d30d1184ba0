"""Progress (a changing line on a terminal, or a log), and time by stage."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import ClassVar, Self, TextIO

# Shortest time between two reports on a terminal [s].
_LIVE = 0.1
# Time between ticks [s].
_TICK = 1.0
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


class Ticker:
    """A context that calls its `tick` every second, on a thread of its own.

    Of contexts inside each other only the innermost one ticks.
    """

    _open: ClassVar[list[Ticker]] = []
    # Shortest time between two lines of a log [s].
    every = 10.0

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty()
        self._start = self._spoken = time.monotonic()
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._start = self._spoken = time.monotonic()
        self._open.append(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._open.remove(self)

    def _run(self) -> None:
        while not self._ended.wait(_TICK):
            if self._open[-1] is self:
                self.tick()

    def tick(self) -> None:
        """Report if it is time to."""

    def _silent(self) -> float:
        """Return the seconds since the last line."""
        return time.monotonic() - self._spoken

    def _write(self, line: str) -> None:
        """Change the line of a terminal, or write one to a log, on rank 0."""
        self._spoken = time.monotonic()
        if rank()[0] == 0:
            start, end = (_CLEAR, "") if self._is_live else ("", "\n")
            print(start + rank_mark() + line, end=end, file=self._stream, flush=True)


class Pulse(Ticker):
    """The time of a command, once it has taken five seconds.

    `doing` names the part under way.
    """

    def __init__(self, command: str, *, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._command, self.part = command, ""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._is_live and self._spoken > self._start:
            print(_CLEAR, end="", file=self._stream, flush=True)

    def tick(self) -> None:
        first = self._spoken == self._start
        interval = _LIVE if self._is_live else self.every
        if self._silent() >= (5.0 if first else interval):
            part = f"{self.part}, " if self.part else ""
            passed = time.monotonic() - self._start
            self._write(f"{self._command}: {part}{passed:.0f} s so far")


def doing(part: str) -> None:
    """Name the part of the running command, for its `Pulse`."""
    for ticker in Ticker._open:
        if isinstance(ticker, Pulse):
            ticker.part = part


class Progress(Ticker):
    """The progress of one stage, as a context; only rank 0 shows it.

    A terminal shows a bar, a log one line for the first step, the last one, and every
    ten seconds. ``total`` is the number of steps, ``None`` if unknown, and ``unit``
    their name; ``stream`` is standard error by default.

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
        super().__init__(stream)
        self._description, self._total, self._unit = description, total, unit
        self._postfix: dict[str, object] = {}
        self._count = 0
        self._reported: int | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__()
        if self._reported != self._count and (self._count or kind is None):
            self._report()
        if self._is_live and rank()[0] == 0:
            print(file=self._stream, flush=True)

    def update(self, steps: int = 1, **postfix: object) -> None:
        """Count ``steps`` more, and show ``postfix`` (values by name)."""
        self._count += steps
        self.show(**postfix)
        is_due = self._silent() >= (_LIVE if self._is_live else self.every)
        if self._reported is None or self._count == self._total or is_due:
            self._report()

    def show(self, **postfix: object) -> None:
        """Change the notes of the next report; NaN keeps the last number."""
        known = {name: value for name, value in postfix.items() if value == value}
        self._postfix.update(known)

    def tick(self) -> None:
        if self._silent() >= (_TICK if self._is_live else self.every):
            self._report()

    def _report(self) -> None:
        self._reported = self._count
        done, share, drawn = str(self._count), "", ""
        if self._total:
            part = self._count / self._total
            done, share = f"{done}/{self._total}", f" ({part:.0%})"
            drawn = f"{bar(part)} " if self._is_live else ""
        head = f"{drawn}{self._description}: {done} {self._unit}{share}"
        parts = [head, f"{time.monotonic() - self._start:.1f} s"]
        for name, value in list(self._postfix.items()):
            shown = f"{value:.3g}" if isinstance(value, float) else value
            parts.append(f"{name}={shown}")
        self._write(", ".join(parts))


def bar(share: float) -> str:
    """Return a bar of 20 characters for a share of the work."""
    return ("#" * round(20 * min(share, 1.0))).ljust(20, "-")


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
