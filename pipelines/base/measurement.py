"""Reports of measurements: the processor, Markdown tables, strict JSON."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def processor() -> str:
    """Return the system's name of the processor model."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def peak_memory() -> int:
    """Return the most memory that this process had until now [bytes]."""
    import resource  # Linux and macOS

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def table(rows: Sequence[Row]) -> str:
    """Format rows in Markdown, with a column for every key of any of them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    lines += [[_text(row.get(name)) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return "×".join(map(str, value))
    return str(value).replace("|", "\\|")


def plain(value: Any) -> Any:
    """Return values for strict JSON: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
