"""One writer at a time, by a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pipelines.base.errors import InputError

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Whoever only asks who holds a lock has it for a moment himself.
_PATIENCE, _PAUSE = 1.0, 0.05


class Lock:
    """A lock file that holds process and host of who has it (``flock``).

    It is the system's, not the file's presence: that of a process that died is free.

    Raises
    ------
    InputError
        On entering, if another process has it; the message names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: TextIO | None = None

    def __enter__(self) -> Lock:
        end = time.monotonic() + _PATIENCE
        while self._stream is None:
            self._stream = _taken(self._path)
            if self._stream is None and time.monotonic() > end:
                raise InputError(
                    f"{self._path.parent} is in use by {_who(self._path)}: wait until "
                    "it ends, or choose another output"
                )
            if self._stream is None:
                time.sleep(_PAUSE)
        self._stream.seek(0)
        self._stream.truncate()
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, self._stream)
        self._stream.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def is_held(path: Path) -> bool | None:
    """Whether a process has this lock; ``None`` where the system cannot tell."""
    try:
        with path.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        return None if error.errno in _UNSUPPORTED else True
    return False


def _taken(path: Path) -> TextIO | None:
    """The open file with the lock on it; ``None`` if another process has it."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its folder may have been removed while this waited.
        if os.fstat(stream.fileno()).st_ino == path.stat().st_ino:
            return stream
    except BlockingIOError:
        pass
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise InputError(
                f"{path.parent} is on a file system without locks, where two runs "
                "could write at once: choose another place for the output"
            ) from None
        raise
    stream.close()
    return None


def _who(path: Path) -> str:
    try:
        held = json.loads(path.read_text())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
