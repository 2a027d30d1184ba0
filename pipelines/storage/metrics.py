"""The reported iterations of a fit, one line of JSON each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_metrics(path: Path) -> list[Record]:
    """Read the records of a file.

    Raises
    ------
    ValueError
        If a line is not JSON; the message has its number.
    """
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged: {error}") from error
    return records
