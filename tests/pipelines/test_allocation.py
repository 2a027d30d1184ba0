"""Freed memory serves the next array, until it is released."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Page faults of an array of 64 MiB after another one was freed, and what is released.
SCRIPT = """
import resource
import numpy as np
import psutil
from pipelines.base.allocation import keep_freed_memory, release_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fresh = faults()
keep_freed_memory()
faults()
kept = faults()
held = psutil.Process().memory_info().rss
release_freed_memory()
print(fresh, kept, held - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to")
def test_freed_arrays_are_reused_and_released():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    fresh, kept, released = map(int, done.stdout.split())
    assert fresh > 10 * kept
    assert released > 2**25
