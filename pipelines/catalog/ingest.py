"""From survey files to the canonical table of stars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.base.errors import InputError
from pipelines.catalog.choices import Choices, Wanted, make_choices
from pipelines.catalog.identity import SeenIdentifiers
from pipelines.catalog.intake import Intake
from pipelines.catalog.partitioned import fill_folder
from pipelines.catalog.provenance import identify, make_record, make_report
from pipelines.catalog.report import IngestReport
from pipelines.catalog.tables import open_table
from pipelines.merge import parse_cells

_FILE_SUFFIXES = (".parquet", ".parq", ".pq")


def ingest(
    sources: Sequence[Path],
    output: Path,
    *,
    preset: str | None = None,
    mappings: Sequence[str] = (),
    where: str | None = None,
    keep: Sequence[str] = (),
    positions_only: bool = False,
    max_bad: float = 0.5,
    min_parallax_snr: float | None = None,
    band: str | None = None,
    any_range: bool = False,
    overwrite: bool = False,
    workers: int = 1,
    merge: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> IngestReport:
    """Read catalogues, drop faulty rows, and write the canonical table.

    Parameters
    ----------
    sources
        Files or folders of files, joined in the order given.
    output
        A name that ends in ``.parquet`` stands for one file in the order of the
        sources, another for a folder of partitions in the order of the sky; see
        `pipelines.catalog.partitioned` and `pipelines.catalog.schema.read_stars`.
    preset
        Name of a survey's description, or the path of one.
    mappings
        ``CANONICAL=COLUMN[:UNIT]``; they go before the preset.
    where
        A further quality cut; see `pipelines.catalog.filters.RowFilter`.
    keep
        Further columns to carry along.
    positions_only
        Whether to leave extinctions out, for a table to predict at.
    max_bad
        The fraction of faulty rows, of those that pass the filters, beyond which the
        input is refused.
    min_parallax_snr
        Parallaxes below this signal-to-noise are cut; default the preset's, or 5.
    band
        What the extinctions are of, e.g. ``A_V`` or ``E(B-V)``
        (`pipelines.bands.passbands.parse_band`); default the preset's.
    any_range
        Whether to take medians of distance and extinction that look as if the unit
        were another (`pipelines.catalog.spread.RANGES`).
    overwrite
        Whether an existing output may be replaced.
    workers
        Number of processes that fill a folder; its rows and counts are the same for
        any number. One file is written by one.
    merge
        ``NSIDE,BINS``: merge the stars of a cell (`pipelines.merge`); needs a folder.
    progress
        Called with the number of rows after each piece.

    Returns
    -------
    The counts, which are saved in the table's provenance too.

    Raises
    ------
    InputError
        If the input is structurally unsound or mostly faulty, or a choice is missing
        or contradictory. Then nothing is written.
    """
    wanted = Wanted(
        preset=preset,
        mappings=mappings,
        where=where,
        keep=keep,
        positions_only=positions_only,
        max_bad=max_bad,
        min_parallax_snr=min_parallax_snr,
        band=band,
        any_range=any_range,
    )
    single = Path(output).suffix in _FILE_SUFFIXES
    cells = parse_cells(merge) if merge is not None else None
    if workers < 1:
        raise InputError(f"--workers is at least 1, not {workers}")
    if single and (workers > 1 or cells is not None):
        raise InputError(
            f"{output} is one file, which one process writes, star by star: with "
            "--workers or --merge name a folder, e.g. -o stars"
        )
    choices = make_choices(sources, wanted)
    if single:
        return _write_file(choices, output, overwrite=overwrite, progress=progress)
    return fill_folder(
        choices,
        output,
        workers=workers,
        cells=cells,
        overwrite=overwrite,
        progress=progress,
    )


def _write_file(
    choices: Choices,
    output: Path,
    *,
    overwrite: bool,
    progress: Callable[[int], None] | None,
) -> IngestReport:
    units, wanted = choices.units, choices.wanted
    with open_table(output, units=units, kind="stars", overwrite=overwrite) as table:
        intake = Intake(choices.selection, table, SeenIdentifiers())
        for source, recipe in zip(choices.sources, choices.recipes, strict=True):
            for rows in intake.take(source, recipe):
                if progress is not None:
                    progress(rows)
        intake.counts.refuse_unsound(
            wanted.max_bad,
            positions_only=wanted.positions_only,
            any_range=wanted.any_range,
        )
        report = make_report(choices, intake.counts)
        inputs = [identify(path) for path in choices.files]
        table.describe(make_record(choices, inputs, report))
    return report
