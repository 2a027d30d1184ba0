"""What a run is doing, in a file that is renewed every few seconds."""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from pipelines.base.progress import say
from pipelines.storage.atomic import replace_text

_INTERVAL = 2.0


class Heartbeat:
    """While it is entered, a thread writes what it was told last, and when.

    Parameters
    ----------
    path
        The file; ``None`` writes nothing.
    interval
        Seconds between two beats.
    """

    def __init__(self, path: Path | None, *, interval: float = _INTERVAL) -> None:
        self._path = path
        self._interval = interval
        self._facts: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
        }
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False

    def __enter__(self) -> Heartbeat:
        if self._path is not None:
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def tell(self, **facts: object) -> None:
        """What is so from now on; it is written with the next beat."""
        # A new one: the thread may be reading the old.
        self._facts = {**self._facts, **facts}

    def end(self, state: str, **facts: object) -> None:
        """The last word: how it ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.tell(state=state, **facts)
        self._write()

    def _beat(self) -> None:
        while not self._over.is_set():
            self._write()
            self._over.wait(self._interval)

    def _write(self) -> None:
        if self._path is None:
            return
        facts = {
            **{name: _plain(value) for name, value in self._facts.items()},
            "beat": time.time(),
            "memory_bytes": psutil.Process().memory_info().rss,
            "peak_memory_bytes": peak_memory(),
        }
        try:
            replace_text(self._path, json.dumps(facts, indent=1) + "\n", durable=False)
        except (OSError, ValueError) as error:
            if not self._failed:
                say(f"{self._path.name} is not written: {error}")
            self._failed = True


def peak_memory() -> float:
    """The most memory this process has had [bytes]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _plain(value: object) -> object:
    """Strict JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
