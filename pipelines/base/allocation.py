"""Memory that the C library keeps between two arrays of the same size."""

from __future__ import annotations

import ctypes
import platform

# Parameters of glibc's ``mallopt``, from its <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger arrays [bytes] are few, and go back to the system.
_KEPT = 2**30


def keep_freed_memory() -> None:
    """Have freed arrays of up to 1 GiB reused instead of given back to the system.

    glibc gives arrays of more than 32 MiB back, and every new one costs the clearing of
    its pages: transforms of eight fields of 128³ points took two to six times as long.
    Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _KEPT)
    # All bits set: never.
    libc.mallopt(_TRIM_THRESHOLD, -1)


def release_freed_memory() -> None:
    """Give what is free back to the system, between two stages of a job."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
