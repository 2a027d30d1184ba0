"""Signals that end a long run at its next safe point."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self


class StopFlag:
    """A context that records the first signal; a second one interrupts at once.

    It handles SIGTERM, SIGUSR1 and SIGINT, in the main thread only; ``name`` is the
    received signal, or ``None``.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for asking in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._before[asking] = signal.signal(asking, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for asking, handler in self._before.items():
            signal.signal(asking, handler)

    def _note(self, number: int, _: object) -> None:
        if self.name is not None:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
