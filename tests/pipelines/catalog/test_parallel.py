"""Results come in order; processes that die are told, and none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.catalog.parallel import processes

PROGRAM = """
import os, sys, time
from pipelines.catalog.parallel import processes

def work(piece):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    with processes(2) as run:
        list(run(work, range(2)))
"""


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_the_order_of_the_pieces(count: int) -> None:
    with processes(count) as run:
        assert list(run(abs, iter(range(-20, 0)))) == list(range(20, 0, -1))
        with pytest.raises(TypeError, match="bad operand"):
            list(run(abs, ["text"]))


def test_no_process_outlives_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    children = [int(parent.stdout.readline()) for _ in range(2)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 10
    while any(map(_alive, children)) and time.monotonic() < until:
        time.sleep(0.05)
    parent.stdout.close()
    assert not any(map(_alive, children))


def _alive(pid: int) -> bool:
    # One that has ended and that nobody has asked for yet is a zombie.
    place = Path(f"/proc/{pid}/stat")
    return place.exists() and place.read_text().rpartition(")")[2].split()[0] != "Z"
