"""One writer at a time, by a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipelines.base.errors import InputError

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# A probe for the holder takes the lock for a moment.
_PATIENCE, _PAUSE = 1.0, 0.05


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which names the holder's process and host (``flock``).

    It is the system's, not the file's presence: that of a process that died is free.

    Raises
    ------
    InputError
        If another process has it; the message names it.
    """
    end = time.monotonic() + _PATIENCE
    while (stream := _taken(path)) is None:
        if time.monotonic() > end:
            raise InputError(
                f"{path.parent} is in use by {_holder(path)}: wait until it ends, or "
                "choose another output"
            )
        time.sleep(_PAUSE)
    with stream:
        stream.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, stream)
        stream.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a process has this lock."""
    try:
        with path.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        # No fit begins on a file system without locks.
        return error.errno not in _UNSUPPORTED
    return False


def _taken(path: Path) -> TextIO | None:
    """The open file with the lock on it; ``None`` if another process has it."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its folder may have been removed while this waited.
        if os.fstat(stream.fileno()).st_ino == path.stat().st_ino:
            return stream
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise InputError(
            f"{path.parent} is on a file system without locks, where two runs could "
            "write at once: choose another place for the output"
        ) from None
    stream.close()
    return None


def _holder(path: Path) -> str:
    try:
        held = json.loads(path.read_text())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
