"""Tables for readers: Markdown, CSV, and lists of facts as text and HTML."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np

Row = dict[str, Any]
Facts = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of equal length by name; ``None`` where a row has no value."""

    columns: Mapping[str, Sequence[Any] | np.ndarray]
    title: str = ""

    @classmethod
    def of_rows(cls, rows: Sequence[Row], title: str = "") -> Self:
        """Return a table with a column for every key of any row."""
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        return cls(columns=columns, title=title)

    def __len__(self) -> int:
        return max(map(len, self.columns.values()), default=0)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as plain numbers and texts."""
        every = self.columns.values()
        lists = (v.tolist() if isinstance(v, np.ndarray) else v for v in every)
        return list(zip(*lists, strict=True))

    def text(self, most: int | None = None) -> str:
        """Return the first ``most`` rows, by default all, in Markdown."""
        lines = [list(self.columns), ["---"] * len(self.columns)]
        lines += [[_formatted(value) for value in row] for row in self.rows()[:most]]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def write(self, path: Path) -> None:
        """Write CSV: floats with six digits, empty if missing or not finite."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(map(_cell, row) for row in self.rows())

    def listed(self) -> str:
        """Return the title, and a line for each value of the first row."""
        width = max(map(len, self.columns))
        named = zip(self.columns, self.rows()[0])
        return "\n".join([self.title, *(f"  {n:<{width}}  {v}" for n, v in named)])

    def html(self) -> str:
        """Return `listed` as HTML for a notebook."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th>'
            f'<td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in zip(self.columns, self.rows()[0])
        )
        return f"<table><caption><b>{escape(self.title)}</b></caption>{rows}</table>"


def strict_json(value: Any) -> Any:
    """Return values for strict JSON: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return value


def _formatted(value: object) -> str:
    """Return a value in Markdown, numbers with four digits."""
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
