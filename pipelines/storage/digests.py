"""SHA-256 of files, and of safetensors files inside themselves.

A file's own checksum is the hash of the whole file with zeros in place of the checksum.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import InputError

CHECKSUM_KEY = "dustmap.sha256"
PLACEHOLDER = "0" * 64
"""Content of the checksum's place before it is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """SHA-256 (hexadecimal) and size [bytes] of one file."""

    sha256: str
    size: int


def digest_of(path: Path) -> FileDigest:
    """Return SHA-256 and size of a file."""
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileDigest(sha256=sha256, size=stream.tell())


def visible_files(folder: Path) -> list[Path]:
    """Return the files under a folder in order, without hidden ones.

    Desktops write ``.DS_Store``, ``._NAME`` and the like into any folder.
    """
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]


def input_digests(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """List name and SHA-256 of an input file, or of every file of an input folder.

    Raises `InputError` if the path does not exist.
    """
    source = Path(path)
    if not source.exists():
        raise InputError(f"{source} does not exist")
    files = visible_files(source) or [source]
    return [{"name": file.name, "sha256": digest_of(file).sha256} for file in files]


def insert_checksum(path: Path) -> None:
    """Insert the checksum into a file written with `PLACEHOLDER` under `CHECKSUM_KEY`.

    Raises `InputError` if the file has no place for it.
    """
    place, _, expected = _checksum(path)
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(expected)


def verify_checksum(path: Path) -> None:
    """Compare a file with its checksum.

    Raises `InputError` if the file was altered, truncated, or has no checksum.
    """
    _, found, expected = _checksum(path)
    if found != expected:
        raise InputError(
            f"{path} is damaged: it does not match its own SHA-256. Restore "
            "it from a copy or write it again"
        )


def _checksum(path: Path) -> tuple[int, bytes, bytes]:
    """Return the checksum's place, the stored checksum, and the correct one."""
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        mark = b'"' + CHECKSUM_KEY.encode() + b'":"'
        before = content.find(mark)
        place = before + len(mark)
        end = place + len(PLACEHOLDER)
        found = content[place:end]
        if before < 0 or not re.fullmatch(rb"[0-9a-f]{64}", found):
            raise InputError(
                f"{path} is damaged or was not written by this version: it holds "
                "no checksum. Restore it from a copy or write it again"
            )
        with memoryview(content) as view, view[:place] as head, view[end:] as tail:
            state = hashlib.sha256(head)
            state.update(PLACEHOLDER.encode())
            state.update(tail)
    return place, found, state.hexdigest().encode()
