"""How far a fit is: of one under way, finished, stopped or dead."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.saving.checkpoint import RECORD, checkpoints
from pipelines.saving.lock import is_held
from pipelines.saving.workspace import Workspace, unfinished
from pipelines.storage.atomic import MARKER
from pipelines.storage.metrics import read_metrics

# Where the system cannot tell who holds a lock, a run without a beat for so many
# seconds counts as dead.
_SILENCE = 60.0
_ENDED = ("stopped", "failed")


def status_of(path: Path) -> dict[str, Any]:
    """What is known of the fit into a run, as plain JSON.

    ``state`` is ``planning``, ``learning``, ``running`` or ``writing`` while a process
    works on it, ``stopped`` by a signal, ``failed``, ``dead`` if it ended without a
    word, or ``finished``. ``None`` stands for what is not known.

    Raises
    ------
    InputError
        If there is neither a run nor an unfinished fit.
    """
    work = unfinished(path)
    if work is not None:
        return _of_unfinished(work)
    if not (path / "run.json").is_file():
        raise InputError(
            f"{path} is neither a run nor a fit under way (begin one with `dustmap fit "
            "stars.parquet -o RUN`)"
        )
    return _of_run(path)


def describe(found: dict[str, Any]) -> str:
    """The same in words, one fact per line."""
    lines = [f"{found['run']}: {found['state']}"]
    if found["message"]:
        lines.append(found["message"])
    if found["stage"]:
        told = "".join(f", {k} {v:.3g}" for k, v in (found["value"] or {}).items())
        lines.append(f"stage: {found['stage']}, iteration {found['iteration']}{told}")
    if found["left"]:
        lines.append(f"time left: {found['left']}")
    if found["seconds"]:
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in found["seconds"].items())
        lines.append(f"time: {spent}")
    saved = found["checkpoint"]
    if saved:
        lines.append(
            f"last checkpoint: {saved['name']} ({saved['stage']}), "
            f"{saved['age_seconds']:.0f} s old, {saved['bytes'] / 2**20:.1f} MiB"
        )
    if found["peak_memory_bytes"]:
        lines.append(f"peak memory: {found['peak_memory_bytes'] / 2**30:.2f} GiB")
    if found["pid"]:
        lines.append(f"process: {found['pid']} on {found['host']}")
    if found["silent_seconds"] is not None:
        lines.append(f"last sign of life: {found['silent_seconds']:.0f} s ago")
    if found["state"] in ("stopped", "failed", "dead"):
        other = "the command it was begun with and --resume"
        lines.append(f"go on with: {found['command'] or other}")
    return "\n".join(lines)


def _of_unfinished(work: Workspace) -> dict[str, Any]:
    told = _read(work.status)
    last = _last_record(work.metrics)
    checkpoint = _last_checkpoint(work)
    beat = told.get("beat")
    silent = None if beat is None else max(time.time() - beat, 0.0)
    state = _state(work, told.get("state"), silent)
    is_alive = state not in (*_ENDED, "dead")
    return {
        "run": str(work.output),
        "state": state,
        "message": told.get("message") if state in _ENDED else None,
        "stage": told.get("stage") or last.get("stage"),
        "iteration": told.get("iteration", last.get("iteration")),
        "value": told.get("value") or _value(last),
        "left": told.get("left") if is_alive else None,
        "seconds": None if checkpoint is None else checkpoint.pop("spent"),
        "checkpoint": checkpoint,
        "memory_bytes": told.get("memory_bytes") if is_alive else None,
        "peak_memory_bytes": told.get("peak_memory_bytes"),
        "pid": told.get("pid"),
        "host": told.get("host"),
        "command": told.get("command"),
        "silent_seconds": silent,
    }


def _of_run(path: Path) -> dict[str, Any]:
    summary = _read(path / "run.json").get("summary", {})
    whole = (path / MARKER).is_file() and bool(summary)
    metrics = path / "metrics.jsonl"
    last = _last_record(metrics)
    return {
        "run": str(path),
        "state": "finished" if whole else "damaged",
        "message": None if whole else f"`dustmap verify {path}` says what is wrong",
        "stage": last.get("stage"),
        "iteration": last.get("iteration"),
        "value": _value(last),
        "left": None,
        "seconds": summary.get("seconds"),
        "checkpoint": None,
        "memory_bytes": None,
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
        "pid": None,
        "host": None,
        "command": None,
        "silent_seconds": None,
    }


def _state(work: Workspace, told: str | None, silent: float | None) -> str:
    held = is_held(work.lock)
    if held is None:
        held = silent is not None and silent < _SILENCE
    if told in _ENDED and not held:
        return told
    if not held:
        return "dead"
    return told if told and told not in _ENDED else "planning"


def _last_checkpoint(work: Workspace) -> dict[str, Any] | None:
    """The newest that can be told from; `dustmap verify` reads them in full."""
    for path in reversed(checkpoints(work.checkpoints)):
        record = _read(path / RECORD)
        if "written" in record and "stage" in record:
            return {
                "name": path.name,
                "stage": record["stage"],
                "age_seconds": max(time.time() - record["written"], 0.0),
                "bytes": sum(item.stat().st_size for item in path.iterdir()),
                "spent": record.get("seconds"),
            }
    return None


def _last_record(path: Path) -> dict[str, Any]:
    try:
        records = read_metrics(path)
    except (OSError, ValueError):
        return {}
    return records[-1] if records else {}


def _value(record: dict[str, Any]) -> dict[str, float] | None:
    known = ("stage", "iteration", "seconds", "tolerance")
    value = {
        name: number
        for name, number in record.items()
        if name not in known and math.isfinite(number)
    }
    return value or None


def _read(path: Path) -> dict[str, Any]:
    """A JSON file that may be absent, or in the middle of going."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
