"""Threads and compilation: failures come through, a missing cache is said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

import dustmap.linalg.compiled_tasks as subject
from dustmap.linalg.compiled_tasks import compiled, in_parallel


def test_every_task_runs_once_and_on_several_threads():
    seen, barrier = [], threading.Barrier(2, timeout=20)

    def task(part):
        barrier.wait()
        seen.append((part, threading.get_ident()))

    in_parallel(task, 2)
    assert sorted(part for part, _ in seen) == [0, 1]
    assert len({thread for _, thread in seen}) == 2
    in_parallel(task, 0)


@pytest.mark.parametrize("broken", [0, 3])
def test_failures_are_raised_once_all_have_ended(broken):
    ended = []

    def task(part):
        if part == broken:
            raise ValueError("no such part")
        ended.append(part)

    with pytest.raises(ValueError, match="no such part"):
        in_parallel(task, 4)
    assert len(ended) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    # A reduction of so many numbers takes all of torch's threads.
    numbers = torch.ones(10**6, dtype=torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    in_parallel(lambda part: None, 3)
    assert numbers.exp().sum() > 0
    child = os.fork()
    if child == 0:
        in_parallel(lambda part: None, 3)
        numbers.exp().sum()
        os._exit(0)
    torch.set_num_threads(threads)
    for _ in range(200):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        threading.Event().wait(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for threads that it does not have")
    assert status == 0


def test_where_nothing_can_be_cached_loops_still_compile_and_say_so_once():
    # Code that came from no file has no folder to keep its machine code in.
    found: dict = {}
    exec(compile("def twice(x):\n    return 2 * x", "<nowhere>", "exec"), found)
    subject._say_uncached.cache_clear()
    with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as said:
        functions = [compiled(found["twice"]) for _ in range(2)]
    assert len(said) == 1
    assert [f(4) for f in functions] == [8, 8]


@pytest.mark.slow
def test_code_of_other_modules_is_compiled_anew_when_they_change(tmp_path):
    start = "from dustmap.linalg.compiled_tasks import compiled, inlined\n"
    part, whole = tmp_path / "part.py", tmp_path / "whole.py"
    whole.write_text(
        f"{start}from part import apart, part\n@compiled\ndef whole(x):\n"
        "    return part(x) + apart(x)\n"
    )

    def result(constant):
        body = "@{}\ndef {}(x):\n    return FACTOR * x\n"
        kinds = ("compiled", "part"), ("inlined", "apart")
        bodies = "".join(body.format(*kind) for kind in kinds)
        part.write_text(f"{start}FACTOR = {constant}\n{bodies}")
        lines = "from whole import whole; print(whole(1.0))"
        ended = subprocess.run(
            [sys.executable, "-c", lines],
            cwd=tmp_path,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(ended.stdout)

    assert [result(constant) for constant in (2.0, 3.0, 2.0)] == [4.0, 6.0, 4.0]
    # What is kept is used again.
    kept = [*tmp_path.glob("cache/**/whole*.nbc")]
    assert len(kept) == 2
