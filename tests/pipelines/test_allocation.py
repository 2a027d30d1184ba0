"""Freed memory serves the next array, until it is released."""

from __future__ import annotations

import platform
import subprocess
import sys

import psutil
import pytest

from pipelines.base.allocation import total_memory

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


# Paths of the process's group and of limits, by version of the kernel's interface.
GROUPS = {
    "0::/job/step\n": "sys/fs/cgroup/{}memory.max",
    "4:cpu:/\n3:memory:/job/step\n": "sys/fs/cgroup/memory/{}memory.limit_in_bytes",
}


@pytest.mark.parametrize("listed", GROUPS)
@pytest.mark.parametrize("group", ["", "job/", "job/step/"])
def test_the_smallest_limit_of_a_container_or_job_is_its_memory(
    tmp_path, listed, group
):
    whole = psutil.virtual_memory().total
    assert total_memory(tmp_path) == whole
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(listed)
    for folder, text in (("job/step/", "max\n"), (group, "123456789\n")):
        file = tmp_path / GROUPS[listed].format(folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert total_memory(tmp_path) == 123456789
