"""A parquet file's own SHA-256, kept in its footer.

Parquet's page checksums leave out page headers and the footer, in which names, units,
statistics and provenance are. The seal is that of the whole file with zeros in its own
place.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from pipelines.base.errors import InputError

SEAL_KEY = "dustmap.sha256"
UNSEALED = "0" * 64
"""What stands in the seal's place until all else is written."""
_MAGIC = b"PAR1"
_BLOCK = 1 << 20
# In the footer a text is its length as a varint, a field's mark, and its bytes.
_NEAR = 8


def seal(path: Path) -> None:
    """Put its hash into a file that was written with `UNSEALED` under `SEAL_KEY`.

    Raises
    ------
    ValueError
        If it has no such place.
    """
    place = _place(path)
    digest = _digest(path, place)
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(digest)


def check_seal(path: Path) -> None:
    """Compare a file with its seal.

    Raises
    ------
    InputError
        If it was altered, cut short, or never sealed.
    """
    try:
        place = _place(path)
    except ValueError as error:
        raise InputError(
            f"{path} is damaged or was not written by this version: {error}. Restore "
            "it from a copy or write it again"
        ) from None
    with path.open("rb") as stream:
        stream.seek(place)
        written = stream.read(len(UNSEALED))
    if written != _digest(path, place):
        raise InputError(
            f"{path} is damaged: it does not match the SHA-256 in its footer. Restore "
            "it from a copy or write it again"
        )


def _place(path: Path) -> int:
    """Where in the file the seal is."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size < 12:
            raise ValueError("it is shorter than any parquet file")
        stream.seek(size - 8)
        length, magic = struct.unpack("<I4s", stream.read(8))
        if magic != _MAGIC or length > size - 12:
            raise ValueError("it does not end like a parquet file")
        start = size - 8 - length
        stream.seek(start)
        footer = stream.read(length)
    key = footer.rfind(SEAL_KEY.encode())
    if key < 0:
        raise ValueError("its footer holds no seal")
    after = key + len(SEAL_KEY)
    for place in range(after, after + _NEAR):
        value = footer[place : place + len(UNSEALED)]
        if len(value) == len(UNSEALED) and _is_hexadecimal(value):
            return start + place
    raise ValueError("its seal is broken")


def _is_hexadecimal(value: bytes) -> bool:
    return all(byte in b"0123456789abcdef" for byte in value)


def _digest(path: Path, place: int) -> bytes:
    """The hash of a file with zeros for its seal, in hexadecimal."""
    state = hashlib.sha256()
    with path.open("rb") as stream:
        left = place
        while left:
            block = stream.read(min(left, _BLOCK))
            state.update(block)
            left -= len(block)
        stream.read(len(UNSEALED))
        state.update(UNSEALED.encode())
        while block := stream.read(_BLOCK):
            state.update(block)
    return state.hexdigest().encode()
