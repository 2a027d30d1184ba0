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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.merging import MERGED_COLUMNS, Cells, parse_cells
from pipelines.catalog.options import IngestOptions
from pipelines.catalog.parallel import Run, processes
from pipelines.catalog.partitions import partitions_of, tile, write_partition
from pipelines.catalog.plan import IngestPlan, make_plan, preset_of
from pipelines.catalog.presets import write_preset
from pipelines.catalog.provenance import identify, make_record
from pipelines.catalog.readers import OTHER_SUFFIXES, PARQUET_SUFFIXES
from pipelines.catalog.report import IngestReport, make_report
from pipelines.catalog.sorted_runs import COUNT_ORDER, joined, read_run
from pipelines.catalog.tables import PROVENANCE, open_table
from pipelines.catalog.valid_rows import ValidRows, validate_sources
from pipelines.catalog.validation import Progress
from pipelines.storage.atomic import (
    MANIFEST,
    atomic_directory,
    check_output,
    write_manifest,
)

STARS_PER_PARTITION = 1 << 20


def ingest(
    sources: Sequence[Path],
    output: Path,
    *,
    overwrite: bool = False,
    workers: int = 1,
    merge: str | None = None,
    progress: Progress = None,
    save_preset: str | Path | None = None,
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
        ``NSIDE,BINS``: merge the stars of a cell (`pipelines.catalog.merging`); needs
        a folder.
    progress
        Called with the number of rows after each piece.
    save_preset
        A TOML file to write: what was mapped, for `IngestOptions.preset` of other files
        of this form. It is written once the table is.
    options
        Those of `IngestOptions`.

    Returns
    -------
    The counts, which are saved in the table's provenance too.

    Raises
    ------
    InputError
        If the input is structurally unsound or mostly faulty, a choice is missing or
        contradictory, or the output is named like another format. Then nothing is
        written.
    """
    chosen, output = IngestOptions(**options), Path(output)
    cells = parse_cells(merge) if merge is not None else None
    if workers < 1:
        raise InputError(f"--workers is at least 1, not {workers}")
    single = output.suffix.lower() in PARQUET_SUFFIXES
    if output.suffix.lower() in OTHER_SUFFIXES:
        raise InputError(
            f"{output}: a table of stars is written as parquet: name a file such as "
            "stars.parquet, or a folder without such an ending, such as stars"
        )
    if single and (workers > 1 or cells is not None):
        raise InputError(
            f"{output} is one file, which one process writes, star by star: with "
            "--workers or --merge name a folder, e.g. -o stars"
        )
    plan = make_plan(sources, chosen)
    if save_preset is not None:
        check_output(Path(save_preset), overwrite=overwrite)
    if single:
        report = _write_file(plan, output, overwrite=overwrite, progress=progress)
    else:
        _check_folder(output)
        _check_merging(plan, cells)
        with (
            atomic_directory(output, overwrite=overwrite) as folder,
            _workspace(output) as work,
            processes(workers) as run,
        ):
            rows = validate_sources(run, plan, Path(work), progress, over_sky=True)
            report = _fill_folder(run, plan, rows, folder, cells)
    if save_preset is not None:
        place = Path(save_preset)
        write_preset(place, preset_of(plan, place.stem), overwrite=overwrite)
    return report


def _workspace(output: Path) -> TemporaryDirectory[str]:
    """A folder beside the output for what waits on disk."""
    prefix = f".{output.name}."
    return TemporaryDirectory(prefix=prefix, suffix=".part", dir=output.parent)


def _write_file(
    plan: IngestPlan, output: Path, *, overwrite: bool, progress: Progress
) -> IngestReport:
    with (
        open_table(
            output, units=plan.units, kind="stars", overwrite=overwrite
        ) as table,
        _workspace(output) as work,
    ):
        rows = validate_sources(map, plan, Path(work), progress, over_sky=False)
        header = rows.runs[0].schema.empty_table()
        for each in rows.runs:
            table.write(joined([header, read_run(each.stem)]))
        inputs = [identify(path) for path in plan.files]
        report = make_report(plan, rows)
        table.describe(make_record(plan, inputs, report))
    return report


def _fill_folder(
    run: Run, plan: IngestPlan, rows: ValidRows, folder: Path, cells: Cells | None
) -> IngestReport:
    deepest = COUNT_ORDER
    if cells is not None:
        cells = cells.reaching(rows.counts.farthest)
        deepest = min(COUNT_ORDER, cells.coarsest)
    write = partial(write_partition, rows.runs[0].schema, plan.units, cells)
    tiles = tile(rows.stars, STARS_PER_PARTITION, deepest)
    parts = partitions_of(folder, tiles, rows.runs)
    written = np.sum(list(run(write, parts)), axis=0)
    orders = [place.order for place in tiles]
    notes = [
        f"{len(tiles)} partitions in the order of the sky, HEALPix orders "
        f"{min(orders)} to {max(orders)}"
    ]
    if cells is not None:
        notes.append(
            f"{rows.counts.kept:,} stars merged into {written[0]:,} "
            f"pseudo-observations: pixels of nside {cells.nside}, bins of "
            f"{cells.width:.4g} pc; {written[1]:,} outlying stars left by themselves"
        )
    inputs = list(run(identify, plan.files))
    report = make_report(plan, rows, notes)
    record = make_record(plan, inputs, report)
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
    for source in (validator.source for validator in plan.validators):
        if set(MERGED_COLUMNS) & set(source.columns):
            raise InputError(f"{source.path} is merged already: merge its source")
