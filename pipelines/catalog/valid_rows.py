"""The first two passes of an ingestion: sound rows on disk, repeated ones marked."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import COUNTED, Counts
from pipelines.catalog.parallel import Run
from pipelines.catalog.plan import IngestPlan
from pipelines.catalog.repeats import Repeated, find_repeated
from pipelines.catalog.sorted_runs import SortedRun, mark_repeated, no_stars, write_runs
from pipelines.catalog.validation import Progress, RowValidator

ROWS_PER_PIECE = 1 << 20
REPEATED = "source_id repeated"
IN_ANOTHER = "source_id in an earlier catalogue"


@dataclass(slots=True)
class ValidRows:
    """The rows of all sources or of a piece: sorted runs, counts, stars by pixel.

    ``kept`` counts rows by the number of their catalogue, ``pairs`` the objects that
    two of them share.
    """

    runs: list[SortedRun] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    stars: np.ndarray = field(default_factory=no_stars)
    kept: Counter[int] = field(default_factory=Counter)
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, other: ValidRows, path: Path) -> None:
        """Add a later piece, of the source ``path``; its columns must be the same."""
        self.counts.add(other.counts, path)
        self.stars += other.stars
        self.runs += other.runs
        if other.runs:
            names, first = (r.schema.names for r in (other.runs[0], self.runs[0]))
            if names != first:
                raise InputError(
                    f"the sources' columns do not fit together: {path} gives {names} "
                    f"after {first}"
                )

    def drop(self, repeated: Repeated, *, across: bool) -> None:
        """Mark repeated rows of one catalogue, and of all if ``across``."""
        self.pairs = dict(sorted(repeated.pairs.items()))
        for which, each in enumerate(self.runs):
            places, others = repeated.places(which)
            lost = places if across else places[~others]
            self.kept[each.catalogue] += each.rows - len(lost)
            if len(lost):
                rows = mark_repeated(each, lost)
                names = set(COUNTED) & set(rows.column_names)
                self.counts.count({n: rows[n].to_numpy() for n in names}, -1)
        own = Counter({REPEATED: int((~repeated.across).sum())})
        self.counts.faults += own  # zero is left out
        if across:
            self.counts.cuts += Counter({IN_ANOTHER: int(repeated.across.sum())})


def validate_sources(
    run: Run, plan: IngestPlan, work: Path, progress: Progress, *, over_sky: bool
) -> ValidRows:
    """Validate the rows of all sources, find repeated ones, refuse what is unsound."""
    rows = ValidRows()
    # Other processes tell how far they are when they have ended a piece.
    within = progress if run is map else None
    write = partial(_write_piece, work, over_sky, within)
    for result in run(write, enumerate(_pieces(plan))):
        path, piece = pickle.loads(result.read_bytes())
        result.unlink()
        rows.add(piece, path)
        if progress is not None and within is None:
            progress(piece.counts.rows_read)
    repeated = find_repeated(run, rows.runs)
    if repeated.pairs and plan.options.repeats == "error":
        shared = ", ".join(plan.shared(repeated.pairs))
        raise InputError(
            "--repeats error: objects of one source_id are in two catalogues: "
            f"{shared}; --repeats keep and --repeats first accept them"
        )
    rows.drop(repeated, across=plan.options.repeats == "first")
    rows.counts.refuse_unsound(plan.options)
    return rows


def _pieces(plan: IngestPlan) -> Iterator[RowValidator]:
    for validator in plan.validators:
        for part in validator.source.parts(ROWS_PER_PIECE):
            yield replace(validator, source=part)


def _write_piece(
    work: Path, over_sky: bool, progress: Progress, piece: tuple[int, RowValidator]
) -> Path:
    """Write the runs of a piece, and a file that tells of them: its path is returned.

    A process that is killed while it sends more than a pipe holds would leave the
    parent waiting for the rest.
    """
    number, validator = piece
    place, counts, of = work / f"{number:07d}", Counts(), validator.catalogue
    batches = validator.batches(counts, progress)
    runs, stars = write_runs(place, batches, over_sky=over_sky, catalogue=of)
    result = place.with_suffix(".pickle")
    piece_rows = ValidRows(runs, counts, stars)
    result.write_bytes(pickle.dumps((validator.source.path, piece_rows)))
    return result
