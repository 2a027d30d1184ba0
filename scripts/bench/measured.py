"""Runs a command and writes what it took: ``measured.py RECORD LOG COMMAND...``.

A process of its own, small and with a single child: the peak memory that the kernel
keeps for children is then that of the command, and never that of whoever asked.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time


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
        "command": command,
    }
    with open(record, "w", encoding="utf-8") as stream:
        json.dump(facts, stream)


if __name__ == "__main__":
    main()
