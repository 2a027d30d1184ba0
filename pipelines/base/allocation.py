"""Memory of this machine and this process, and reuse of what was freed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

import psutil


def total_memory(root: Path = Path("/")) -> int:
    """Return the memory of this machine, or of its container or job [bytes].

    The smallest limit of the process's Linux control groups applies, which the system's
    total does not show: containers and batch systems end a process that exceeds it.
    """
    limits = [psutil.virtual_memory().total]
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        # Version 2 of the interface has one hierarchy, without named controllers.
        kind, name = ("memory", "limit_in_bytes") if controllers else ("", "max")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / kind
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            file = folder / f"memory.{name}"
            if folder.is_relative_to(top) and file.is_file():
                text = file.read_text().strip()
                limits += [int(text)] if text.isdigit() else []
    return min(limits)


def peak_memory() -> int:
    """Return the most memory that this process had until now [bytes]."""
    import resource  # Linux and macOS

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def keep_freed_memory() -> None:
    """Let the C library reuse freed arrays of up to 256 MiB, and torch use large pages.

    glibc returns arrays of more than 32 MiB to the system, and must clear the pages of
    every new one: transforms of eight fields of 128³ points took two to six times as
    long. Larger arrays would leave gaps: after transforms of 10⁸ numbers a process held
    3.6 GB if they were kept, 0.5 GB if not. With pages of 2 MiB transforms of eight
    fields of 5·10⁶ points take 0.6 of the time. Torch reads the variable at its first
    array; other systems and C libraries remain unchanged.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if platform.libc_ver()[0] != "glibc":
        return
    # Parameters of ``mallopt``, from <malloc.h>.
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 2**28)
    # All bits set: never.
    libc.mallopt(trim_threshold, -1)


def release_freed_memory() -> None:
    """Return free memory to the system, between two stages of a job."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
