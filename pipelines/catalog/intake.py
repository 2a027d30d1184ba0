"""The rows of all sources on their way into one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import Counts
from pipelines.catalog.filters import RowFilter
from pipelines.catalog.identity import SeenIdentifiers
from pipelines.catalog.mapping import Binding, Recipe
from pipelines.catalog.presets import KeptColumn
from pipelines.catalog.readers import locate, read_columns
from pipelines.catalog.rows import (
    Screen,
    screen_quantities,
    screen_values,
    to_canonical,
)
from pipelines.catalog.source import Source

REPEATED = "source_id repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is wanted of the rows, whatever the source.

    ``filters`` are quality cuts by name, ``keep`` further columns by their name in
    the output.
    """

    filters: Mapping[str, RowFilter]
    keep: Mapping[str, KeptColumn]
    min_parallax_snr: float


class RowWriter(Protocol):
    """Takes batches of rows."""

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append one batch, all columns of one length."""


@dataclass(slots=True)
class Intake:
    """Screens batches, writes what is left of them, and counts everything.

    Repeated identifiers are dropped as they come if ``seen`` is given; otherwise that
    is left to whoever brings the pieces together.
    """

    selection: Selection
    table: RowWriter
    seen: SeenIdentifiers | None = None
    counts: Counts = field(default_factory=Counts)

    def take(self, source: Source, recipe: Recipe) -> Iterator[int]:
        """Take in one source; yield the number of rows after each batch.

        Raises
        ------
        InputError
            If the source breaks off or a column holds what it must not.
        """
        requests = self._requests(source, recipe)
        for batch in read_columns(source, requests):
            rows = len(next(iter(batch.values())))
            if rows:
                self._take_batch(source, recipe, batch, rows)
            yield rows

    def _requests(self, source: Source, recipe: Recipe) -> dict[str, tuple[str, str]]:
        requests = {}
        for name, binding in recipe.bindings.items():
            if binding.column is not None:
                kind = "identifier" if name == "source_id" else "number"
                requests[name] = (binding.column, kind)
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        for row_filter in self.selection.filters.values():
            for column, kind in row_filter.kinds.items():
                requests[f"{kind} {column}"] = (column, kind)
        for name, item in self.selection.keep.items():
            if not (item.optional and item.column not in source.columns):
                requests[f"keep {name}"] = (item.column, "any")
        return requests

    def _take_batch(
        self, source: Source, recipe: Recipe, batch: dict[str, np.ndarray], rows: int
    ) -> None:
        screen = Screen(rows, self.counts.tally)
        self.counts.rows_read += rows
        self._filter(screen, batch)
        values = _values(recipe, batch, rows)
        identifiers = batch.get("source_id")
        if identifiers is not None:
            kind = "text" if identifiers.dtype == object else "integers"
            self.counts.agree_on(kind, source.path)
            missing = np.ma.getmaskarray(identifiers)
            screen.fault(missing, "source_id missing")
        with np.errstate(invalid="ignore", over="ignore"):
            screen_values(screen, values)
            for name, factor in recipe.factors.items():
                values[name] = values[name] * factor
            if "x" in values:
                values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
            screen_quantities(screen, values, self.selection.min_parallax_snr)
        if identifiers is not None and self.seen is not None:
            _drop_repeated(screen, identifiers, self.seen)
        self._write(screen.standing, values, identifiers, batch)

    def _filter(self, screen: Screen, batch: dict[str, np.ndarray]) -> None:
        for name, row_filter in self.selection.filters.items():
            columns = {c: batch[f"{kind} {c}"] for c, kind in row_filter.kinds.items()}
            screen.cut(~row_filter.passes(columns), name)
        self.counts.rows_filtered += int((~screen.standing).sum())

    def _write(
        self,
        standing: np.ndarray,
        values: dict[str, np.ndarray],
        identifiers: np.ndarray | None,
        batch: dict[str, np.ndarray],
    ) -> None:
        if not standing.any():
            return
        values = {name: column[standing] for name, column in values.items()}
        columns = {}
        if identifiers is not None:
            columns["source_id"] = np.ma.getdata(identifiers)[standing]
        columns |= to_canonical(values)
        for name in self.selection.keep:
            if f"keep {name}" in batch:
                columns[name] = batch[f"keep {name}"][standing]
        try:
            self.table.write(columns)
        except ValueError as error:  # Arrow's errors are ValueErrors too
            raise InputError(
                f"the sources' columns do not fit together: {error}"
            ) from error
        self.counts.note_kept(columns, values)


def _drop_repeated(
    screen: Screen, identifiers: np.ndarray, seen: SeenIdentifiers
) -> None:
    standing = np.flatnonzero(screen.standing)
    new = seen.first_seen(np.ma.getdata(identifiers)[standing])
    repeated = np.zeros(len(identifiers), dtype=bool)
    repeated[standing[~new]] = True
    screen.fault(repeated, REPEATED)


def _values(
    recipe: Recipe, batch: dict[str, np.ndarray], rows: int
) -> dict[str, np.ndarray]:
    def column(name: str, binding: Binding) -> np.ndarray:
        return batch[name] if binding.value is None else np.full(rows, binding.value)

    bindings = recipe.bindings.items()
    return {name: column(name, b) for name, b in bindings if name != "source_id"}


def check_kept(source: Source, keep: Mapping[str, KeptColumn]) -> None:
    """Raise `InputError` if a kept column is not in the source."""
    for item in keep.values():
        if not (item.optional and item.column not in source.columns):
            locate(source, item.column)
