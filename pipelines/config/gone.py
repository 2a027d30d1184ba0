"""Keys that are gone, and what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.base.progress import say

GONE = {
    "budget.minutes": "a fit has no limit of time; use your batch system's limit, and "
    "fit --resume",
}


def drop_gone(recorded: dict[str, Any], path: Path) -> None:
    """Remove these keys from a configuration that an earlier version recorded."""
    dropped = []
    for key in GONE:
        section, _, name = key.partition(".")
        if name in recorded.get(section, ()):
            del recorded[section][name]
            dropped.append(key)
    if dropped:
        say(f"note: {path}: ignored what means nothing any more: {', '.join(dropped)}")
