"""The folder of a fit that is not finished: ``RUN.unfinished`` beside its ``RUN``.

=======================  =======================================================
``status.json``          which fit this is, what it may replace, what it did last
``lock``                 held by the process that works here, with its host
``metrics.jsonl``        one record per iteration that was reported, as it goes
``state-N.safetensors``  the newest two states (`pipelines.saving.state_file`)
=======================  =======================================================

The run itself appears by one rename when it is whole; then this folder goes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pipelines.base.errors import InputError
from pipelines.saving.state_file import state_files
from pipelines.storage.atomic import (
    remove_directory,
    remove_parts,
    replace_text,
    restore_retired,
)

SUFFIX = ".unfinished"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# `is_held` takes a lock for a moment [s].
_PATIENCE, _PAUSE = 1.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where an unfinished fit keeps its files.

    ``output`` is the absolute path of the run that it will be; ``facts`` are those of
    ``status.json``, empty if that is absent or damaged.
    """

    output: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder beside the run."""
        return self.output.with_name(self.output.name + SUFFIX)

    @property
    def metrics(self) -> Path:
        """Its iterations."""
        return self.folder / "metrics.jsonl"

    @property
    def status(self) -> Path:
        """Its facts."""
        return self.folder / "status.json"

    @property
    def lock(self) -> Path:
        """Held by the process that works here."""
        return self.folder / "lock"

    @property
    def identifier(self) -> str:
        """The name of this fit, also in its run; empty if it is not known."""
        return str(self.facts.get("fit", ""))

    @property
    def overwrite(self) -> bool:
        """Whether a run that stands at the output may be replaced."""
        return bool(self.facts.get("overwrite", False))

    @property
    def is_begun(self) -> bool:
        """Whether there is anything to resume."""
        return bool(self.identifier or state_files(self.folder))

    def note(self, **facts: object) -> None:
        """Change facts, also in the file."""
        self.facts.update(facts)
        replace_text(self.status, json.dumps(self.facts, indent=1) + "\n")


def unfinished(path: Path) -> Workspace | None:
    """Return the unfinished fit of a run, also if its own folder is named."""
    whole = Path(os.path.abspath(path))
    work = Workspace(output=whole.with_name(whole.name.removesuffix(SUFFIX)))
    if not work.folder.is_dir():
        return None
    work.facts.update(read_json(work.status))
    return work


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file is absent or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def claimed(output: Path, *, overwrite: bool, resume: bool) -> Iterator[Workspace]:
    """Begin or resume the workspace of a run, for this process alone.

    It is removed once the block is through, and if the block fails before there is a
    state.

    Raises
    ------
    InputError
        If another process works there, or a fit was begun there and neither
        ``resume`` nor ``overwrite`` is true.
    """
    work = Workspace(output=Path(os.path.abspath(output)))
    folder = work.folder
    folder.mkdir(exist_ok=True)
    with locked(work.lock):
        restore_retired(folder, work.output)
        work = unfinished(folder) or work
        if work.is_begun and not (overwrite or resume):
            raise InputError(
                f"a fit into {output} was begun and is not finished ({folder}): "
                "continue with --resume, or start again with --overwrite"
            )
        if (folder / "checkpoints").is_dir() and not overwrite:
            raise InputError(
                f"{folder} holds a fit that an earlier version began: finish it with "
                "that version, or start again with --overwrite"
            )
        if not (work.is_begun and resume):
            for item in folder.iterdir():
                if item != work.lock:
                    item.unlink() if item.is_file() else remove_directory(item)
            work.facts.clear()
        if not work.identifier:
            name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
            work.note(fit=name, since=time.time(), overwrite=overwrite)
        # What a killed process left half-written.
        remove_parts(folder)
        try:
            yield work
        except BaseException:
            if not state_files(folder):
                remove_directory(folder)
            raise
        remove_directory(folder)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, which names the holder's process and host (``flock``).

    The system holds the lock, not the presence of the file: after its process has died
    it is free.

    Raises
    ------
    InputError
        If another process has it; the message names it.
    """
    end = time.monotonic() + _PATIENCE
    while (stream := _taken(path)) is None:
        if time.monotonic() > end:
            held = read_json(path)
            who = f"process {held['pid']} on {held['host']}" if held else "another one"
            raise InputError(
                f"{path.parent} is in use by {who}: wait until it ends, or choose "
                "another output"
            )
        time.sleep(_PAUSE)
    with stream:
        stream.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, stream)
        stream.flush()
        yield


def is_held(path: Path) -> bool:
    """Return whether a process has this lock."""
    try:
        with path.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        # No fit begins on a file system without locks.
        return error.errno not in _UNSUPPORTED
    return False


def _taken(path: Path) -> TextIO | None:
    """Return the open file with the lock on it; ``None`` if another process has it."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its folder may have been removed while this waited.
        if os.fstat(stream.fileno()).st_ino == path.stat().st_ino:
            return stream
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise InputError(
            f"{path.parent} is on a file system without locks, where two runs could "
            "write at once: choose another place for the output"
        ) from None
    stream.close()
    return None
