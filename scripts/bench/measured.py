"""The command line in a process of its own, with time and peak memory.

As a program, ``measured.py RECORD LOG COMMAND...``, it runs a command as the only child
of a small process: the peak memory that the kernel keeps for children is then that of
the command, and never that of whoever asked.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = (sys.executable, "-m", "pipelines.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """CPU time of all threads and wall time [s], peak resident memory [byte]."""

    cpu: float
    wall: float
    peak: float

    def row(self) -> dict[str, float]:
        """For a table."""
        return {
            "wall [s]": self.wall,
            "CPU [s]": self.cpu,
            "peak [GiB]": self.peak / 2**30,
        }


def dustmap(arguments: Sequence[str | Path], log: Path) -> Taken:
    """Run ``dustmap ARGUMENTS`` to the end.

    Raises
    ------
    RuntimeError
        If it fails; the message is its last line.
    """
    words = [str(word) for word in arguments]
    print(f"dustmap {' '.join(words)}", file=sys.stderr, flush=True)
    record = log.with_suffix(".json")
    # Without site-packages: the smaller the process, the lower what it can hide.
    command = [sys.executable, "-S", __file__, str(record), str(log)]
    subprocess.run([*command, *_PROGRAM, *words], check=True)
    facts = json.loads(record.read_text(encoding="utf-8"))
    if facts.pop("status"):
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise RuntimeError(f"{(lines or ['no output'])[-1]} (see {log})")
    return Taken(**facts)


def main() -> None:
    record, log, *command = sys.argv[1:]
    started = time.perf_counter()
    with open(log, "w", encoding="utf-8") as stream:
        status = subprocess.call(command, stdout=stream, stderr=subprocess.STDOUT)
    wall = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Kilobytes, but bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    facts = {
        "status": status,
        "wall": wall,
        "cpu": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * unit,
    }
    with open(record, "w", encoding="utf-8") as stream:
        json.dump(facts, stream)


if __name__ == "__main__":
    main()
