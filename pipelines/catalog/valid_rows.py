"""The first two passes of an ingestion: sound rows on disk, repeated ones known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import Counts
from pipelines.catalog.options import IngestPlan
from pipelines.catalog.parallel import Run
from pipelines.catalog.parquet_reader import ParquetSource, split_groups
from pipelines.catalog.repeats import find_repeated
from pipelines.catalog.sorted_runs import COUNT_ORDER, RunWriter, SortedRun
from pipelines.catalog.source import Source
from pipelines.catalog.validation import RowValidator

REPEATED = "source_id repeated"
ROWS_PER_PIECE = 1 << 20
Progress = Callable[[int], None] | None


@dataclass(slots=True)
class ValidRows:
    """The rows of all sources: sorted runs, counts, stars by pixel at `COUNT_ORDER`.

    ``repeated`` are the numbers of the rows to leave out
    (`pipelines.catalog.repeats`).
    """

    runs: list[SortedRun] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    stars: np.ndarray = field(
        default_factory=lambda: np.zeros(12 * 4**COUNT_ORDER, dtype=np.int64)
    )
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def validate_sources(
    run: Run, plan: IngestPlan, work: Path, progress: Progress, *, over_sky: bool
) -> ValidRows:
    """Validate the rows of all sources, find repeated ones, refuse what is unsound."""
    rows = ValidRows()
    # Other processes tell how far they are when they have ended a piece.
    within = progress if run is map else None
    write = partial(_write_runs, work, over_sky)
    for path, counts, writer in run(write, enumerate(_pieces(plan, within))):
        rows.counts.add(counts, path)
        rows.stars += writer.stars
        rows.runs += writer.runs
        if rows.runs and writer.runs:
            names, first = writer.runs[0].schema.names, rows.runs[0].schema.names
            if names != first:
                raise InputError(
                    f"the sources' columns do not fit together: {path} gives {names} "
                    f"after {first}"
                )
        if progress is not None and within is None:
            progress(counts.rows_read)
    rows.repeated = find_repeated(run, rows.runs)
    if len(rows.repeated):
        rows.counts.faults[REPEATED] += len(rows.repeated)
    rows.counts.refuse_unsound(plan.options)
    return rows


def _pieces(plan: IngestPlan, progress: Progress) -> Iterator[RowValidator]:
    """One for each source, or for some row groups of a parquet file."""
    for source, recipe in zip(plan.sources, plan.recipes, strict=True):
        parts: Iterable[Source] = [source]
        if isinstance(source, ParquetSource):
            groups = split_groups(source.path, ROWS_PER_PIECE)
            parts = (ParquetSource(source.path, each) for each in groups)
        for part in parts:
            yield RowValidator(part, recipe, plan.selection, progress)


def _write_runs(
    work: Path, over_sky: bool, piece: tuple[int, RowValidator]
) -> tuple[Path, Counts, RunWriter]:
    number, validator = piece
    writer = RunWriter(work / f"{number:07d}", over_sky=over_sky)
    for columns in validator.batches():
        writer.write(columns)
    writer.close()
    return validator.path, validator.counts, writer
