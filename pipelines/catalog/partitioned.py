r"""A catalogue of any size into a folder of partitions, in the order of the sky.

Three passes, each over pieces that are the same for any number of processes: the
sources are screened piece by piece and spilled to disk; identifiers that occur twice
are found among all; each partition gathers its stars from the spills, sorted by
HEALPix pixel (NESTED, Galactic ``l, b``), equal ones as they were read. Memory is that
of a few pieces for each process, and does not grow with the catalogue beyond eight
bytes for every repeated star. On disk the spills take about 80 bytes a star, beside
the output, until it is done.

The folder holds ``part-NNNNN-order-K-pixel-P.parquet``, which sort in the order of the
sky, ``provenance.json`` and a manifest of all. It appears whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipelines.base.errors import InputError
from pipelines.catalog.choices import Choices
from pipelines.catalog.counts import Counts
from pipelines.catalog.gathering import Gathered, Partition, gather
from pipelines.catalog.intake import REPEATED, Intake, Selection
from pipelines.catalog.mapping import Recipe
from pipelines.catalog.parallel import Run, processes
from pipelines.catalog.parquet_reader import ParquetSource, split_groups
from pipelines.catalog.provenance import identify, make_record, make_report
from pipelines.catalog.readers import open_source
from pipelines.catalog.repeats import find_repeated
from pipelines.catalog.report import IngestReport
from pipelines.catalog.source import Source
from pipelines.catalog.spill import COUNT_ORDER, Spill, SpillWriter
from pipelines.catalog.tables import PROVENANCE
from pipelines.catalog.tiles import Tile, tile
from pipelines.merge import MERGED_COLUMNS, Cells
from pipelines.storage.atomic import MANIFEST, atomic_directory, write_manifest

ROWS_PER_PIECE = 1 << 20
STARS_PER_PARTITION = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some rows of one source: all, or some row groups of a parquet file."""

    path: Path
    groups: range | None
    recipe: Recipe
    selection: Selection
    stem: Path

    def open(self) -> Source:
        if self.groups is None:
            return open_source(self.path)
        return ParquetSource(self.path, self.groups)


@dataclass(slots=True)
class _Sky:
    """What the first pass leaves: spills, counts, stars by pixel at `COUNT_ORDER`."""

    spills: list[Spill]
    counts: Counts
    stars: np.ndarray


def fill_folder(
    choices: Choices,
    output: Path,
    *,
    workers: int,
    cells: Cells | None,
    overwrite: bool,
    progress: Callable[[int], None] | None,
) -> IngestReport:
    """Ingest into a folder; see `pipelines.catalog.ingest.ingest`."""
    _check_output(output)
    _check_merging(choices, cells)
    wanted = choices.wanted
    with (
        atomic_directory(output, overwrite=overwrite) as folder,
        processes(workers) as run,
    ):
        spilled = folder / "spills"
        spilled.mkdir()
        sky = _take(run, choices, spilled, progress)
        repeated = find_repeated(run, sky.spills)
        if len(repeated):
            sky.counts.tally.faults[REPEATED] += len(repeated)
            sky.counts.rows_kept -= len(repeated)
        sky.counts.refuse_unsound(
            wanted.max_bad,
            positions_only=wanted.positions_only,
            any_range=wanted.any_range,
        )
        if cells is not None:
            cells = cells.reaching(sky.counts.farthest)
        np.save(spilled / "repeated.npy", repeated)
        deepest = COUNT_ORDER if cells is None else min(COUNT_ORDER, cells.coarsest)
        tiles = tile(sky.stars, STARS_PER_PARTITION, deepest)
        parts = _partitions(tiles, sky.spills, choices.units, cells, folder)
        written = list(run(gather, parts))
        shutil.rmtree(spilled)
        sky.counts.recount([item.spreads for item in written])
        sky.counts.negative_extinctions = sum(item.negative for item in written)
        notes = _notes(tiles, written, cells)
        report = make_report(choices, sky.counts, notes)
        record = make_record(choices, list(run(identify, choices.files)), report)
        record["merge"] = None if cells is None else str(cells)
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        (folder / PROVENANCE).write_text(text, encoding="utf-8")
        write_manifest(folder)
    return report


def _check_output(output: Path) -> None:
    """Refuse to replace a folder that holds anything else than such a table."""
    output = Path(output)
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not all((output / name).is_file() for name in (PROVENANCE, MANIFEST)):
        raise InputError(
            f"{output} is a folder with other things in it: name one that is not "
            "there yet, or a single file, e.g. stars.parquet"
        )


def _check_merging(choices: Choices, cells: Cells | None) -> None:
    if cells is None:
        return
    if choices.wanted.positions_only:
        raise InputError("positions without extinctions cannot be merged")
    for source in choices.sources:
        if set(MERGED_COLUMNS) & set(source.columns):
            raise InputError(f"{source.path} is merged already: merge its source")


def _pieces(choices: Choices, spilled: Path) -> Iterator[_Piece]:
    number = 0
    for source, recipe in zip(choices.sources, choices.recipes, strict=True):
        runs: Sequence[range | None] = [None]
        if isinstance(source, ParquetSource):
            runs = split_groups(source.path, ROWS_PER_PIECE)
        for groups in runs:
            yield _Piece(
                path=source.path,
                groups=groups,
                recipe=recipe,
                selection=choices.selection,
                stem=spilled / f"{number:07d}",
            )
            number += 1


def _take_piece(piece: _Piece) -> tuple[Path, Counts, list[Spill]]:
    writer = SpillWriter(piece.stem)
    intake = Intake(piece.selection, writer)
    for _ in intake.take(piece.open(), piece.recipe):
        pass
    writer.close()
    return piece.path, intake.counts, writer.spills


def _take(
    run: Run,
    choices: Choices,
    spilled: Path,
    progress: Callable[[int], None] | None,
) -> _Sky:
    stars = np.zeros(12 * 4**COUNT_ORDER, dtype=np.int64)
    sky = _Sky(spills=[], counts=Counts(), stars=stars)
    for path, counts, spills in run(_take_piece, _pieces(choices, spilled)):
        sky.counts.add(counts, path)
        for spill in spills:
            if sky.spills and spill.schema.names != sky.spills[0].schema.names:
                raise InputError(
                    f"the sources' columns do not fit together: {path} gives "
                    f"{spill.schema.names} after {sky.spills[0].schema.names}"
                )
            sky.stars[spill.pixels] += spill.counts
            nothing = spill.counts[:0]
            sky.spills.append(replace(spill, pixels=nothing, counts=nothing))
        if progress is not None:
            progress(counts.rows_read)
    return sky


def _partitions(
    tiles: Sequence[Tile],
    spills: Sequence[Spill],
    units: dict[str, str],
    cells: Cells | None,
    folder: Path,
) -> Iterator[Partition]:
    for number, place in enumerate(tiles):
        name = f"part-{number:05d}-order-{place.order}-pixel-{place.pixel}.parquet"
        yield Partition(
            path=folder / name,
            tile=place,
            schema=spills[0].schema,
            spills=tuple(
                (which, spill.stem)
                for which, spill in enumerate(spills)
                if spill.first < place.last and spill.last >= place.first
            ),
            repeated=folder / "spills" / "repeated.npy",
            units=units,
            cells=cells,
        )


def _notes(
    tiles: Sequence[Tile], written: Sequence[Gathered], cells: Cells | None
) -> list[str]:
    orders = [t.order for t in tiles]
    notes = [
        f"{len(tiles)} partitions in the order of the sky, HEALPix orders "
        f"{min(orders)} to {max(orders)}"
    ]
    if cells is not None:
        observations = sum(item.rows for item in written)
        stars = sum(item.stars for item in written)
        outlying = sum(item.outlying for item in written)
        notes.append(
            f"{stars:,} stars merged into {observations:,} pseudo-observations: pixels "
            f"of nside {cells.nside}, bins of {cells.width:.4g} pc; {outlying:,} "
            "outlying stars left by themselves"
        )
    return notes
