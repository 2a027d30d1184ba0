"""The folder of a fit that is not finished: ``RUN.unfinished`` beside its ``RUN``.

=================  ========================================================
``begun.json``     which fit this is, since when, and what it may replace
``lock``           held by the process that works here, with its host
``status.json``    what it did last, renewed at stages and checkpoints
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
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.saving.checkpoint import checkpoints
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

    ``output`` is the run it will be, an absolute path; ``identifier`` names this fit,
    also in its run, and is empty if the fit was killed before it was written;
    ``overwrite`` says whether a run that stands there may be replaced.
    """

    output: Path
    identifier: str = ""
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        """The folder beside the run."""
        return self.output.with_name(self.output.name + SUFFIX)

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

    @property
    def is_begun(self) -> bool:
        """Whether there is anything to resume."""
        return bool(self.identifier or checkpoints(self.checkpoints))


def unfinished(path: Path) -> Workspace | None:
    """The unfinished fit of a run, also if its own folder is named; or ``None``."""
    whole = Path(os.path.abspath(path))
    work = Workspace(output=whole.with_name(whole.name.removesuffix(SUFFIX)))
    if not work.folder.is_dir():
        return None
    try:
        begun = json.loads((work.folder / _BEGUN).read_text())
        identifier, overwrite = str(begun["fit"]), bool(begun["overwrite"])
    except (OSError, ValueError, KeyError, TypeError):
        return work
    return replace(work, identifier=identifier, overwrite=overwrite)


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
        if not (work.is_begun and resume):
            _clear(folder)
        if not (work.identifier and resume):
            work = _begin(work, overwrite=overwrite)
        # What a killed process had only half written.
        for place in (folder, work.checkpoints):
            remove_parts(place)
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


def _begin(work: Workspace, *, overwrite: bool) -> Workspace:
    identifier = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    begun = {"fit": identifier, "since": time.time(), "overwrite": overwrite}
    replace_text(work.folder / _BEGUN, json.dumps(begun, indent=1) + "\n")
    return replace(work, identifier=identifier, overwrite=overwrite)
