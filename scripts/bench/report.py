"""What the benchmarks share: machine, Markdown tables, the folder of results."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pipelines.base.measurement import Row, loads, plain, processor, table
from pipelines.figures.style import save_figure
from pipelines.storage.atomic import atomic_file

_PACKAGES = ("dustmap", "torch", "numpy", "scipy", "numba")


def machine() -> Row:
    """What the times were taken on, and what else was running."""
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load averages": list(os.getloadavg()),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--quick", action="store_true", help="tiny: a smoke run")
    options.add_argument("--seed", type=int, default=1)
    return options


@dataclass(slots=True, kw_only=True)
class Report:
    """One benchmark's results: ``NAME.json``, ``NAME.md`` and ``NAME.png``.

    Parameters
    ----------
    name
        Of the files.
    about
        What was done, for the reader of the table.
    settings
        Of this run.
    tables
        Rows by title.
    notes
        Lines under the tables.
    """

    name: str
    about: str
    settings: Row
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    before: Row = field(default_factory=machine)

    @classmethod
    def of(cls, name: str, about: str | None, options: argparse.Namespace) -> Report:
        """A report on this command line; its folder and ``work`` in it are made."""
        (options.output / "work").mkdir(parents=True, exist_ok=True)
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
        }
        return cls(name=name, about=about or "", settings=settings)

    def write(self, output: Path, draw: Callable[[Figure], None] | None = None) -> None:
        """Write all files and print the tables."""
        command = shlex.join(["python", *sys.argv])
        after = list(os.getloadavg())
        record = {
            "name": self.name,
            "command": command,
            "settings": self.settings,
            "machine": self.before,
            "load averages after": after,
            "tables": self.tables,
            "notes": self.notes,
        }
        text = json.dumps(plain(record), indent=1, allow_nan=False)
        parts = [self._head(command, after)]
        parts += [f"**{t}**\n\n{table(rows)}" for t, rows in self.tables.items()]
        if self.notes:
            parts.append("".join(f"- {note}\n" for note in self.notes))
        for suffix, content in (("json", text), ("md", "\n".join(parts))):
            path = output / f"{self.name}.{suffix}"
            with atomic_file(path, overwrite=True) as temporary:
                temporary.write_text(content.rstrip() + "\n", encoding="utf-8")
        if draw is not None:
            figure = Figure(figsize=(7.0, 4.6), layout="constrained")
            draw(figure)
            save_figure(figure, output / f"{self.name}.png")
        print("\n".join(parts))

    def _head(self, command: str, after: Sequence[float]) -> str:
        facts = dict(self.before)
        before = facts.pop("load averages")
        listing = ", ".join(f"{name} {value}" for name, value in facts.items())
        smoke = "**A smoke run: its numbers mean nothing.** "
        return (
            f"{smoke if self.settings.get('quick') else ''}"
            f"{' '.join(self.about.split())}\n\n"
            f"- `{command}`\n- {listing}\n"
            f"- load average {loads(before)} before, {loads(after)} after\n"
        )
