"""The rows of all sources on their way into one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pipelines.catalog.filters import RowFilter
from pipelines.catalog.identity import SeenIdentifiers
from pipelines.catalog.mapping import Binding, Recipe
from pipelines.catalog.presets import KeptColumn
from pipelines.catalog.readers import locate, read_columns
from pipelines.catalog.rows import (
    Screen,
    Tally,
    screen_quantities,
    screen_values,
    to_canonical,
)
from pipelines.catalog.source import Source
from pipelines.catalog.tables import TableWriter
from pipelines.errors import InputError

FEWEST_POSITIONS = 5
RADIAN_LIMITS = (2 * np.pi, np.pi / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is wanted of the rows, whatever the source.

    ``filters`` are quality cuts by name, ``keep`` further columns by their name in
    the output.
    """

    filters: Mapping[str, RowFilter]
    keep: Mapping[str, KeptColumn]
    min_parallax_snr: float


@dataclass(slots=True)
class Intake:
    """Screens batches, writes what is left of them, and counts everything."""

    selection: Selection
    table: TableWriter
    tally: Tally = field(default_factory=Tally)
    rows_read: int = 0
    rows_kept: int = 0
    rows_filtered: int = 0
    negative_extinctions: int = 0
    largest_angles: tuple[float, float] | None = None
    _places: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    _seen: SeenIdentifiers = field(default_factory=SeenIdentifiers)
    _identifier_kind: str = ""

    @property
    def distinct_positions(self) -> int:
        """Number of distinct positions among the kept rows, as far as it matters."""
        return len(self._places)

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
        screen = Screen(rows, self.tally)
        self.rows_read += rows
        self._filter(screen, batch)
        values = _values(recipe, batch, rows)
        identifiers = batch.get("source_id")
        if identifiers is not None:
            self._check_kind(identifiers, source)
            missing = np.ma.getmaskarray(identifiers)
            screen.fault(missing, "source_id missing")
        with np.errstate(invalid="ignore", over="ignore"):
            screen_values(screen, values)
            for name, factor in recipe.factors.items():
                values[name] = values[name] * factor
            if "x" in values:
                values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
            screen_quantities(screen, values, self.selection.min_parallax_snr)
        if identifiers is not None:
            self._drop_repeated(screen, identifiers)
        self._write(screen.standing, values, identifiers, batch)

    def _filter(self, screen: Screen, batch: dict[str, np.ndarray]) -> None:
        for name, row_filter in self.selection.filters.items():
            columns = {c: batch[f"{kind} {c}"] for c, kind in row_filter.kinds.items()}
            screen.cut(~row_filter.passes(columns), name)
        self.rows_filtered += int((~screen.standing).sum())

    def _check_kind(self, identifiers: np.ndarray, source: Source) -> None:
        kind = "text" if identifiers.dtype == object else "integers"
        self._identifier_kind = self._identifier_kind or kind
        if kind != self._identifier_kind:
            raise InputError(
                f"{source.path}: source_id is {kind} here but {self._identifier_kind} "
                "before: make them alike, or leave them out with --map source_id=none"
            )

    def _drop_repeated(self, screen: Screen, identifiers: np.ndarray) -> None:
        standing = np.flatnonzero(screen.standing)
        new = self._seen.first_seen(np.ma.getdata(identifiers)[standing])
        repeated = np.zeros(len(identifiers), dtype=bool)
        repeated[standing[~new]] = True
        screen.fault(repeated, "source_id repeated")

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
        self._note(columns, values)

    def _note(
        self, columns: dict[str, np.ndarray], values: dict[str, np.ndarray]
    ) -> None:
        self.rows_kept += len(columns["l"])
        if "extinction" in columns:
            self.negative_extinctions += int((columns["extinction"] < 0).sum())
        longitude = next((values[n] for n in ("l", "ra") if n in values), None)
        latitude = next((values[n] for n in ("b", "dec") if n in values), None)
        if longitude is not None and latitude is not None:
            before = self.largest_angles or (0.0, 0.0)
            largest = np.abs(longitude).max(), np.abs(latitude).max()
            self.largest_angles = tuple(map(max, zip(before, map(float, largest))))
        for rows in (slice(FEWEST_POSITIONS), slice(None)):
            if len(self._places) < FEWEST_POSITIONS:
                new = [columns[n][rows] for n in ("l", "b", "distance")]
                joined = np.concatenate([self._places, np.stack(new, axis=1)])
                self._places = np.unique(joined, axis=0)[:FEWEST_POSITIONS]


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
