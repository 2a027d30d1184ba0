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
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file
from pipelines.storage.digests import (
    CHECKSUM_KEY,
    PLACEHOLDER,
    insert_checksum,
    verify_checksum,
)

_NAMES = ("state-0.safetensors", "state-1.safetensors")
_RECORD, _FORMAT = "dustmap.state", 4
# What stands in JSON for a tensor, and for bytes as a tensor.
_TENSOR, _BYTES = "$tensor", "$bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state in a file: its ``number``, Unix time, and tensors and plain values."""

    path: Path
    number: int
    written: float
    content: dict[str, Any]


def write_state(folder: Path, content: dict[str, Any], *, number: int) -> Path:
    """Write a state over the one before last, and return its path.

    ``content`` is a tree of dicts, lists and dataclasses with tensors, bytes, texts and
    finite numbers.

    Raises
    ------
    OSError
        If it cannot be written; the files are as they were.
    """
    path = folder / _NAMES[number % 2]
    tensors: dict[str, Tensor] = {}
    plain, memory = _packed(content, "", tensors), set()
    for name, value in tensors.items():
        own = value.detach().cpu().contiguous()
        pointer = own.untyped_storage().data_ptr()
        # The format does not allow tensors that share memory.
        tensors[name] = own.clone() if pointer in memory else own
        memory.add(pointer)
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
    """Read a state after comparing it with its hash; dataclasses come back as dicts.

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
                content = _unpacked(content, lambda n: file.get_tensor(n).clone())
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
    return (
        f"{path}: checkpoint {found.number} of stage {found.content.get('stage')}, "
        f"{path.stat().st_size} bytes, which match their SHA-256"
    )


def _missing(folder: Path, found: SavedState) -> list[str]:
    """Say that the other file is missing, which every state but the first one has."""
    other = folder / _NAMES[1 - found.number % 2]
    if found.number == 1 or other.is_file():
        return []
    return [f"{other} is missing, which was written beside {found.path.name}"]


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a tree as JSON has it, with the names of its tensors in their places."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {_TENSOR: name}
    if isinstance(value, bytes):
        numbers = np.frombuffer(value, np.uint8).copy()
        tensors[name] = torch.from_numpy(numbers)
        return {_BYTES: name}
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, dict):
        return {k: _packed(v, f"{name}/{k}", tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(v, f"{name}/{n}", tensors) for n, v in enumerate(value)]
    return value


def _unpacked(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """Return a tree with its tensors; the inverse of `_packed`."""
    if isinstance(value, list):
        return [_unpacked(each, tensor) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return tensor(value[_TENSOR])
    if value.keys() == {_BYTES}:
        return tensor(value[_BYTES]).numpy().tobytes()
    return {name: _unpacked(each, tensor) for name, each in value.items()}
