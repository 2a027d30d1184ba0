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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.counts import KeptRows
from pipelines.catalog.options import IngestOptions, IngestPlan, make_plan
from pipelines.catalog.parallel import Run, processes
from pipelines.catalog.partitions import (
    Layout,
    Tile,
    partitions_of,
    tile,
    to_columns,
    write_partition,
)
from pipelines.catalog.provenance import identify, make_record, make_report
from pipelines.catalog.repeats import rows_of
from pipelines.catalog.report import IngestReport
from pipelines.catalog.sorted_runs import COUNT_ORDER, joined, read_run
from pipelines.catalog.tables import PROVENANCE, open_table
from pipelines.catalog.valid_rows import Progress, ValidRows, validate_sources
from pipelines.merge import MERGED_COLUMNS, Cells, parse_cells
from pipelines.storage.atomic import MANIFEST, atomic_directory, write_manifest

STARS_PER_PARTITION = 1 << 20
_FILE_SUFFIXES = (".parquet", ".parq", ".pq")


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
        rows = validate_sources(run, plan, work, progress, over_sky=True)
        return _fill_folder(run, plan, rows, folder, work, cells)


@contextmanager
def _workspace(output: Path) -> Iterator[Path]:
    """A folder beside the output for what waits on disk."""
    with TemporaryDirectory(
        prefix=f".{output.name}.", suffix=".part", dir=output.parent
    ) as work:
        yield Path(work)


def _write_file(
    plan: IngestPlan, output: Path, *, overwrite: bool, progress: Progress
) -> IngestReport:
    with (
        open_table(
            output, units=plan.units, kind="stars", overwrite=overwrite
        ) as table,
        _workspace(output) as work,
    ):
        rows = validate_sources(map, plan, work, progress, over_sky=False)
        kept = KeptRows()
        header = read_run(rows.runs[0].stem, 0, 0, rows.repeated[:0])
        for number, each in enumerate(rows.runs):
            sound = read_run(each.stem, 0, 1, rows_of(rows.repeated, number))
            columns = to_columns(joined([header, sound]))
            table.write(columns)
            if len(rows.repeated):
                kept.note(columns)
        if len(rows.repeated):
            rows.counts.kept = kept
        report = make_report(plan, rows.counts)
        inputs = [identify(path) for path in plan.files]
        table.describe(make_record(plan, inputs, report))
    return report


def _fill_folder(
    run: Run,
    plan: IngestPlan,
    rows: ValidRows,
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
    layout = Layout(
        folder=folder,
        schema=rows.runs[0].schema,
        repeated=repeated,
        units=plan.units,
        cells=cells,
    )
    tiles = tile(rows.stars, STARS_PER_PARTITION, deepest)
    kept = KeptRows()
    for written in run(write_partition, partitions_of(layout, tiles, rows.runs)):
        kept.add(written)
    rows.counts.kept = kept
    report = make_report(plan, rows.counts, _notes(tiles, kept, cells))
    record = make_record(plan, list(run(identify, plan.files)), report)
    record["merge"] = None if cells is None else str(cells)
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    (folder / PROVENANCE).write_text(text, encoding="utf-8")
    write_manifest(folder)
    return report


def _notes(tiles: Sequence[Tile], kept: KeptRows, cells: Cells | None) -> list[str]:
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
    return notes


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
