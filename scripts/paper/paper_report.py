"""What the scripts of the papers share: a run from the command line to its files.

A script states its sizes, an experiment that fills a report, and the paper's figures;
:func:`run_script` does the rest. The paper is Wu, Miller, Anderson, Pleiss, Blei &
Cunningham (2021), "Hierarchical Inducing Point Gaussian Process for Inter-domain
Observations", AISTATS, PMLR 130, unless a script names another.
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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from pipelines.base.errors import InputError
from pipelines.base.progress import say
from pipelines.base.table import Row, Table, strict_json
from pipelines.figures.style import save_figure
from pipelines.storage.atomic import atomic_file

NOT_RUN = "not run"
_NOT_STATED = "not stated"

Found = TypeVar("Found")


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


def default_folder() -> Path:
    """``$DUSTMAP_DATA``, or ``../shared/data`` beside the repository."""
    named = os.environ.get("DUSTMAP_DATA")
    if named:
        return Path(named)
    return Path(__file__).resolve().parents[3] / "shared" / "data"


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


@contextmanager
def stopwatch(
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[list[float]]:
    """Time of the block [s], as the only entry of a list, when it has ended."""
    taken = [math.nan]
    started = clock()
    yield taken
    taken[0] = clock() - started


def plot(
    rows: Iterable[Row],
    label: Callable[[Row], str],
    y: str,
    x: str = "M",
    scales: tuple[str, str] = ("log", "log"),
) -> Figure:
    """Draw two columns of a table as lines, one for each label of its rows."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(label(row), []).append(row)
    figure = Figure(figsize=(6.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, own in lines.items():
        places, values = ([row[column] for row in own] for column in (x, y))
        axes.plot(places, values, "-o", markersize=4, label=name)
    axes.set(xlabel="inducing points M" if x == "M" else x, ylabel=y)
    axes.set(xscale=scales[0], yscale=scales[1])
    axes.legend(frameon=False, fontsize="x-small")
    return figure


def averaged(
    rows: Iterable[Row], *, by: Sequence[str], columns: Sequence[str], count: str = ""
) -> list[Row]:
    """Average columns over the rows that agree in others; ``count`` names their number.

    For repetitions with other seeds or splits.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [
        {
            **dict(zip(by, key, strict=True)),
            **({count: len(own)} if count else {}),
            **{name: fmean(row[name] for row in own) for name in columns},
        }
        for key, own in groups.items()
    ]


def cell(rows: Iterable[Row], column: str, **where: Any) -> Any:
    """Return a column of the row with these values in others; ``None`` without one."""
    for row in rows:
        if all(row.get(name) == value for name, value in where.items()):
            return row.get(column)
    return None


def ratio(
    above: float | None, below: float | None, digits: str = ""
) -> float | str | None:
    """Divide what was measured; ``None`` if either was not."""
    if above is None or below is None:
        return None
    return f"{above / below:{digits}}" if digits else above / below


def root_mean_square(error: Float[Tensor, " n"]) -> float:
    """Compute ``√(Σ e² / n)``."""
    return float((error**2).mean().sqrt())


def shown(entry: Mapping[str, Any]) -> Row:
    """Return the row of the table "paper | here" for one comparison."""
    paper, here = entry["paper"], entry["here"]
    return {
        "quantity": entry["what"],
        "in the paper": entry["source"],
        "paper": _NOT_STATED if paper is None else paper,
        "here": NOT_RUN if here is None else here,
        "remark": entry["remark"],
    }


def section(
    record: Mapping[str, Any], command: str, tables: Mapping[str, Sequence[Row]]
) -> str:
    """Say in Markdown what a record is of, with some tables by their titles."""
    smoke = "**A smoke run: its numbers mean little.** "
    known = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    parts = [
        f"{smoke if record['settings'].get('quick') else ''}{record['about']}\n",
        f"- `{command}`, {record['seconds']:.0f} s\n- {known}\n",
    ]
    for title, rows in tables.items():
        parts += [f"**{title}**\n"] if title else []
        parts.append(Table.of_rows(rows).text())
    return "\n".join([*parts, *(f"- {note}\n" for note in record["notes"])])


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
        The table "paper | here", by `compare`.
    tables
        The rows behind it by title.
    notes
        Data that were missing or refused.
    figure
        If there is one.
    """

    name: str
    about: str
    settings: Row
    comparisons: list[Row] = field(default_factory=list)
    tables: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figure: Figure | None = None
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

    def collect(self, title: str, rows: Iterable[Row]) -> list[Row]:
        """Append rows to a table, and say each one as it is made."""
        table = self.tables.setdefault(title, [])
        for row in rows:
            say(str(row))
            table.append(row)
        return table

    def compare(
        self,
        what: str,
        source: str,
        paper: float | str | None,
        here: float | str | None,
        remark: str = "",
    ) -> None:
        """Set a figure of the paper beside the same one here.

        ``source`` is where the paper has it; ``None`` stands for what it does not state
        or this run did not measure. The remark says what else differs.
        """
        figures = {"source": source, "paper": paper, "here": here}
        self.comparisons.append({"what": what, **figures, "remark": remark})

    def read(
        self, folder: Path | None, file: str, reader: Callable[[Path], Found]
    ) -> Found | None:
        """Read a file of a folder of data; by default note one that is not there."""
        path = (folder or default_folder()) / file
        if folder is None and not path.is_file():
            self.notes.append(f"{NOT_RUN}: {file} was not found")
            return None
        return reader(path)

    def write(self, output: Path) -> None:
        """Write the files, each whole or not at all, and print the tables."""
        record = {
            "name": self.name,
            "about": self.about,
            "command": shlex.join(["python", *sys.argv]),
            "settings": self.settings,
            "machine": self.machine,
            "seconds": time.perf_counter() - self.started,
            "comparisons": self.comparisons,
            "tables": self.tables,
            "notes": self.notes,
        }
        compared = [shown(entry) for entry in self.comparisons]
        first = {"Paper and here": compared} if compared else {}
        contents = {
            "json": json.dumps(strict_json(record), indent=1, allow_nan=False) + "\n",
            "md": section(record, record["command"], {**first, **self.tables}),
        }
        for suffix, text in contents.items():
            path = output / f"{self.name}.{suffix}"
            with atomic_file(path, overwrite=True) as temporary:
                temporary.write_text(text, encoding="utf-8")
        if self.figure is not None:
            save_figure(self.figure, output / f"{self.name}.png")
        print(contents["md"], end="")


def run_script(
    file: str,
    about: str | None,
    experiment: Callable[[Report, SimpleNamespace], None],
    sizes: Mapping[str, tuple[Any, Any]],
    /,
    **paths: str,
) -> None:
    """Run the experiment of a script as the command line wants it; write its report.

    It is given the options and its ``sizes``, of which the second ones are of a smoke
    run. ``paths`` explain options of its own. Bad input is one line and exit status 2.
    """
    options = parser(about)
    for path, text in paths.items():
        options.add_argument(f"--{path}", type=Path, metavar="PATH", help=text)
    chosen = options.parse_args()
    report = Report.of(Path(file).stem, about, chosen)
    size = {name: pair[chosen.quick] for name, pair in sizes.items()}
    with refusals():
        experiment(report, SimpleNamespace(**vars(chosen), **size))
    report.write(chosen.output)
