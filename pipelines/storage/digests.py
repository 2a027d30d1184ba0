"""SHA-256 of files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import InputError


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


def input_digests(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """List name and SHA-256 of an input file, or of every file of an input folder.

    Raises
    ------
    InputError
        If there is neither.
    """
    source = Path(path)
    if not source.exists():
        raise InputError(f"{source} does not exist")
    files = sorted(p for p in source.rglob("*") if p.is_file()) or [source]
    return [{"name": file.name, "sha256": digest_of(file).sha256} for file in files]
