"""The reuse of freed memory by the C library."""

from __future__ import annotations

import ctypes
import platform

# Parameters of glibc's ``mallopt``, from its <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger arrays [bytes] are few, and are returned to the system.
_KEPT = 2**30


def keep_freed_memory() -> None:
    """Let the C library reuse freed arrays of up to 1 GiB.

    glibc returns arrays of more than 32 MiB to the system, and must clear the pages of
    every new one: transforms of eight fields of 128³ points took two to six times as
    long. Other C libraries remain unchanged.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _KEPT)
    # All bits set: never.
    libc.mallopt(_TRIM_THRESHOLD, -1)


def release_freed_memory() -> None:
    """Return free memory to the system, between two stages of a job."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
