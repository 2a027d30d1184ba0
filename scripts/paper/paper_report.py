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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Self

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.base.table import Row, Table, strict_json
from pipelines.figures.style import save_figure
from pipelines.storage.atomic import atomic_file

Size = Literal["quick", "default"]

NOT_RUN = "not run"
SMOKE = "**A smoke run: its numbers mean little.** "
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
        """Return the row of the table."""
        return {
            "quantity": self.what,
            "in the paper": self.source,
            "paper": _NOT_STATED if self.paper is None else self.paper,
            "here": NOT_RUN if self.here is None else self.here,
            "remark": self.remark,
        }


def parser(about: str | None) -> argparse.ArgumentParser:
    """Make the options that every script of the paper has."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--quick", action="store_true", help="tiny: a smoke run")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--threads", type=int, default=1, help="of torch")
    return options


def size_of(options: argparse.Namespace) -> Size:
    """Return how large a run the command line wants."""
    return "quick" if options.quick else "default"


@contextmanager
def refusals() -> Iterator[None]:
    """Turn bad input within the block into one line and exit status 2."""
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def machine() -> Row:
    """Describe what the figures were taken on, when and by which commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scipy")},
    }


def _processor() -> str:
    """Return the system's name of the processor model."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.is_file() else ()
    models = (line for line in lines if line.startswith("model name"))
    model = next(models, "").partition(":")[2].strip()
    return model or platform.processor() or "unknown"


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


def facts(machine: Row) -> str:
    """List what a report says of its machine."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Wall time of the block [s], as the only entry of a list, when it has ended."""
    taken = [math.nan]
    started = time.perf_counter()
    yield taken
    taken[0] = time.perf_counter() - started


# The abscissae and ordinates of one line of a figure.
Curve = tuple[Sequence[float], Sequence[float]]


def plot(
    curves: Mapping[str, Curve],
    x: str,
    y: str,
    scales: tuple[str, str] = ("log", "log"),
) -> Figure:
    """Draw one panel of labelled lines; ``x`` and ``y`` name its axes."""
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, (places, values) in curves.items():
        axes.plot(places, values, "-o", markersize=4, label=label)
    axes.set(xlabel=x, ylabel=y, xscale=scales[0], yscale=scales[1])
    axes.legend(frameon=False, fontsize="x-small")
    return figure


def group(
    rows: Iterable[Row], label: Callable[[Row], str], x: str, y: str
) -> dict[str, Curve]:
    """Gather two columns of a table as curves, one for each label."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        places, values = curves.setdefault(label(row), ([], []))
        places.append(row[x])
        values.append(row[y])
    return dict(curves)


def root_mean_square(error: Float[Tensor, " n"]) -> float:
    """Compute ``√(Σ e² / n)``."""
    return float((error**2).mean().sqrt())


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
        The rows behind it by title.
    notes
        Data that were missing or refused.
    """

    name: str
    about: str
    settings: Row
    comparisons: list[Comparison] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    machine: Row = field(default_factory=machine)
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, name: str, about: str | None, options: argparse.Namespace) -> Self:
        """Start a report on this command line; set threads and make its folder."""
        if "threads" in options:
            torch.set_num_threads(options.threads)
        options.output.mkdir(parents=True, exist_ok=True)
        settings = {
            key: str(value) if isinstance(value, Path) else value
            for key, value in vars(options).items()
        }
        return cls(name=name, about=" ".join((about or "").split()), settings=settings)

    def write(self, output: Path, figure: Figure | None = None) -> None:
        """Write the files, each whole or not at all, and print the tables."""
        record = {
            "name": self.name,
            "about": self.about,
            "command": shlex.join(["python", *sys.argv]),
            "settings": self.settings,
            "machine": self.machine,
            "seconds": time.perf_counter() - self.started,
            "comparisons": [asdict(entry) for entry in self.comparisons],
            "tables": self.tables,
            "notes": self.notes,
        }
        contents = {
            "json": json.dumps(strict_json(record), indent=1, allow_nan=False) + "\n",
            "md": self._markdown(record["command"], record["seconds"]),
        }
        for suffix, text in contents.items():
            path = output / f"{self.name}.{suffix}"
            with atomic_file(path, overwrite=True) as temporary:
                temporary.write_text(text, encoding="utf-8")
        if figure is not None:
            save_figure(figure, output / f"{self.name}.png")
        print(contents["md"], end="")

    def _markdown(self, command: str, seconds: float) -> str:
        smoke = SMOKE if self.settings.get("quick") else ""
        parts = [
            f"{smoke}{self.about}\n\n- `{command}`, {seconds:.0f} s\n"
            f"- {facts(self.machine)}\n"
        ]
        if rows := [entry.row() for entry in self.comparisons]:
            parts.append(f"**Paper and here**\n\n{Table.of_rows(rows).text()}")
        for title, own in self.tables.items():
            parts.append(f"**{title}**\n\n{Table.of_rows(own).text()}")
        parts += [f"- {note}\n" for note in self.notes]
        return "\n".join(parts)
