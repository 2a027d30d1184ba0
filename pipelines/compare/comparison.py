"""The content of a comparison, and its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.base.table import Table, strict_json
from pipelines.figures.style import save_figure
from pipelines.storage import atomic

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
    tables: dict[str, Table]
    shown: tuple[str, ...]
    words: tuple[str, ...]
    figures: dict[str, Figure] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = []
        for name in self.shown:
            table = self.tables[name]
            parts += [table.text(20)] if len(table) else []
            if len(table) > 20:
                parts[-1] += f"20 of {len(table):,} rows; all are in {name}.csv\n"
        return "\n".join([*parts, *self.words])


def write_comparison(
    path: Path, comparison: Comparison, *, overwrite: bool = False
) -> list[Path]:
    """Write ``comparison.json``, ``*.csv`` and ``*.png``, and return their paths.

    Raises `InputError` if ``path`` exists and ``overwrite`` is false, or is another
    kind of folder.
    """
    atomic.check_output_folder(path, SUMMARY, overwrite=overwrite)
    names = [SUMMARY]
    with atomic.atomic_directory(path, overwrite=overwrite) as folder:
        content = {"kind": comparison.kind, "words": comparison.words}
        content = strict_json(content | comparison.numbers)
        text = json.dumps(content, indent=1, allow_nan=False, default=np.generic.item)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
        for name, table in comparison.tables.items():
            names.append(f"{name}.csv")
            table.write(folder / names[-1])
        for name, figure in comparison.figures.items():
            names.append(f"{name}.png")
            save_figure(figure, folder / names[-1])
        atomic.write_manifest(folder)
    return [path / name for name in names]
