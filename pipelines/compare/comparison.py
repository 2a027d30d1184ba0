"""The content of a comparison, and its folder."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.base.measurement import Row, plain, table
from pipelines.figures.style import save_figure
from pipelines.storage.atomic import (
    atomic_directory,
    check_output_folder,
    write_manifest,
)

# Most printed rows of a table.
_MOST_ROWS = 20
SUMMARY = "comparison.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A map against one reference, ``stars`` or a ``map`` (its ``kind``).

    All ``numbers`` are written to ``comparison.json``, each of the ``tables`` and
    ``figures`` to a file of its name; the tables ``shown`` are printed. The ``words``
    explain the numbers and their limits.
    """

    kind: str
    numbers: dict[str, Any]
    tables: dict[str, list[Row]]
    shown: tuple[str, ...]
    words: tuple[str, ...]
    figures: dict[str, Figure] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = []
        for name in self.shown:
            if rows := self.tables[name]:
                parts.append(table(rows[:_MOST_ROWS]))
            if len(rows) > _MOST_ROWS:
                rest = f"{_MOST_ROWS} of {len(rows):,} rows; all are in {name}.csv\n"
                parts[-1] += rest
        return "\n".join([*parts, *self.words])


def write_comparison(
    path: Path, comparison: Comparison, *, overwrite: bool = False
) -> list[Path]:
    """Write ``comparison.json``, ``*.csv`` and ``*.png``, and return their paths.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or is another
    kind of folder.
    """
    check_output_folder(path, SUMMARY, overwrite=overwrite)
    names = [SUMMARY]
    with atomic_directory(path, overwrite=overwrite) as folder:
        content = {"kind": comparison.kind, "words": comparison.words}
        content = plain(content | comparison.numbers)
        text = json.dumps(content, indent=1, allow_nan=False, default=np.generic.item)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
        for name, rows in comparison.tables.items():
            names.append(f"{name}.csv")
            columns = dict.fromkeys(column for row in rows for column in row)
            with (folder / names[-1]).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, lineterminator="\n")
                writer.writeheader()
                for row in rows:
                    writer.writerow({key: _cell(value) for key, value in row.items()})
        for name, figure in comparison.figures.items():
            names.append(f"{name}.png")
            save_figure(figure, folder / names[-1])
        write_manifest(folder)
    return [path / name for name in names]


def _cell(value: object) -> object:
    """Format a number with six digits, or as empty if not finite."""
    if isinstance(value, float):
        return f"{value:.6g}" if np.isfinite(value) else ""
    return value


def rows_of(columns: dict[str, np.ndarray]) -> list[Row]:
    """Return columns of equal length as rows."""
    lists = [np.asarray(column).tolist() for column in columns.values()]
    return [dict(zip(columns, row)) for row in zip(*lists, strict=True)]
