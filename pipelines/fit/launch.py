"""One fit by many processes: ``torchrun --nproc-per-node K -m pipelines.cli fit …``.

Every process runs the same program. torchrun sets each process's rank in environment
variables; without them there is one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dustmap.distributed.group import TIMEOUT, Group
from pipelines.base.errors import InputError


@contextmanager
def processes(timeout: float = TIMEOUT) -> Iterator[Group]:
    """Join the process group, and set threads and device.

    NCCL transfers tensors on CUDA devices, gloo the others. A rank without response for
    ``timeout`` seconds counts as lost: the others end with an error.

    Raises `InputError` if a node has fewer CUDA devices than processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Group()
        return
    # Processes of this program on this machine.
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    threads = own_threads(here)
    if threads is not None:
        torch.set_num_threads(threads)
    backend = "gloo"
    if torch.cuda.is_available():
        if torch.cuda.device_count() < here:
            raise InputError(
                f"{here} processes on a node with {torch.cuda.device_count()} CUDA "
                "devices: start one for each device (--nproc-per-node), or hide them "
                "(CUDA_VISIBLE_DEVICES=) to compute on processors"
            )
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    yield Group(connected=True, timeout=timeout, here=here)
    # After an error the other ranks may be gone.
    dist.destroy_process_group()


def own_threads(here: int) -> int | None:
    """Return an even share of the processors, ``None`` if the user set the threads."""
    if "OMP_NUM_THREADS" in os.environ:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return None
        # torchrun sets it for several processes: its own environment has the user's.
        try:
            before = Path(f"/proc/{os.getppid()}/environ").read_bytes()
        except OSError:
            before = b""
        if b"\0OMP_NUM_THREADS=" in b"\0" + before:
            return None
    # macOS binds no process to some of its processors.
    bound = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return max(1, len(bound(0)) // here)
