"""The folder of an unfinished fit: ``RUN.unfinished`` beside its ``RUN``.

=====================  =========================================================
``status.json``        identity, process, permission to replace, and progress
``lock``               locked by the active process
``state.safetensors``  state to resume from (`pipelines.saving.state_file`)
=====================  =========================================================

The complete run appears by one rename, after which this folder is removed.
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
from typing import Any

from pipelines.base.errors import InputError
from pipelines.saving.state_file import STATE
from pipelines.storage.atomic import (
    atomic_file,
    remove,
    remove_directory,
    remove_parts,
    restore_retired,
)

SUFFIX = ".unfinished"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Patience for the short lock of `Workspace.is_held` [s].
_PATIENCE, _PAUSE = 1.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folder of an unfinished fit.

    ``output`` is the absolute path of the future run; ``facts`` are those of
    ``status.json``, empty if absent or damaged: ``fit`` names this fit, also in its
    run, and ``overwrite`` allows it to replace a run at the output.
    """

    output: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder beside the run."""
        return self.output.with_name(self.output.name + SUFFIX)

    @property
    def state(self) -> Path:
        """The file of the state."""
        return self.folder / STATE

    @property
    def is_held(self) -> bool:
        """True if a process works here."""
        try:
            with (self.folder / "lock").open() as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            # Fits never begin on a file system without locks.
            return error.errno not in _UNSUPPORTED
        return False

    def note(self, **facts: object) -> None:
        """Update facts, also in the file."""
        self.facts.update(facts)
        with atomic_file(self.folder / "status.json", overwrite=True) as temporary:
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
    """Begin or resume the workspace of a run, for this process alone.

    It is removed at the end of the block, or if the block fails without a state.

    Raises
    ------
    InputError
        If another process works there, or the workspace exists and neither ``resume``
        nor ``overwrite`` is true.
    """
    work = Workspace(output=Path(os.path.abspath(output)))
    folder = work.folder
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        restore_retired(folder, work.output)
        work = unfinished(folder) or work
        is_begun = "fit" in work.facts or work.state.is_file()
        if is_begun and not (overwrite or resume):
            raise InputError(
                f"a fit into {output} was begun and is not finished ({folder}): "
                "continue with --resume, or start again with --overwrite"
            )
        if not (is_begun and resume):
            for item in folder.iterdir():
                if item.name != "lock":
                    remove(item)
            work.facts.clear()
        # Partial files of a killed process.
        remove_parts(folder)
        host, process = socket.gethostname(), os.getpid()
        name = f"{host}-{process}-{time.time_ns()}"
        begun = {"fit": name, "since": time.time(), "overwrite": overwrite}
        work.note(**{**begun, **work.facts, "pid": process, "host": host})
        try:
            yield work
        except BaseException:
            if not work.state.is_file():
                remove_directory(folder)
            raise
        remove_directory(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder (``flock``); the system frees it with the process.

    Raises
    ------
    InputError
        If another process holds it.
    """
    end = time.monotonic() + _PATIENCE
    with (folder / "lock").open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    raise InputError(
                        f"{folder} is on a file system without locks, where two runs "
                        "could write at once: choose another place for the output"
                    ) from None
                if not isinstance(error, BlockingIOError):
                    raise
            else:
                # The other process may have removed the folder.
                if os.fstat(stream.fileno()).st_nlink:
                    break
            if time.monotonic() > end:
                held = read_json(folder / "status.json")
                who = f"process {held.get('pid')} on {held.get('host')}"
                raise InputError(
                    f"{folder} is in use by {who}: wait until it ends, or choose "
                    "another output"
                )
            time.sleep(_PAUSE)
        yield
