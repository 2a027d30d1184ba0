"""Pieces of work in several processes: results in order, none lost in silence."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from typing import Any

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Applies a function to pieces; yields the results, or raises, in the pieces' order."""
# Pieces handed out ahead of the one whose result is awaited, for each process.
_AHEAD = 2


@contextmanager
def processes(count: int) -> Iterator[Run]:
    """Yield a `Run` of ``count`` processes; with one, the work is done in this one.

    Functions, pieces and results are sent between processes: functions by name, at the
    top of a module.

    Raises
    ------
    RuntimeError
        If a process dies. The others are ended, also if this one dies.
    """
    if count == 1:
        yield map
        return
    # Fresh processes: a fork would inherit locks that threads of this one hold.
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=_prepare
    )

    def run(function: Callable[[Any], Any], pieces: Iterable[Any]) -> Iterator[Any]:
        ahead = (pool.submit(function, piece) for piece in pieces)
        waiting = deque(itertools.islice(ahead, _AHEAD * count))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(itertools.islice(ahead, 1))

    try:
        yield run
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process died before its work was done (ended from outside, or by "
            "the system for want of memory): nothing was written; start again, with "
            "fewer --workers if memory is short"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare() -> None:
    """Leave Ctrl-C to the parent, and end when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
