"""The folder of a fit that is not finished: ``RUN.unfinished`` beside its ``RUN``.

=================  ========================================================
``begun.json``     which fit this is, since when, and what it may replace
``lock``           held by the process that works here
``status.json``    what it did last, renewed every few seconds
``metrics.jsonl``  one record per iteration that was reported, as it goes
``checkpoints/``   the newest two, and ``latest``, which names the last
=================  ========================================================

The run itself appears by one rename when it is whole; then this folder goes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.saving.checkpoint import checkpoints, remove_unfinished
from pipelines.saving.lock import locked
from pipelines.storage.atomic import (
    remove_directory,
    remove_parts,
    replace_text,
    restore_retired,
)

SUFFIX = ".unfinished"
_BEGUN, _LOCK = "begun.json", "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where an unfinished fit keeps what is its own.

    Parameters
    ----------
    output
        The run it will be.
    identifier
        Of this fit, also in its run: a finished one is known by it.
    overwrite
        Whether a run that stands there may be replaced.
    """

    output: Path
    identifier: str
    overwrite: bool

    @property
    def folder(self) -> Path:
        """The folder itself."""
        return workspace_of(self.output)

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Its iterations."""
        return self.folder / "metrics.jsonl"

    @property
    def status(self) -> Path:
        """What it did last."""
        return self.folder / "status.json"

    @property
    def lock(self) -> Path:
        """Held by the process that works here."""
        return self.folder / _LOCK


def workspace_of(output: Path) -> Path:
    """The folder beside a run in which it is made."""
    whole = Path(os.path.abspath(output))
    return whole.with_name(whole.name + SUFFIX)


def unfinished(path: Path) -> Workspace | None:
    """The unfinished fit of a run, also if its own folder is named; or ``None``."""
    whole = Path(os.path.abspath(path))
    if whole.name.endswith(SUFFIX):
        whole = whole.with_name(whole.name.removesuffix(SUFFIX))
    if not workspace_of(whole).is_dir():
        return None
    try:
        begun = json.loads((workspace_of(whole) / _BEGUN).read_text())
        identifier, overwrite = str(begun["fit"]), bool(begun["overwrite"])
    except (OSError, ValueError, KeyError, TypeError):
        # Killed before it had said which it is: nothing of it counts yet.
        identifier, overwrite = "", False
    return Workspace(output=whole, identifier=identifier, overwrite=overwrite)


@contextmanager
def claimed(output: Path, *, overwrite: bool, resume: bool) -> Iterator[Workspace]:
    """The workspace of a run, for this process alone; begun or resumed.

    If the block fails before there is a checkpoint, nothing is left of it.

    Raises
    ------
    InputError
        If another process works there, or a fit was begun there and neither
        ``resume`` nor ``overwrite`` is true.
    """
    folder = workspace_of(output)
    folder.mkdir(exist_ok=True)
    with locked(folder / _LOCK):
        restore_retired(folder, Path(os.path.abspath(output)))
        found = unfinished(output)
        assert found is not None
        is_begun = bool(found.identifier or checkpoints(found.checkpoints))
        if is_begun and not (overwrite or resume):
            raise InputError(
                f"a fit into {output} was begun and is not finished ({folder}): go on "
                "with --resume, or begin anew with --overwrite"
            )
        if not (is_begun and resume):
            _clear(folder)
        work = found
        if not work.identifier or not resume:
            work = _begin(output, overwrite=overwrite)
        _put_in_order(work)
        try:
            yield work
        except BaseException:
            if not checkpoints(work.checkpoints):
                remove_directory(folder)
            raise


def finish(work: Workspace) -> None:
    """The run is whole: what made it goes."""
    remove_directory(work.folder)


def _clear(folder: Path) -> None:
    for item in folder.iterdir():
        if item.is_dir():
            remove_directory(item)
        elif item.name != _LOCK:
            item.unlink()


def _begin(output: Path, *, overwrite: bool) -> Workspace:
    identifier = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    begun = {"fit": identifier, "since": time.time(), "overwrite": overwrite}
    whole = Path(os.path.abspath(output))
    replace_text(workspace_of(whole) / _BEGUN, json.dumps(begun, indent=1) + "\n")
    return Workspace(output=whole, identifier=identifier, overwrite=overwrite)


def _put_in_order(work: Workspace) -> None:
    """Remove what a killed process had only half written."""
    remove_parts(work.folder)
    remove_unfinished(work.checkpoints)
