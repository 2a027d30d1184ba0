"""Signals that ask a long run to end at its next safe point."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """While it is entered, the first signal is noted and a second one ends at once.

    Noted are SIGTERM, SIGUSR1 and SIGINT; ``name`` is that which came, or ``None``. In
    a thread other than the first nothing can be noted.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for asking in _ASKING:
                self._before[asking] = signal.signal(asking, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for asking, handler in self._before.items():
            signal.signal(asking, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
