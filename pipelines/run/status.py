"""How far a fit is: of one under way, finished, stopped or dead."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.base.progress import in_words
from pipelines.saving.state_file import read_state, state_files
from pipelines.saving.workspace import Workspace, is_held, read_json, unfinished
from pipelines.storage.atomic import MARKER
from pipelines.storage.metrics import read_metrics

_ENDED = ("stopped", "failed")
_KEYS = (
    *("run", "state", "message", "stage", "iteration", "value", "left", "seconds"),
    *("checkpoint", "peak_memory_bytes", "pid", "host", "command"),
)


def status_of(path: Path) -> dict[str, Any]:
    """Return what is known of the fit into a run, as plain JSON; ``None`` if unknown.

    ``state`` is ``planning``, ``learning``, ``running`` or ``writing`` while a process
    works on it, ``stopped`` by a signal, ``failed``, ``dead`` if it ended without a
    word, or ``finished``.

    Raises
    ------
    InputError
        If there is neither a run nor an unfinished fit.
    """
    work = unfinished(path)
    if work is None and not (path / "run.json").is_file():
        raise InputError(
            f"{path} is neither a run nor a fit under way (begin one with `dustmap fit "
            "stars.parquet -o RUN`)"
        )
    try:
        records = read_metrics(path / "metrics.jsonl" if work is None else work.metrics)
    except (OSError, ValueError):
        records = []
    last = records[-1] if records else {}
    known = ("stage", "iteration", "seconds", "tolerance")
    numbers = {k: x for k, x in last.items() if k not in known and math.isfinite(x)}
    found = {
        **dict.fromkeys(_KEYS),
        "stage": last.get("stage"),
        "iteration": last.get("iteration"),
        "value": numbers or None,
    }
    return found | (_of_run(path) if work is None else _of_unfinished(work))


def describe(found: dict[str, Any]) -> str:
    """Return the same in words, one fact per line."""
    lines = [f"{found['run']}: {found['state']}"]
    if found["message"]:
        lines.append(found["message"])
    if found["stage"]:
        value = "".join(f", {k} {v:.3g}" for k, v in (found["value"] or {}).items())
        lines.append(f"stage: {found['stage']}, iteration {found['iteration']}{value}")
    if found["left"]:
        lines.append(f"left of budget.minutes: {found['left']}")
    if found["seconds"]:
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in found["seconds"].items())
        lines.append(f"time: {spent}")
    saved = found["checkpoint"]
    if saved:
        lines.append(
            f"last checkpoint: {saved['number']} ({saved['stage']}), "
            f"{saved['age_seconds']:.0f} s old, {saved['bytes'] / 2**20:.1f} MiB"
        )
    if found["peak_memory_bytes"]:
        lines.append(f"peak memory: {found['peak_memory_bytes'] / 2**30:.2f} GiB")
    if found["pid"]:
        lines.append(f"process: {found['pid']} on {found['host']}")
    if found["state"] in (*_ENDED, "dead"):
        other = "the command it was begun with and --resume"
        lines.append(f"go on with: {found['command'] or other}")
    return "\n".join(lines)


def _of_unfinished(work: Workspace) -> dict[str, Any]:
    facts, holder, checkpoint, seconds = work.facts, read_json(work.lock), None, None
    state, is_alive = facts.get("state"), is_held(work.lock)
    if is_alive and (state is None or state in _ENDED):
        state = "planning"
    elif not is_alive and state not in _ENDED:
        state = "dead"
    for path in state_files(work.folder):
        try:
            saved = read_state(path, tensors=False)
        except InputError:
            continue
        seconds = saved.content["seconds"]
        checkpoint = {
            "number": saved.number,
            "stage": saved.content["stage"],
            "age_seconds": max(time.time() - saved.written, 0.0),
            "bytes": path.stat().st_size,
        }
        break
    left = facts.get("ends", 0.0) - time.time()
    return {
        "run": str(work.output),
        "state": state,
        "message": facts.get("message") if state in _ENDED else None,
        "left": in_words(left) if left > 0 and is_alive else None,
        "seconds": seconds,
        "checkpoint": checkpoint,
        "pid": holder.get("pid"),
        "host": holder.get("host"),
        "command": facts.get("command"),
    }


def _of_run(path: Path) -> dict[str, Any]:
    summary = read_json(path / "run.json").get("summary", {})
    whole = (path / MARKER).is_file() and bool(summary)
    return {
        "run": str(path),
        "state": "finished" if whole else "damaged",
        "message": None if whole else f"`dustmap verify {path}` says what is wrong",
        "seconds": summary.get("seconds"),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
    }
