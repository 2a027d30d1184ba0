r"""From survey files of any size to the canonical table of stars.

Three passes, each over pieces that are the same for any number of processes: the
sources are validated piece by piece and wait on disk as sorted runs; identifiers that
occur twice are found among all; the runs are merged, a partition of the sky at a time,
sorted by HEALPix pixel (NESTED, Galactic ``l, b``), equal ones as they were read, or
into one file in the order of the sources. Memory is that of a few pieces for each
process, and does not grow with the catalogue beyond eight bytes for every repeated
star. On disk the runs take about 80 bytes a star, beside the output, until it is done.

A folder holds ``part-NNNNN-order-K-pixel-P.parquet``, which sort in the order of the
sky, ``provenance.json`` and a manifest of all. The output appears whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipelines.catalog.counts import Counts, KeptRows
from pipelines.catalog.mapping import Recipe
from pipelines.catalog.options import IngestOptions, IngestPlan, Selection, make_plan
from pipelines.catalog.parallel import Run, processes
from pipelines.catalog.parquet_reader import ParquetSource, split_groups
from pipelines.catalog.partitions import Partition, tile, to_columns, write_partition
from pipelines.catalog.provenance import identify, make_record, make_report
from pipelines.catalog.repeats import find_repeated, rows_of
from pipelines.catalog.report import IngestReport
from pipelines.catalog.sorted_runs import (
    COUNT_ORDER,
    RunWriter,
    SortedRun,
    joined,
    read_run,
)
from pipelines.catalog.source import Source
from pipelines.catalog.tables import PROVENANCE, open_table
from pipelines.catalog.validation import REPEATED, RowValidator
from pipelines.errors import InputError
from pipelines.merge import MERGED_COLUMNS, Cells, parse_cells
from pipelines.store import MANIFEST, atomic_directory, write_manifest

ROWS_PER_PIECE = 1 << 20
STARS_PER_PARTITION = 1 << 20
_FILE_SUFFIXES = (".parquet", ".parq", ".pq")
_Progress = Callable[[int], None] | None


def ingest(
    sources: Sequence[Path],
    output: Path,
    *,
    overwrite: bool = False,
    workers: int = 1,
    merge: str | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> IngestReport:
    """Read catalogues, drop faulty rows, and write the canonical table.

    Parameters
    ----------
    sources
        Files or folders of files, joined in the order given.
    output
        A name that ends in ``.parquet`` stands for one file in the order of the
        sources, another for a folder of partitions in the order of the sky; see
        `pipelines.catalog.schema.read_stars`.
    overwrite
        Whether an existing output may be replaced.
    workers
        Number of processes that fill a folder; its rows and counts are the same for
        any number. One file is written by one.
    merge
        ``NSIDE,BINS``: merge the stars of a cell (`pipelines.merge`); needs a folder.
    progress
        Called with the number of rows after each piece.
    options
        Those of `IngestOptions`.

    Returns
    -------
    The counts, which are saved in the table's provenance too.

    Raises
    ------
    InputError
        If the input is structurally unsound or mostly faulty, or a choice is missing
        or contradictory. Then nothing is written.
    """
    chosen, output = IngestOptions(**options), Path(output)
    cells = parse_cells(merge) if merge is not None else None
    if workers < 1:
        raise InputError(f"--workers is at least 1, not {workers}")
    single = output.suffix in _FILE_SUFFIXES
    if single and (workers > 1 or cells is not None):
        raise InputError(
            f"{output} is one file, which one process writes, star by star: with "
            "--workers or --merge name a folder, e.g. -o stars"
        )
    plan = make_plan(sources, chosen)
    if single:
        return _write_file(plan, output, overwrite=overwrite, progress=progress)
    _check_folder(output)
    _check_merging(plan, cells)
    with (
        atomic_directory(output, overwrite=overwrite) as folder,
        _workspace(output) as work,
        processes(workers) as run,
    ):
        rows = _validate(run, plan, work, progress, over_sky=True)
        return _fill_folder(run, plan, rows, folder, work, cells)


@dataclass(slots=True)
class _ValidRows:
    """The rows of all sources: sorted runs, counts, stars by pixel at `COUNT_ORDER`.

    ``repeated`` are the numbers of the rows to leave out
    (`pipelines.catalog.repeats`).
    """

    runs: list[SortedRun] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    stars: np.ndarray | int = 0
    repeated: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some rows: a source, or some row groups of a parquet file."""

    source: Source
    recipe: Recipe
    selection: Selection
    stem: Path
    over_sky: bool
    progress: _Progress

    def validate(self) -> tuple[Path, Counts, RunWriter]:
        """Write the sound rows to sorted runs."""
        validator = RowValidator(
            self.source, self.recipe, self.selection, self.progress
        )
        writer = RunWriter(self.stem, over_sky=self.over_sky)
        for columns in validator.batches():
            writer.write(columns)
        writer.close()
        return self.source.path, validator.counts, writer


@contextmanager
def _workspace(output: Path) -> Iterator[Path]:
    """A folder beside the output for what waits on disk."""
    with TemporaryDirectory(
        prefix=f".{output.name}.", suffix=".part", dir=output.parent
    ) as work:
        yield Path(work)


def _pieces(
    plan: IngestPlan, work: Path, progress: _Progress, *, over_sky: bool
) -> Iterator[_Piece]:
    number = 0
    for source, recipe in zip(plan.sources, plan.recipes, strict=True):
        parts: Iterable[Source] = [source]
        if isinstance(source, ParquetSource):
            groups = split_groups(source.path, ROWS_PER_PIECE)
            parts = (ParquetSource(source.path, each) for each in groups)
        for part in parts:
            yield _Piece(
                source=part,
                recipe=recipe,
                selection=plan.selection,
                stem=work / f"{number:07d}",
                over_sky=over_sky,
                progress=progress,
            )
            number += 1


def _validate(
    run: Run, plan: IngestPlan, work: Path, progress: _Progress, *, over_sky: bool
) -> _ValidRows:
    """Validate the rows of all sources, find repeated ones, refuse what is unsound."""
    rows = _ValidRows()
    # Other processes tell how far they are when they have ended a piece.
    within = progress if run is map else None
    pieces = _pieces(plan, work, within, over_sky=over_sky)
    for path, counts, writer in run(_Piece.validate, pieces):
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


def _write_file(
    plan: IngestPlan, output: Path, *, overwrite: bool, progress: _Progress
) -> IngestReport:
    with (
        open_table(
            output, units=plan.units, kind="stars", overwrite=overwrite
        ) as table,
        _workspace(output) as work,
    ):
        rows = _validate(map, plan, work, progress, over_sky=False)
        kept = KeptRows()
        header = read_run(rows.runs[0].stem, 0, 0, rows.repeated[:0])
        for number, each in enumerate(rows.runs):
            sound = read_run(each.stem, 0, 1, rows_of(rows.repeated, number))
            columns = to_columns(joined([header, sound]))
            kept.note(columns)
            table.write(columns)
        rows.counts.kept = kept
        report = make_report(plan, rows.counts)
        inputs = [identify(path) for path in plan.files]
        table.describe(make_record(plan, inputs, report))
    return report


def _fill_folder(
    run: Run,
    plan: IngestPlan,
    rows: _ValidRows,
    folder: Path,
    work: Path,
    cells: Cells | None,
) -> IngestReport:
    deepest = COUNT_ORDER
    if cells is not None:
        cells = cells.reaching(rows.counts.farthest)
        deepest = min(COUNT_ORDER, cells.coarsest)
    repeated = work / "repeated.npy"
    np.save(repeated, rows.repeated)
    tiles = tile(np.asarray(rows.stars), STARS_PER_PARTITION, deepest)
    parts = (
        Partition(
            number=number,
            folder=folder,
            tile=place,
            runs={
                which: each.stem
                for which, each in enumerate(rows.runs)
                if each.first < place.last and each.last >= place.first
            },
            schema=rows.runs[0].schema,
            repeated=repeated,
            units=plan.units,
            cells=cells,
        )
        for number, place in enumerate(tiles)
    )
    kept = KeptRows()
    for written in run(write_partition, parts):
        kept.add(written)
    rows.counts.kept = kept
    orders = [place.order for place in tiles]
    notes = [
        f"{len(tiles)} partitions in the order of the sky, HEALPix orders "
        f"{min(orders)} to {max(orders)}"
    ]
    if cells is not None:
        notes.append(
            f"{kept.stars:,} stars merged into {kept.rows:,} pseudo-observations: "
            f"pixels of nside {cells.nside}, bins of {cells.width:.4g} pc; "
            f"{kept.outlying:,} outlying stars left by themselves"
        )
    report = make_report(plan, rows.counts, notes)
    record = make_record(plan, list(run(identify, plan.files)), report)
    record["merge"] = None if cells is None else str(cells)
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    (folder / PROVENANCE).write_text(text, encoding="utf-8")
    write_manifest(folder)
    return report


def _check_folder(output: Path) -> None:
    """Refuse to replace a folder that holds anything else than such a table."""
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not all((output / name).is_file() for name in (PROVENANCE, MANIFEST)):
        raise InputError(
            f"{output} is a folder with other things in it: name one that is not "
            "there yet, or a single file, e.g. stars.parquet"
        )


def _check_merging(plan: IngestPlan, cells: Cells | None) -> None:
    if cells is None:
        return
    if plan.options.positions_only:
        raise InputError("positions without extinctions cannot be merged")
    for source in plan.sources:
        if set(MERGED_COLUMNS) & set(source.columns):
            raise InputError(f"{source.path} is merged already: merge its source")
