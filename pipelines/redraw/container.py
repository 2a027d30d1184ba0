"""The file of samples: a header of JSON, blocks of bytes, a seal over all of it.

``DUSTMAP SAMPLES\\n``, the header's length (8 bytes, little endian), the header, the
blocks it lists one after another, and the SHA-256 of all before (32 bytes).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.errors import InputError
from pipelines.storage.atomic import atomic_file

MAGIC = b"DUSTMAP SAMPLES\n"
VERSION = 1
_CHUNK, _SEAL = 1 << 20, 32
_MEND = "Restore it from a copy or write it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An open file: its header, and where its blocks are."""

    path: Path
    header: dict[str, Any]
    places: dict[str, tuple[int, int]]

    def block(self, name: str) -> bytes:
        """The bytes of one block."""
        start, size = self.places[name]
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(size)


def write_container(
    path: Path, header: dict[str, Any], blocks: Mapping[str, bytes], *, overwrite: bool
) -> int:
    """Write header and blocks; the number of bytes of the file."""
    listed = [[name, len(data)] for name, data in blocks.items()]
    record = {"version": VERSION, **header, "blocks": listed}
    text = json.dumps(record, allow_nan=False).encode()
    whole = [MAGIC, len(text).to_bytes(8, "little"), text, *blocks.values()]
    seal = hashlib.sha256()
    with atomic_file(path, overwrite=overwrite) as part, part.open("wb") as stream:
        for piece in whole:
            seal.update(piece)
            stream.write(piece)
        stream.write(seal.digest())
    return sum(len(piece) for piece in whole) + _SEAL


def is_container(path: Path) -> bool:
    """Whether a file begins like one."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_container(path: str | os.PathLike[str]) -> Container:
    """Open a file after comparing it with its seal.

    Raises
    ------
    InputError
        If it is absent, none of this kind, of another version, cut short or altered.
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(
            f"{source} is no file of samples: expected one that `dustmap samples RUN "
            "-o FILE` wrote"
        )
    if not is_container(source):
        raise InputError(
            f"{source} is no file of samples: expected one that `dustmap samples RUN "
            "-o FILE` wrote, and it begins like another kind of file"
        )
    _check_seal(source)
    with source.open("rb") as stream:
        stream.seek(len(MAGIC))
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        start = stream.tell()
    if header["version"] != VERSION:
        raise InputError(
            f"{source} has version {header['version']} of this format; this program "
            f"reads {VERSION}"
        )
    places = {}
    for name, length in header["blocks"]:
        places[name] = (start, length)
        start += length
    return Container(path=source, header=header, places=places)


def _check_seal(path: Path) -> None:
    left = path.stat().st_size - _SEAL
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while left > 0 and (piece := stream.read(min(_CHUNK, left))):
            found.update(piece)
            left -= len(piece)
        if left or stream.read() != found.digest():
            raise InputError(
                f"{path} is damaged: it is not what its SHA-256 says. {_MEND}"
            )
