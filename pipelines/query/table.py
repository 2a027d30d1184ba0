"""Questions row by row: columns with names and units that cannot be mistaken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.tables import TableWriter, open_table, to_arrow
from pipelines.query.map import DustMap
from pipelines.query.places import places_of
from pipelines.query.targets import Targets
from pipelines.storage.atomic import atomic_file

Columns = dict[str, np.ndarray]
Units = dict[str, str]
_QUANTITIES = {True: ("extinction", "mag"), False: ("density", "mag/pc")}
_PLACE = {"l": "deg", "b": "deg", "distance": "pc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is asked at each row.

    ``integrated`` lists one quantity or both; without a ``mode`` the answer has mean,
    std and three quantiles. ``extinction`` [mag] asks for the distance where it is
    reached instead.
    """

    integrated: tuple[bool, ...] = (True, False)
    mode: str | None = None
    pct: tuple[float, ...] = ()
    total: bool = False
    extinction: float | None = None
    seed: int = 0

    @property
    def directions(self) -> bool:
        """Whether distances are not looked at."""
        return self.total or self.extinction is not None


def ask(dust: DustMap, coords: SkyCoord, wanted: QueryOptions) -> tuple[Columns, Units]:
    """Columns of answers, shape ``(n,)`` each, and the units of those that have one."""
    if wanted.extinction is not None:
        crossing, flags = dust.distance_at(coords, wanted.extinction, return_flags=True)
        names = ("distance_reached", "distance_lower", "distance_upper")
        parts = {name: part.value for name, part in zip(names, crossing)}
        return parts | _booleans(flags), dict.fromkeys(names, "pc")
    columns, units, flags = {}, {}, None
    for integrated in wanted.integrated:
        what, unit = _QUANTITIES[integrated]
        found, flags = _quantity(dust, coords, wanted, integrated)
        part = {f"{what}_{kind}": values for kind, values in found.items()}
        columns |= part
        units |= dict.fromkeys(part, unit)
    assert flags is not None
    return columns | _booleans(flags), units


def write_answers(
    dust: DustMap,
    targets: Iterable[Targets],
    wanted: QueryOptions,
    output: Path,
    *,
    overwrite: bool = False,
) -> Counter[str]:
    """Ask at every row and write a table of the same rows, parquet or CSV.

    Returns the number of ``rows``, and of those for which each flag is set.

    Raises
    ------
    InputError
        If the output is neither or exists, or there is no row.
    """
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        table = None
        for rows in targets:
            columns, units = ask(dust, rows.coords, wanted)
            columns = _identity(rows, wanted) | columns
            if table is None:
                units = {n: u for n, u in {**_PLACE, **units}.items() if n in columns}
                table = stack.enter_context(_table(output, units, overwrite=overwrite))
                table.describe(_meta(dust))
            table.write(columns)
            counts["rows"] += len(rows.coords)
            for name, column in columns.items():
                if column.dtype == bool:
                    counts[name] += int(column.sum())
        if table is None:
            raise InputError("there is no row to ask the map at")
    return counts


def _meta(dust: DustMap) -> dict[str, str]:
    about = {"program": "dustmap", "version": dustmap.__version__}
    return {**about, "map": dust.path.name, "band": dust.band}


def _quantity(
    dust: DustMap, coords: SkyCoord, wanted: QueryOptions, integrated: bool
) -> tuple[Columns, np.ndarray]:
    if wanted.mode is None:
        parts, flags = dust.summary(coords, integrated=integrated, total=wanted.total)
        return {name: part.value for name, part in parts.items()}, flags
    answer, flags = dust.query(
        coords,
        integrated=integrated,
        mode=wanted.mode,
        pct=list(wanted.pct) or None,
        total=wanted.total,
        return_flags=True,
        rng=np.random.default_rng(wanted.seed),
    )
    if answer.ndim == 1:
        return {wanted.mode: answer.value}, flags
    if wanted.mode == "percentile":
        names = [f"p{p:g}" for p in wanted.pct]
    else:
        width = len(str(max(answer.shape[1] - 1, 0)))
        names = [f"sample{i:0{width}}" for i in range(answer.shape[1])]
    return dict(zip(names, answer.value.T)), flags


def _identity(rows: Targets, wanted: QueryOptions) -> Columns:
    places = places_of(rows.coords, total=wanted.directions)
    named: Columns = {} if rows.source_id is None else {"source_id": rows.source_id}
    named |= {"l": places.l, "b": places.b}
    return named if wanted.directions else named | {"distance": places.distance}


def _booleans(flags: np.ndarray) -> Columns:
    return {name: flags[name] for name in flags.dtype.names or ()}


@contextmanager
def _table(output: Path, units: Units, *, overwrite: bool) -> Iterator[TableWriter]:
    if output.suffix == ".parquet":
        with open_table(
            output, units=units, kind="answers", overwrite=overwrite
        ) as table:
            yield table
    elif output.suffix == ".csv":
        with atomic_file(output, overwrite=overwrite) as temporary:
            writer = _Csv(temporary)
            try:
                yield writer
            finally:
                writer.close()
    else:
        raise InputError(f"{output}: the output's name ends in .parquet or .csv")


class _Csv:
    """Plain CSV: names without units, which the command's last line says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pacsv.CSVWriter | None = None

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        arrays = {name: to_arrow(column) for name, column in columns.items()}
        batch = pa.RecordBatch.from_pydict(arrays)
        writer = self._writer or self._begin(batch.schema)
        self._writer = writer
        writer.write_batch(batch)

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Nothing: the format has no place for it."""

    def _begin(self, schema: pa.Schema) -> pacsv.CSVWriter:
        options = pacsv.WriteOptions(quoting_style="needed", quoting_header="none")
        return pacsv.CSVWriter(self._path, schema, write_options=options)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
