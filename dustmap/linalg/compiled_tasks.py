"""Compile loops to machine code and run them on several threads.

The loops release the interpreter's lock and run on ordinary threads, one fixed part of
the work each. Idle threads of a second OpenMP runtime would spin against torch's: with
few cores that costs a scheduler's time slice (8 ms) per call, while a hand-over to a
waiting thread costs 20 µs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numba
import numpy as np


def compiled(function: Callable, **options: Any) -> Callable:
    """Compile a function to machine code, on its first call for each choice of types.

    The code is kept on disk beside the module or, if that is read-only, in the user's
    cache folder; if neither can be written, every process compiles anew and warns once.
    Floating-point operations keep their order, so that equal calls give equal bits;
    ``options`` of numba replace this. Numba would keep the code of a function that
    calls one of another module when only that module changes; here the files' names
    have a digest of all that the code depends on.
    """
    options = {**_OPTIONS, **options}
    _named_by_content(function)
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        _say_uncached()
        return numba.njit(**options)(function)


def inlined(function: Callable) -> Callable:
    """Compile a function that is copied into loops instead of being called.

    Passing a few arrays costs more than a short loop over them.
    """
    _named_by_content(function)
    return numba.njit(forceinline=True, **_OPTIONS)(function)


def _named_by_content(function: Callable) -> None:
    """Append a digest of its code, constants and callees to a function's name."""
    code = function.__code__
    parts = [code.co_code, repr((code.co_consts, code.co_names)).encode()]
    for name in code.co_names:
        value = function.__globals__.get(name)
        if called := getattr(value, "py_func", None):
            # The name of a compiled function has its digest.
            parts.append(called.__qualname__.encode())
        elif not callable(value) and not isinstance(value, ModuleType):
            parts.append(pickle.dumps(value, protocol=4))
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
    function.__qualname__ += f"_{digest}"


_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


@functools.cache
def _say_uncached() -> None:
    warnings.warn(
        "neither this package's folder nor the user's cache folder can be written: "
        "every process compiles its loops anew, up to a second each. Set "
        "NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
        stacklevel=3,
    )


def thread_count(operations: float) -> int:
    """Return the number of threads, torch's if it is loaded; one for few operations.

    A hand-over to a thread takes as long as 2^15 multiplications, about 30 µs.
    """
    if operations <= 2**15:
        return 1
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else os.cpu_count() or 1


def in_parallel(task: Callable[[int], None], count: int) -> None:
    """Run ``task(0), …, task(count − 1)``, the first on this thread, others elsewhere.

    Exceptions of the tasks are raised once all tasks have ended.
    """
    if count < 1:
        return
    waiting = [_pool().submit(task, part) for part in range(1, count)]
    try:
        task(0)
    finally:
        failures = [future.exception() for future in waiting]
    for failure in failures:
        if failure is not None:
            raise failure


def over_rows(loop: Callable, count: int, operations: float, *given: Any) -> None:
    """Run ``loop(first, last, *given)`` over all rows, shared out among threads."""
    parts = max(1, min(thread_count(operations), count))
    cuts = np.linspace(0, count, parts + 1).astype(int)
    in_parallel(lambda n: loop(cuts[n], cuts[n + 1], *given), parts)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    # One thread per processor; they start on demand and wait without spinning.
    return ThreadPoolExecutor(
        max_workers=max(1, (os.cpu_count() or 1)), thread_name_prefix="compiled"
    )


def _after_fork() -> None:
    # A forked child has none of its parent's threads. OpenMP waits for them for ever,
    # unless it is told that there is one thread.
    _pool.cache_clear()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
