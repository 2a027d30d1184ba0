"""The state of an unfinished fit: one file of tensors (safetensors) and plain JSON.

Two files take turns: the next state replaces the older one, so that a state that is
damaged later costs no more than the time since the one before. Each appears by one
rename, and holds the SHA-256 of all its other bytes and its number in the sequence.
"""

from __future__ import annotations

import errno
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file
from pipelines.storage.checksum import (
    CHECKSUM_KEY,
    PLACEHOLDER,
    insert_checksum,
    verify_checksum,
)

_NAMES = ("state-0.safetensors", "state-1.safetensors")
_RECORD, _FORMAT = "dustmap.state", 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state in a file: its ``number``, Unix time, and tensors and plain values."""

    path: Path
    number: int
    written: float
    content: dict[str, Any]


def write_state(folder: Path, content: dict[str, Any], *, number: int) -> Path:
    """Write a state over the one before last, and return its path.

    ``content`` holds tensors and JSON without NaN or infinity by name.

    Raises
    ------
    OSError
        If it cannot be written; the files are as they were.
    """
    path = folder / _NAMES[number % 2]
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, value in content.items():
        if isinstance(value, Tensor):
            own = value.detach().cpu().contiguous()
            pointer = own.untyped_storage().data_ptr()
            # The format does not allow tensors that share memory.
            tensors[name] = own.clone() if pointer in memory else own
            memory.add(pointer)
    plain = {name: value for name, value in content.items() if name not in tensors}
    record = {"format": _FORMAT, "number": number, "written": time.time()}
    text = json.dumps({**record, "content": plain}, allow_nan=False)
    with atomic_file(path, overwrite=True) as part:
        try:
            save_file(tensors, part, {_RECORD: text, CHECKSUM_KEY: PLACEHOLDER})
        except SafetensorError as error:
            # Its writer is not Python's and passes the system's error on as text.
            full = "No space left" in str(error)
            raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
        insert_checksum(part)
        # Its writer makes files that nobody else may read.
        part.chmod(0o644)
    return path


def read_state(path: Path, *, tensors: bool = True) -> SavedState:
    """Read a state after comparing it with its hash.

    Without ``tensors`` only the header is read, and nothing is compared.

    Raises
    ------
    InputError
        If the file is absent, incomplete, altered or of another format.
    """
    try:
        if tensors:
            verify_checksum(path)
        with safe_open(path, "pt") as file:
            record = json.loads(file.metadata()[_RECORD])
            version, content = record["format"], record["content"]
            if tensors:
                # In memory that torch has aligned: some products round by it.
                names = file.keys()
                content |= {name: file.get_tensor(name).clone() for name in names}
            number, written = int(record["number"]), float(record["written"])
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise InputError(f"{path} is not a state of this program: {error}") from error
    if version != _FORMAT:
        raise InputError(f"{path} has format {version}; this version reads {_FORMAT}")
    return SavedState(path=path, number=number, written=written, content=content)


def state_files(folder: Path) -> list[Path]:
    """Return the states of a folder, the last one first; before it any unreadable."""

    def number(path: Path) -> float:
        try:
            return read_state(path, tensors=False).number
        except InputError:
            return math.inf

    present = (folder / name for name in _NAMES)
    return sorted((p for p in present if p.is_file()), key=number, reverse=True)


def is_state(path: Path) -> bool:
    """Return whether a file has the name of a state."""
    return path.name in _NAMES and path.is_file()


def newest_state(folder: Path) -> tuple[SavedState | None, list[str]]:
    """Read the newest whole state; return it, and what is wrong with the others.

    Raises
    ------
    InputError
        If there are states and none is whole.
    """
    found, faults = None, []
    for path in state_files(folder):
        try:
            found = read_state(path)
            break
        except InputError as error:
            faults.append(str(error))
    if found is not None:
        faults += _missing(folder, found)
    elif faults:
        raise InputError(
            f"{folder}: no checkpoint can be used. {' '.join(faults)}. Restore one, or "
            "start again with --overwrite"
        )
    return found, faults


def check_states(folder: Path) -> list[str]:
    """Read every state of a folder in full, and describe each in a line.

    Raises
    ------
    InputError
        If one is damaged or missing.
    """
    present = state_files(folder)
    lines = [check_state(path) for path in reversed(present)]
    missing = _missing(folder, read_state(present[0], tensors=False)) if present else []
    if missing:
        raise InputError(missing[0])
    return lines


def check_state(path: Path) -> str:
    """Read a state in full and describe it; raises as `read_state`."""
    found = read_state(path)
    count = sum(isinstance(value, Tensor) for value in found.content.values())
    return (
        f"{path}: checkpoint {found.number} of stage {found.content.get('stage')}, "
        f"{count} tensors, {path.stat().st_size} bytes; all match their SHA-256"
    )


def _missing(folder: Path, found: SavedState) -> list[str]:
    """Say that the other file is missing, which every state but the first one has."""
    other = folder / _NAMES[1 - found.number % 2]
    if found.number == 1 or other.is_file():
        return []
    return [f"{other} is missing, which was written beside {found.path.name}"]
