"""The rows of a source, validated, in canonical columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import Counts
from pipelines.catalog.filters import RowFilter
from pipelines.catalog.mapping import Recipe
from pipelines.catalog.readers import read_columns
from pipelines.catalog.rows import (
    Columns,
    RowMask,
    check_quantities,
    check_values,
    to_canonical,
)
from pipelines.catalog.source import Source

Progress = Callable[[int], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowValidator:
    """What is read from one source, and which of its rows are kept.

    ``filters`` are quality cuts by name, ``carried`` further columns of the source by
    their names in the output, and ``catalogue`` is the number of the one it belongs to.
    """

    source: Source
    recipe: Recipe
    filters: Mapping[str, RowFilter]
    carried: Mapping[str, str]
    min_parallax_snr: float
    catalogue: int = 0

    def batches(self, counts: Counts, progress: Progress = None) -> Iterator[Columns]:
        """Yield canonical columns, shape ``(n,)``, of sound rows; count all others.

        Repeated identifiers stay: they can be found among the rows of all sources
        only. ``progress`` is called with the number of rows after each batch.

        Raises
        ------
        InputError
            If the source breaks off or a column holds what it must not.
        """
        for batch in read_columns(self.source, self._requests()):
            rows = len(next(iter(batch.values())))
            if rows:
                yield from self._validated(batch, rows, counts)
            if progress is not None:
                progress(rows)

    def _requests(self) -> dict[str, tuple[str, str]]:
        requests = {
            name: (binding.column, binding.kind)
            for name, binding in self.recipe.items()
            if binding.column is not None
        }
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        for row_filter in self.filters.values():
            for column, kind in row_filter.kinds.items():
                requests[f"{kind} {column}"] = (column, kind)
        for name, column in self.carried.items():
            requests[f"keep {name}"] = (column, "any")
        return requests

    def _validated(
        self, batch: Columns, rows: int, counts: Counts
    ) -> Iterator[Columns]:
        counts.rows_read += rows
        mask = RowMask(rows, counts.faults, counts.cuts)
        for name, row_filter in self.filters.items():
            columns = {c: batch[f"{kind} {c}"] for c, kind in row_filter.kinds.items()}
            mask.cut(~row_filter.passes(columns), name)
        counts.rows_filtered += int((~mask.kept).sum())
        identifiers = batch.get("source_id")
        if identifiers is not None:
            kind = "text" if identifiers.dtype == object else "integers"
            counts.agree_on(kind, self.source.path)
            mask.fault(np.ma.getmaskarray(identifiers), "source_id missing")
        values = self._values(batch, rows)
        with np.errstate(all="ignore"):
            check_values(mask, values)
            for name, column in values.items():
                values[name] = column * self.recipe[name].factor
            check_quantities(mask, values, self.min_parallax_snr)
        if not mask.kept.any():
            return
        values = {name: column[mask.kept] for name, column in values.items()}
        columns = to_canonical(values)
        counts.note_kept(columns, values)
        if identifiers is not None:
            columns = {"source_id": np.ma.getdata(identifiers)[mask.kept], **columns}
        carried = {name: batch[f"keep {name}"][mask.kept] for name in self.carried}
        yield columns | carried

    def _values(self, batch: Columns, rows: int) -> Columns:
        return {
            name: batch[name] if b.value is None else np.full(rows, b.value)
            for name, b in self.recipe.items()
            if name != "source_id"
        }
