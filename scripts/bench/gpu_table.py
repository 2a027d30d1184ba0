"""Rows of the GPU benchmark: one JSON and one Markdown file, written as they come."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


class Table:
    """``gpu.json`` and ``gpu.md`` of a folder, replaced as a whole with every row."""

    def __init__(self, folder: Path) -> None:
        self.data, self.page = folder / "gpu.json", folder / "gpu.md"

    def begin(self, machine: Row) -> None:
        """A new table about this machine."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self._write({"machine": machine, "rows": []})

    def add(self, part: str, row: Row) -> None:
        """One more row, on the screen and in both files."""
        content = json.loads(self.data.read_text(encoding="utf-8"))
        content["rows"].append({"part": part, **row})
        self._write(content)
        print("  " + ", ".join(f"{k} {_said(v)}" for k, v in row.items()), flush=True)

    def _write(self, content: Row) -> None:
        _replace(self.data, json.dumps(content, indent=1) + "\n")
        _replace(self.page, _page(content))


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _page(content: Row) -> str:
    lines = ["# dustmap on a device", ""]
    lines += [f"- {name}: {value}" for name, value in content["machine"].items()]
    parts = dict.fromkeys(row["part"] for row in content["rows"])
    for part in parts:
        rows = [r for r in content["rows"] if r["part"] == part]
        names = list(dict.fromkeys(k for row in rows for k in row if k != "part"))
        lines += ["", f"## {part.replace('_', ' ')}", ""]
        lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        for row in rows:
            lines.append("| " + " | ".join(_said(row.get(n, "")) for n in names) + " |")
    return "\n".join(lines) + "\n"


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def facts(device: str) -> Row:
    """The device, versions, load and commit."""
    root = Path(__file__).parents[2]
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True)
        commit = found.stdout.strip() or "unknown"
    except OSError:
        commit = "unknown"
    machine = {
        "device": platform.processor() or platform.machine(),
        "commit": commit,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine["device"] = f"{torch.cuda.device_count()} x {properties.name}"
        machine["memory [GiB]"] = properties.total_memory / 2**30
        machine["CUDA"] = torch.version.cuda
        machine["driver"] = _driver()
    return machine


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split()[0]
    except (OSError, IndexError):
        return "unknown"


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(
    action: Callable[[], Any], device: torch.device, *, least: float = 0.3
) -> float:
    """The median time of an action, of as many as fit into ``least`` seconds (3 to 50).

    The first, which compiles and plans, is not counted.
    """
    action()
    synchronise(device)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < least and len(times) < 50):
        start = time.perf_counter()
        action()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def peak_memory(device: torch.device) -> float:
    """Bytes at the peak since the last call [GiB]; of the device where it counts."""
    if device.type != "cuda":
        import resource

        # Kilobytes, but bytes on macOS.
        unit = 2**30 if sys.platform == "darwin" else 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def attempted(table: Table, part: str, what: str, measure: Callable[[], Row]) -> bool:
    """Add the row that ``measure`` finds, or why there is none (memory, a fault)."""
    try:
        table.add(part, {"what": what, **measure()})
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        table.add(part, {"what": what, "note": "not enough memory"})
    except Exception as error:
        note = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
        table.add(part, {"what": what, "note": note.replace("|", "/")})
        return False
    return True
