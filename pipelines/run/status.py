"""How far a fit is: of one under way, finished, stopped or dead."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.base.timing import in_words
from pipelines.saving.checkpoint import RECORD, checkpoints, size_of
from pipelines.saving.lock import is_held
from pipelines.saving.workspace import Workspace, unfinished
from pipelines.storage.atomic import MARKER
from pipelines.storage.metrics import read_metrics

_ENDED = ("stopped", "failed")
_KEYS = (
    *("run", "state", "message", "stage", "iteration", "value", "left", "seconds"),
    *("checkpoint", "peak_memory_bytes", "pid", "host", "command"),
)


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
    if work is None and not (path / "run.json").is_file():
        raise InputError(
            f"{path} is neither a run nor a fit under way (begin one with `dustmap fit "
            "stars.parquet -o RUN`)"
        )
    last = _last_record(path / "metrics.jsonl" if work is None else work.metrics)
    found = {
        **dict.fromkeys(_KEYS),
        "stage": last.get("stage"),
        "iteration": last.get("iteration"),
        "value": _value(last),
    }
    return found | (_of_run(path) if work is None else _of_unfinished(work))


def describe(found: dict[str, Any]) -> str:
    """The same in words, one fact per line."""
    told = [f"{found['run']}: {found['state']}"]
    if found["message"]:
        told.append(found["message"])
    if found["stage"]:
        value = "".join(f", {k} {v:.3g}" for k, v in (found["value"] or {}).items())
        told.append(f"stage: {found['stage']}, iteration {found['iteration']}{value}")
    if found["left"]:
        told.append(f"time left: {found['left']}")
    if found["seconds"]:
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in found["seconds"].items())
        told.append(f"time: {spent}")
    saved = found["checkpoint"]
    if saved:
        told.append(
            f"last checkpoint: {saved['name']} ({saved['stage']}), "
            f"{saved['age_seconds']:.0f} s old, {saved['bytes'] / 2**20:.1f} MiB"
        )
    if found["peak_memory_bytes"]:
        told.append(f"peak memory: {found['peak_memory_bytes'] / 2**30:.2f} GiB")
    if found["pid"]:
        told.append(f"process: {found['pid']} on {found['host']}")
    if found["state"] in (*_ENDED, "dead"):
        other = "the command it was begun with and --resume"
        told.append(f"go on with: {found['command'] or other}")
    return "\n".join(told)


def _of_unfinished(work: Workspace) -> dict[str, Any]:
    told, holder = _read(work.status), _read(work.lock)
    checkpoint = _last_checkpoint(work)
    state = _state(work, told.get("state"))
    ended = state in (*_ENDED, "dead")
    left = told.get("ends", 0.0) - time.time()
    return {
        "run": str(work.output),
        "state": state,
        "message": told.get("message") if state in _ENDED else None,
        "left": in_words(left) if left > 0 and not ended else None,
        "seconds": None if checkpoint is None else checkpoint.pop("spent"),
        "checkpoint": checkpoint,
        "pid": holder.get("pid"),
        "host": holder.get("host"),
        "command": told.get("command"),
    }


def _of_run(path: Path) -> dict[str, Any]:
    summary = _read(path / "run.json").get("summary", {})
    whole = (path / MARKER).is_file() and bool(summary)
    return {
        "run": str(path),
        "state": "finished" if whole else "damaged",
        "message": None if whole else f"`dustmap verify {path}` says what is wrong",
        "seconds": summary.get("seconds"),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
    }


def _state(work: Workspace, told: str | None) -> str:
    if not is_held(work.lock):
        return told if told in _ENDED else "dead"
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
                "bytes": size_of(path),
                "spent": record.get("seconds"),
            }
    return None


def _last_record(path: Path) -> dict[str, Any]:
    try:
        return (read_metrics(path) or [{}])[-1]
    except (OSError, ValueError):
        return {}


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
