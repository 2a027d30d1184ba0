"""What the scripts of the papers share: sizes, machine, a table "paper | here", files.

The paper is Wu, Miller, Anderson, Pleiss, Blei & Cunningham (2021), "Hierarchical
Inducing Point Gaussian Process for Inter-domain Observations", AISTATS, PMLR 130.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Self

import torch
from matplotlib.figure import Figure

from pipelines.base.measurement import Row, loads, plain, processor, table
from pipelines.figures.style import save_figure
from pipelines.storage.atomic import atomic_file

Size = Literal["quick", "default", "full"]

NOT_RUN = "not run"
_NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of the paper beside the same one measured in this run.

    Parameters
    ----------
    what
        The quantity, with its unit.
    source
        Where the paper has it.
    paper
        Its figure; ``None`` where it states none.
    here
        What this run measured; ``None`` where it did not.
    remark
        What else differs.
    """

    what: str
    source: str
    paper: float | str | None
    here: float | str | None
    remark: str = ""

    def row(self) -> Row:
        """As one row of the table."""
        return {
            "quantity": self.what,
            "in the paper": self.source,
            "paper": _NOT_STATED if self.paper is None else self.paper,
            "here": NOT_RUN if self.here is None else self.here,
            "remark": self.remark,
        }


def parser(about: str | None, *, threads: int = 1) -> argparse.ArgumentParser:
    """Options that every script of the paper has."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    size = options.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="tiny: a smoke run")
    size.add_argument("--full", action="store_true", help="the paper's own sizes")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--threads", type=int, default=threads, help="of torch")
    return options


def size_of(options: argparse.Namespace) -> Size:
    """How large a run the command line asks for."""
    if options.quick:
        return "quick"
    return "full" if options.full else "default"


def machine() -> Row:
    """What the figures were taken on, when, by which commit, and beside what load."""
    return {
        "processor": processor(),
        "accelerator": _accelerator(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load averages": [round(load, 2) for load in os.getloadavg()],
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scipy")},
    }


def _accelerator() -> str:
    if not torch.cuda.is_available():
        return "none"
    return f"{torch.cuda.get_device_name()} (unused)"


def _commit() -> str:
    """The commit of this file's checkout, with ``-dirty`` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except OSError:
        return "unknown (no git)"
    return done.stdout.strip() or "unknown (no git checkout)"


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Wall time of the block [s], as the only entry of a list, when it has ended."""
    taken = [math.nan]
    started = time.perf_counter()
    yield taken
    taken[0] = time.perf_counter() - started


@dataclass(slots=True, kw_only=True)
class Report:
    """One experiment's results: ``NAME.json``, ``NAME.md`` and ``NAME.png``.

    Parameters
    ----------
    name
        Of the files.
    about
        What was done, for the reader of the tables.
    settings
        The command line.
    comparisons
        The table "paper | here".
    tables
        Further rows by title.
    notes
        Lines under the tables.
    """

    name: str
    about: str
    settings: Row
    comparisons: list[Comparison] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    before: Row = field(default_factory=machine)
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, name: str, about: str | None, options: argparse.Namespace) -> Self:
        """A report on this command line; its threads are set, its folder is made."""
        if "threads" in options:
            torch.set_num_threads(options.threads)
        options.output.mkdir(parents=True, exist_ok=True)
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
        }
        return cls(name=name, about=" ".join((about or "").split()), settings=settings)

    def write(
        self,
        output: Path,
        draw: Callable[[Figure], None] | None = None,
        *,
        shape: tuple[float, float] = (7.2, 4.4),
    ) -> None:
        """Write the three files, each whole or not at all, and print the tables."""
        seconds = time.perf_counter() - self.started
        after = [round(load, 2) for load in os.getloadavg()]
        command = shlex.join(["python", *sys.argv])
        record = {
            "name": self.name,
            "command": command,
            "settings": self.settings,
            "machine": self.before,
            "load averages after": after,
            "seconds": seconds,
            "tables": self.tables,
            "notes": self.notes,
        }
        if self.comparisons:
            record["comparisons"] = [asdict(entry) for entry in self.comparisons]
        contents = {
            "json": json.dumps(plain(record), indent=1, allow_nan=False) + "\n",
            "md": self._markdown(command, after, seconds),
        }
        for suffix, text in contents.items():
            path = output / f"{self.name}.{suffix}"
            with atomic_file(path, overwrite=True) as temporary:
                temporary.write_text(text, encoding="utf-8")
        if draw is not None:
            figure = Figure(figsize=shape, layout="constrained")
            draw(figure)
            save_figure(figure, output / f"{self.name}.png")
        print(contents["md"], end="")

    def _markdown(self, command: str, after: Sequence[float], seconds: float) -> str:
        parts = [self._head(command, after, seconds)]
        if rows := [entry.row() for entry in self.comparisons]:
            parts.append(f"**Paper and here**\n\n{table(rows)}")
        parts += [f"**{title}**\n\n{table(own)}" for title, own in self.tables.items()]
        if self.notes:
            parts.append("".join(f"- {note}\n" for note in self.notes))
        return "\n".join(parts)

    def _head(self, command: str, after: Sequence[float], seconds: float) -> str:
        facts = dict(self.before)
        before = facts.pop("load averages")
        listing = ", ".join(f"{name} {value}" for name, value in facts.items())
        smoke = "**A smoke run: its numbers mean little.** "
        return (
            f"{smoke if self.settings.get('quick') else ''}{self.about}\n\n"
            f"- `{command}`\n- {listing}\n- load average {loads(before)} before, "
            f"{loads(after)} after; {seconds:.0f} s in all\n"
        )
