"""Files that are whole or absent: the only code here that renames a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import InputError


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success fsync and rename it there.

    Raises
    ------
    InputError
        If ``path`` exists and ``overwrite`` is false, or its folder cannot be
        written. Whatever fails inside the block leaves ``path`` as it was.
    """
    target = Path(path)
    temporary = _temporary_beside(target, overwrite=overwrite)
    try:
        yield temporary
        _fsync(temporary)
        os.replace(temporary, target)
        _fsync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(
    path: str | os.PathLike[str], *, overwrite: bool
) -> Iterator[Path]:
    """Yield a temporary directory beside ``path``; on success it takes its place.

    An existing directory is moved aside before and removed after, so that a killed
    run leaves the old one, the new one or none, never a mixture.
    """
    target = Path(path)
    temporary = _temporary_beside(target, overwrite=overwrite)
    temporary.mkdir()
    retired = temporary.with_name(temporary.name + ".old")
    try:
        yield temporary
        for item in sorted(temporary.rglob("*")):
            _fsync(item)
        _fsync(temporary)
        if target.exists():
            os.replace(target, retired)
        os.replace(temporary, target)
        _fsync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if retired.exists():
            if not target.exists():
                os.replace(retired, target)
            elif retired.is_dir():
                shutil.rmtree(retired)
            else:
                retired.unlink()


def _temporary_beside(target: Path, *, overwrite: bool) -> Path:
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists: choose another output or pass --overwrite")
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: make it first (output {target})")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is read-only: cannot write {target.name} there")
    name = tempfile.mktemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    return Path(name)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
