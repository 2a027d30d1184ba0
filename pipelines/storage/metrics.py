"""The reported iterations of a fit: one line of JSON each, as it goes."""

from __future__ import annotations

import errno
import json
import os
from collections import UserList
from io import FileIO
from pathlib import Path
from typing import Any

from pipelines.base.progress import say
from pipelines.storage.atomic import replace_text

Record = dict[str, Any]


class Metrics(UserList[Record]):
    """Records that are in a file as soon as they are appended.

    Parameters
    ----------
    path
        The file, or ``None`` to keep them in memory only. Records beyond ``known`` are
        cut off: they will come again.
    known
        How many of its records count.
    """

    def __init__(self, path: Path | None = None, known: int = 0) -> None:
        super().__init__()
        self._stream: FileIO | None = None
        if path is None:
            return
        if path.exists():
            self.data = read_metrics(path)[:known]
        if len(self.data) < known:
            say(
                f"{path}: of {known} records before the checkpoint {len(self)} are left"
            )
        replace_text(path, _lines(self.data))
        # Without a buffer: what cannot be written is not tried again on closing.
        self._stream = path.open("ab", buffering=0)

    def append(self, item: Record) -> None:
        """Add a record and hand it to the system at once."""
        super().append(item)
        if self._stream is None:
            return
        try:
            line = _lines([item]).encode()
            if self._stream.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            # The records stay in memory and are written with the result.
            say(f"metrics.jsonl is no longer written: {error}")
            self.close()

    def sync(self) -> None:
        """Wait until all records are on the disk."""
        if self._stream is not None:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file: no more records will come."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def read_metrics(path: Path) -> list[Record]:
    """Read the records of a file, without a last line that was cut short.

    Raises
    ------
    ValueError
        If another line is no JSON, naming it.
    """
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged: {error}") from error
    return records


def write_metrics(path: Path, records: list[Record]) -> None:
    """Write records all at once."""
    path.write_text(_lines(records))


def _lines(records: list[Record]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
