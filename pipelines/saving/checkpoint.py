"""Checkpoints: folders of tensors (safetensors) and JSON, whole or absent.

A checkpoint is made under a temporary name, hashed, synced and renamed; then the file
``latest`` names it. The newest two are kept, so that one which was damaged later costs
no more than the time since the one before.
"""

from __future__ import annotations

import errno
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.storage.atomic import (
    atomic_directory,
    check_manifest,
    remove_directory,
    replace_text,
    write_manifest,
)

RECORD, TENSORS, POINTER = "checkpoint.json", "state.safetensors", "latest"
_FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One that was read: tensors and plain values, ``written`` at this Unix time."""

    path: Path
    written: float
    content: dict[str, Any]


def write_checkpoint(
    folder: Path, content: dict[str, Any], *, before: Path | None
) -> Path:
    """Write the next checkpoint of a folder; only it and the one ``before`` are kept.

    ``content`` is tensors, and plain JSON without NaN or infinity; ``before`` is the
    newest that is known to be whole: there may be newer ones that are not.

    Raises
    ------
    OSError
        If it cannot be written; those before are as they were.
    """
    folder.mkdir(exist_ok=True)
    present = checkpoints(folder)
    number = 1 + (int(present[-1].name) if present else 0)
    path = folder / f"{number:06d}"
    tensors = {n: value for n, value in content.items() if isinstance(value, Tensor)}
    plain = {n: value for n, value in content.items() if n not in tensors}
    with atomic_directory(path, overwrite=False) as part:
        record = {"format": _FORMAT, "written": time.time(), **plain}
        (part / RECORD).write_text(json.dumps(record, allow_nan=False) + "\n")
        _save(tensors, part / TENSORS)
        write_manifest(part)
    replace_text(folder / POINTER, path.name + "\n")
    for old in present:
        if old != before:
            remove_directory(old)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first, whole or not."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.name.isdigit() and p.is_dir())


def is_checkpoint(path: Path) -> bool:
    """Whether a checkpoint is or was here, by any of its own files."""
    return path.is_dir() and any((path / n).exists() for n in (RECORD, TENSORS))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint after comparing it with its hashes.

    Raises
    ------
    InputError
        If it is absent, incomplete, altered or of another format.
    """
    check_manifest(path)
    try:
        content = json.loads((path / RECORD).read_text())
        version, written = content.pop("format"), float(content.pop("written"))
        # In memory that is aligned as torch's own is: some products round by it.
        loaded = load_file(path / TENSORS)
        content |= {name: tensor.clone() for name, tensor in loaded.items()}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise InputError(f"{path} is no checkpoint of this program: {error}") from error
    if version != _FORMAT:
        raise InputError(f"{path} has format {version}; this version reads {_FORMAT}")
    return Checkpoint(path=path, written=written, content=content)


def newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and why newer ones cannot be used.

    Raises
    ------
    InputError
        If there are checkpoints and none is whole.
    """
    faults = _missing(folder)
    for path in reversed(checkpoints(folder)):
        try:
            return read_checkpoint(path), faults
        except InputError as error:
            faults.append(str(error))
    if not faults:
        return None, []
    raise InputError(
        f"{folder}: no checkpoint can be used. {' '.join(faults)}. Restore one, or "
        "start again with --overwrite"
    )


def check_checkpoints(folder: Path) -> list[str]:
    """One line for every checkpoint of a folder.

    Raises
    ------
    InputError
        If any is damaged, or the one that was named last is missing.
    """
    missing = _missing(folder)
    if missing:
        raise InputError(missing[0])
    return [check_checkpoint(path) for path in checkpoints(folder)]


def check_checkpoint(path: Path) -> str:
    """Read a checkpoint in full, and say what it is; raises as `read_checkpoint`."""
    found = read_checkpoint(path).content
    count = sum(isinstance(value, Tensor) for value in found.values())
    return (
        f"{path}: checkpoint of stage {found.get('stage')}, {count} tensors, "
        f"{size_of(path)} bytes; all match their SHA-256"
    )


def size_of(path: Path) -> int:
    """Bytes of a checkpoint's files."""
    return sum(item.stat().st_size for item in path.iterdir())


def _missing(folder: Path) -> list[str]:
    """What the pointer says should be here and is not."""
    pointer, present = folder / POINTER, checkpoints(folder)
    if not pointer.is_file():
        # The first of all may have been renamed and not yet named.
        return [f"{pointer} is missing"] if len(present) > 1 else []
    named = pointer.read_text(errors="replace").strip()
    if not named.isdigit():
        return [f"{pointer} is damaged: it names no checkpoint"]
    if not present or present[-1].name < named:
        return [f"{folder / named} is missing, the newest that was written"]
    return []


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    plain: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        pointer = own.untyped_storage().data_ptr()
        # The format knows no tensors that share memory.
        plain[name] = own.clone() if pointer in memory else own
        memory.add(pointer)
    try:
        save_file(plain, path)
    except SafetensorError as error:
        # The writer is not Python's: the system's error comes as text.
        full = "No space left" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
    # Its writer makes files that nobody else may read.
    path.chmod(0o644)
