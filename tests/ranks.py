"""Runs a function on several ranks: real processes, one thread each, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dustmap.distributed.group import Group

# One server imports torch and the library once; ranks are forked from it.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch.distributed", "rank_imports"])


def _serve() -> None:
    """Start the server, if it does not run, with this folder among its paths."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(Path(__file__).parent), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def on_ranks(
    work: Callable[..., Any],
    size: int,
    *arguments: Any,
    seconds: float = 600.0,
    timeout: float = 120.0,
) -> list[Any]:
    """What ``work(group, *arguments)`` returns on every rank.

    Raises
    ------
    AssertionError
        With its traceback if a rank fails, or if not all end in so many seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ranks = start(work, size, place, *arguments, timeout=timeout)
        end = time.monotonic() + seconds
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
        late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for process in ranks:
            process.kill()
            process.join()
        failed = [path.read_text() for path in sorted(place.glob("*.failed"))]
        if failed or late:
            raise AssertionError(f"ranks {late} did not end;\n" + "\n".join(failed))
        return [torch.load(place / f"{rank}.pt") for rank in range(size)]


def start(
    work: Callable[..., Any],
    size: int,
    place: Path,
    *arguments: Any,
    timeout: float = 30.0,
) -> list[Any]:
    """The processes themselves; what they return or raise appears in ``place``."""
    _serve()
    ranks = [
        _CONTEXT.Process(
            target=_rank, args=(work, rank, size, place, timeout, arguments)
        )
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    return ranks


def _rank(
    work: Callable[..., Any],
    rank: int,
    size: int,
    place: Path,
    timeout: float,
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{place}/rendezvous",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        found = work(Group(connected=True, timeout=timeout), *arguments)
    except BaseException:
        text = f"rank {rank}: {traceback.format_exc()}"
        (place / f"{rank}.failed").write_text(text)
        raise
    torch.save(found, place / f"{rank}.pt")
    dist.destroy_process_group()
