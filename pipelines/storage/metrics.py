"""The reported iterations of a fit, one line of JSON each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_metrics(path: Path) -> list[Record]:
    """Read the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
