"""The folder of an unfinished fit: ``RUN.unfinished`` beside its ``RUN``.

=====================  =========================================================
``status.json``        identity, process, permission to replace, and progress
``lock``               locked by the active process
``state.safetensors``  state of a fit (`pipelines.saving.state_file`)
=====================  =========================================================

The complete run appears by one rename, after which this folder is removed.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, lock_descriptor

from pipelines.base.errors import InputError
from pipelines.storage import atomic

SUFFIX = ".unfinished"
STATE = "state.safetensors"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folder of an unfinished fit.

    ``output`` is the absolute path of the future run; ``facts`` are the content of
    ``status.json``, empty if absent or damaged: ``fit`` names this fit, also in its
    run, and ``overwrite`` allows it to replace what is at the output.
    ``lock`` is the file that this process holds, if any.
    """

    output: Path
    facts: dict[str, Any] = field(default_factory=dict)
    lock: os.stat_result | None = None

    @property
    def folder(self) -> Path:
        """The folder beside the run."""
        return self.output.with_name(self.output.name + SUFFIX)

    @property
    def state(self) -> Path:
        """The file of the state."""
        return self.folder / STATE

    @property
    def is_saved(self) -> bool:
        """True if there is something to resume from."""
        return self.state.is_file()

    @property
    def is_held(self) -> bool:
        """True if a process works here."""
        path = self.folder / "lock"
        # Some network file systems lock only what may be written.
        mode = "r+" if os.access(path, os.W_OK) else "r"
        try:
            with path.open(mode) as stream:
                return not lock_descriptor(stream.fileno(), blocking=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            # Fits never begin on a file system without locks.
            return error.errno not in _UNSUPPORTED

    @property
    def is_own(self) -> bool:
        """True while the lock in the folder is that held by this process."""
        try:
            there = (self.folder / "lock").stat()
        except FileNotFoundError:
            return False
        return self.lock is not None and os.path.samestat(self.lock, there)

    def note(self, **facts: object) -> None:
        """Update facts, also in the file; raises `InputError` if the lock is lost."""
        if self.lock is not None and not self.is_own:
            raise InputError(
                f"the lock of {self.folder} was removed while this process held it, so "
                "that another may write there: choose another output"
            )
        self.facts.update(facts)
        path = self.folder / "status.json"
        with atomic.atomic_file(path, overwrite=True) as temporary:
            temporary.write_text(json.dumps(self.facts, indent=1) + "\n")


def unfinished(path: Path) -> Workspace | None:
    """Return the unfinished fit of a run or of its own folder."""
    whole = Path(os.path.abspath(path))
    work = Workspace(output=whole.with_name(whole.name.removesuffix(SUFFIX)))
    if not work.folder.is_dir():
        return None
    work.facts.update(read_json(work.folder / "status.json"))
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
    """Begin or resume the workspace of an output, for this process alone.

    It is removed at the end of the block, or if the block fails with nothing saved.

    Raises `InputError` if another process works there, or the workspace exists and
    neither ``resume`` nor ``overwrite`` is true.
    """
    work = Workspace(output=Path(os.path.abspath(output)))
    folder = work.folder
    folder.mkdir(exist_ok=True)
    with _locked(folder) as lock:
        atomic.restore_retired(folder, work.output)
        work = replace(unfinished(folder) or work, lock=lock)
        is_begun = "fit" in work.facts or work.is_saved
        if is_begun and not (overwrite or resume):
            raise InputError(
                f"{output} was begun and is not finished ({folder}): "
                "continue with --resume, or start again with --overwrite"
            )
        if not (is_begun and resume):
            for item in folder.iterdir():
                if item.name != "lock":
                    atomic.remove(item)
            work.facts.clear()
        # Partial files of a killed process.
        atomic.remove_parts(folder)
        host, process = socket.gethostname(), os.getpid()
        name = f"{host}-{process}-{time.time_ns()}"
        begun = {"fit": name, "since": time.time(), "overwrite": overwrite}
        work.note(**{**begun, **work.facts, "pid": process, "host": host})
        try:
            yield work
        except BaseException:
            if work.is_own and not work.is_saved:
                atomic.remove_directory(folder)
            raise
        if work.is_own:
            atomic.remove_directory(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[os.stat_result]:
    """Hold and yield the lock of a folder; the system frees it with the process.

    Raises `InputError` if another process holds it, or the file system has no locks.
    """
    # A lock by a file's mere existence would outlast a killed process.
    place = folder / "lock"
    # `Workspace.is_held` locks it for a moment: wait for a second at most.
    lock = FileLock(place, timeout=1.0, poll_interval=0.05, fallback_to_soft=False)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):
        held = read_json(folder / "status.json")
        who = f"process {held.get('pid')} on {held.get('host')}"
        raise InputError(
            f"{folder} is in use by {who if held else 'another process'}: wait until "
            "it ends, or choose another output"
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise InputError(
            f"{folder} is on a file system without locks, where two runs could write "
            "at once: choose another place for the output"
        ) from None
    try:
        yield os.stat(lock.lock_file)
    finally:
        lock.release()
