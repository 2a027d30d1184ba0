"""What a run is doing, in a file that is renewed every few seconds."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil

from pipelines.base.measurement import plain
from pipelines.base.progress import say
from pipelines.storage.atomic import replace_text

_INTERVAL = 2.0


class Heartbeat:
    """While it is entered, a thread writes the latest facts, and when.

    Parameters
    ----------
    path
        The file; ``None`` writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._facts: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._failed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, **facts: object) -> None:
        """What is so from now on; it is written with the next beat."""
        # A new one: the thread may be reading the old.
        self._facts = {**self._facts, **facts}

    def end(self, state: str, **facts: object) -> None:
        """Write how it ended; no beat follows."""
        self.__exit__()
        self.tell(state=state, **facts)
        self._write()

    def _beat(self) -> None:
        while not self._over.is_set():
            self._write()
            self._over.wait(_INTERVAL)

    def _write(self) -> None:
        if self._path is None:
            return
        facts = {
            **plain(self._facts),
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
