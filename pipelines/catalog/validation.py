"""The rows of a source, validated, in canonical columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import Counts
from pipelines.catalog.mapping import Recipe
from pipelines.catalog.options import Selection
from pipelines.catalog.readers import read_columns
from pipelines.catalog.rows import (
    Columns,
    RowMask,
    check_quantities,
    check_values,
    to_canonical,
)
from pipelines.catalog.source import Source


class RowValidator:
    """Drops the rows of a source that are faulty or cut, and counts everything.

    Repeated identifiers stay: they can be found among the rows of all sources only.
    ``progress`` is called with the number of rows after each batch.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        selection: Selection,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.path, self.counts = source.path, Counts()
        self._source, self._recipe, self._selection = source, recipe, selection
        self._progress = progress
        self._carried = selection.kept_from(source)

    def batches(self) -> Iterator[Columns]:
        """Yield canonical columns, shape ``(n,)``, of the rows that are sound.

        Raises
        ------
        InputError
            If the source breaks off or a column holds what it must not.
        """
        for batch in read_columns(self._source, self._requests()):
            rows = len(next(iter(batch.values())))
            if rows:
                yield from self._validated(batch, rows)
            if self._progress is not None:
                self._progress(rows)

    def _requests(self) -> dict[str, tuple[str, str]]:
        requests = {
            name: (binding.column, "identifier" if name == "source_id" else "number")
            for name, binding in self._recipe.items()
            if binding.column is not None
        }
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        for row_filter in self._selection.filters.values():
            for column, kind in row_filter.kinds.items():
                requests[f"{kind} {column}"] = (column, kind)
        for name, column in self._carried.items():
            requests[f"keep {name}"] = (column, "any")
        return requests

    def _validated(self, batch: Columns, rows: int) -> Iterator[Columns]:
        counts, selection = self.counts, self._selection
        counts.rows_read += rows
        mask = RowMask(rows, counts.faults, counts.cuts)
        for name, row_filter in selection.filters.items():
            columns = {c: batch[f"{kind} {c}"] for c, kind in row_filter.kinds.items()}
            mask.cut(~row_filter.passes(columns), name)
        counts.rows_filtered += int((~mask.kept).sum())
        identifiers = batch.get("source_id")
        if identifiers is not None:
            kind = "text" if identifiers.dtype == object else "integers"
            counts.agree_on(kind, self.path)
            mask.fault(np.ma.getmaskarray(identifiers), "source_id missing")
        values = self._values(batch, rows)
        with np.errstate(all="ignore"):
            check_values(mask, values)
            for name, column in values.items():
                values[name] = column * self._recipe[name].factor
            check_quantities(mask, values, selection.min_parallax_snr)
        if not mask.kept.any():
            return
        values = {name: column[mask.kept] for name, column in values.items()}
        columns = to_canonical(values)
        counts.note_kept(columns, values)
        if identifiers is not None:
            columns = {"source_id": np.ma.getdata(identifiers)[mask.kept], **columns}
        carried = {name: batch[f"keep {name}"][mask.kept] for name in self._carried}
        yield columns | carried

    def _values(self, batch: Columns, rows: int) -> Columns:
        return {
            name: batch[name] if b.value is None else np.full(rows, b.value)
            for name, b in self._recipe.items()
            if name != "source_id"
        }
