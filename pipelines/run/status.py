"""The status of a fit: under way, finished and whole, stopped or dead."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.saving.workspace import Workspace, read_json, unfinished
from pipelines.storage.atomic import MANIFEST, MARKER, check_manifest

_ENDED = ("stopped", "failed")
# Kinds of values in words.
_KINDS = {
    "residual": "relative residual of the solver",
    "misfit": "mean squared residual of stars over its expected variance",
    "expected_gain": "log-likelihood still to gain",
    "bound": "bound on the log-likelihood",
}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the reported iterations of a fit, one line of JSON each.

    A record has the ``stage`` and ``iteration``, the ``kind`` of its ``value``, and the
    ``seconds`` from the start; of samples also the numbers of the ``first`` and
    ``last``.
    """
    return [_by_kind(json.loads(line)) for line in path.read_text().splitlines()]


def _by_kind(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its kind, which named the value in earlier versions."""
    kind = next((name for name in _KINDS if name in record), None)
    if kind is None:
        return record
    return {**record, "kind": kind, "value": record[kind]}


def status_of(path: Path) -> dict[str, Any]:
    """Return the status of a fit as plain JSON, with ``None`` for unknown values.

    ``state`` is ``planning``, ``learning``, ``running`` or ``writing`` while a process
    works on it, ``stopped`` by a signal, ``failed``, ``dead`` if it ended without a
    report, or ``finished``: then every file is compared with the manifest, as of any
    other folder or store that has one.

    Raises `InputError` if the path holds neither a run nor an unfinished fit, or what
    is finished is incomplete or was altered.
    """
    work = unfinished(path)
    records = ("run.json", MANIFEST, MARKER)
    if work is None and not any((path / name).is_file() for name in records):
        raise InputError(
            f"{path} is neither a run nor a fit under way (begin one with `dustmap fit "
            "stars.parquet -o RUN`)"
        )
    found = _of_run(path) if work is None else _of_unfinished(work)
    last = _by_kind(found.pop("last"))
    known = math.isfinite(last.get("value", math.nan))
    numbers = {last["kind"]: last["value"]} if known else None
    stage = last.get("stage")
    if "first" in last:
        stage = f"{stage} {last['first']}-{last['last']}"
    step = {"stage": stage, "iteration": last.get("iteration")}
    keys = ("run", "state", "message", "stage", "iteration", "value", "seconds")
    keys += ("checkpoint", "peak_memory_bytes", "pid", "host")
    return {**dict.fromkeys(keys), **step, "value": numbers, **found}


def in_plain_words(name: str) -> str:
    """Describe a value of ``metrics.jsonl`` by its kind."""
    return _KINDS.get(name, name.replace("_", " "))


def describe(found: dict[str, Any]) -> str:
    """Describe a status, one fact per line."""
    lines = [f"{found['run']}: {found['state']}"]
    if found["message"]:
        lines.append(found["message"])
    if found["stage"]:
        numbers = (found["value"] or {}).items()
        value = "".join(f", {in_plain_words(k)} {v:.3g}" for k, v in numbers)
        lines.append(f"stage: {found['stage']}, iteration {found['iteration']}{value}")
    if found["seconds"]:
        spent = ", ".join(f"{k} {v:.1f} s" for k, v in found["seconds"].items())
        lines.append(f"time: {spent}")
    saved = found["checkpoint"]
    if saved:
        lines.append(
            f"last checkpoint: {saved['stage']}, {saved['age_seconds']:.0f} s old, "
            f"{saved['bytes'] / 2**20:.1f} MiB"
        )
    if found["peak_memory_bytes"]:
        lines.append(f"peak memory: {found['peak_memory_bytes'] / 2**30:.2f} GiB")
    if found["pid"]:
        lines.append(f"process: {found['pid']} on {found['host']}")
    if found["state"] in (*_ENDED, "dead"):
        lines.append("continue with its original command and --resume")
    return "\n".join(lines)


def _of_unfinished(work: Workspace) -> dict[str, Any]:
    facts, is_alive, saved = work.facts, work.is_held, work.facts.get("checkpoint")
    state = facts.get("state")
    if is_alive and (state is None or state in _ENDED):
        state = "planning"
    elif not is_alive and state not in _ENDED:
        state = "dead"
    if saved:
        age = max(time.time() - saved["written"], 0.0)
        kept = {"stage": saved["stage"], "bytes": saved["bytes"]}
        saved = {**kept, "age_seconds": age}
    return {
        "run": str(work.output),
        "state": state,
        "message": facts.get("message") if state in _ENDED else None,
        "last": facts.get("last", {}),
        "checkpoint": saved,
        **{name: facts.get(name) for name in ("seconds", "pid", "host")},
    }


def _of_run(path: Path) -> dict[str, Any]:
    listed = check_manifest(path, allow_extra=True)
    summary = read_json(path / "run.json").get("summary", {})
    metrics = path / "metrics.jsonl"
    records = read_metrics(metrics) if metrics.is_file() else []
    return {
        "last": records[-1] if records else {},
        "run": str(path),
        "state": "finished",
        "message": f"{len(listed)} files match their SHA-256",
        "seconds": summary.get("seconds"),
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
    }
