"""Commands that are killed at a moment of one's choice, in processes soon begun.

One server imports everything; every command line is a fork of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Exit status (of a signal its number, negative), seconds, and what it said."""

    status: int
    seconds: float
    said: str


class Server:
    """Runs ``dustmap`` command lines; a context."""

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        )
        assert self._line() == "ready\n"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(
        self,
        folder: Path,
        line: str,
        *,
        after: float | None = None,
        at_state: bool = False,
    ) -> Ended:
        """Run a command in a folder; kill it after so many seconds, or at a state.

        That is the first one that it writes.
        """
        job = {"folder": str(folder), "line": line, "after": after, "at": at_state}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _serve() -> None:
    import torch

    import pipelines.export.exporters
    import pipelines.fit  # noqa: F401
    from pipelines.cli import main

    torch.set_num_threads(1)
    print("ready", flush=True)
    for text in sys.stdin:
        print(json.dumps(_ended(json.loads(text), main)), flush=True)
    os._exit(0)


def _ended(job: dict[str, Any], main: Any) -> dict[str, Any]:
    said = Path(job["folder"]) / "said.txt"
    start = time.monotonic()
    process = os.fork()
    if process == 0:
        _become(job, said, main)
    status = None
    while status is None:
        found, raw = os.waitpid(process, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(raw)
        elif job["after"] is not None and time.monotonic() - start >= job["after"]:
            os.kill(process, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        else:
            time.sleep(0.002)
    seconds = time.monotonic() - start
    return {"status": status, "seconds": seconds, "said": said.read_text()}


def _become(job: dict[str, Any], said: Path, main: Any) -> None:
    """The command itself, in a process of its own that never returns."""
    os.chdir(job["folder"])
    target = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(target, stream)
    if job["at"]:
        _end_at_a_state()
    status = 70
    try:
        main(job["line"].split(), standalone_mode=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_at_a_state() -> None:
    """Let this process kill itself once it has written a state."""
    from pipelines.fit import context

    written = context.write_state

    def write(path: Path, content: dict[str, Any]) -> None:
        written(path, content)
        os.kill(os.getpid(), signal.SIGKILL)

    context.write_state = write


if __name__ == "__main__":
    _serve()
