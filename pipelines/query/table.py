"""Questions row by row: columns with names and units that cannot be mistaken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from astropy.coordinates import SkyCoord

import dustmap
from pipelines.base.errors import InputError
from pipelines.catalog.tables import open_table, to_arrow
from pipelines.query.map import FLAGS, DustMap
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
        columns: Columns = {name: part.value for name, part in zip(names, crossing)}
        units: Units = dict.fromkeys(names, "pc")
    else:
        columns, units = {}, {}
        flags: np.ndarray = np.empty(0, dtype=FLAGS)
        for integrated in wanted.integrated:
            what, unit = _QUANTITIES[integrated]
            found, flags = _quantity(dust, coords, wanted, integrated)
            columns |= {f"{what}_{kind}": values for kind, values in found.items()}
            units |= {f"{what}_{kind}": unit for kind in found}
    return columns | {name: flags[name] for name in flags.dtype.names or ()}, units


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
    about = {"program": "dustmap", "version": dustmap.__version__}
    about |= {"map": dust.path.name, "band": dust.band}
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        write = None
        for coords, source_id in targets:
            columns, units = ask(dust, coords, wanted)
            columns = _identity(coords, source_id, wanted) | columns
            if write is None:
                table = _table(output, columns, units, about, overwrite=overwrite)
                write = stack.enter_context(table)
            write(columns)
            counts["rows"] += len(coords)
            flags = (name for name, column in columns.items() if column.dtype == bool)
            counts.update({name: int(columns[name].sum()) for name in flags})
        if write is None:
            raise InputError("there is no row to ask the map at")
    return counts


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


def _identity(
    coords: SkyCoord, source_id: np.ndarray | None, wanted: QueryOptions
) -> Columns:
    places = places_of(coords, total=wanted.directions)
    named: Columns = {} if source_id is None else {"source_id": source_id}
    named |= {"l": places.l, "b": places.b}
    return named if wanted.directions else named | {"distance": places.distance}


@contextmanager
def _table(
    output: Path, first: Columns, units: Units, about: Units, *, overwrite: bool
) -> Iterator[Callable[[Columns], None]]:
    """What writes rows like the first; CSV has no place for units and provenance."""
    if output.suffix == ".parquet":
        units = {n: u for n, u in {**_PLACE, **units}.items() if n in first}
        with open_table(
            output, units=units, kind="answers", overwrite=overwrite
        ) as table:
            table.describe(about)
            yield table.write
    elif output.suffix == ".csv":
        options = pacsv.WriteOptions(quoting_style="needed", quoting_header="none")
        schema = _batch(first).schema
        with (
            atomic_file(output, overwrite=overwrite) as temporary,
            pacsv.CSVWriter(temporary, schema, write_options=options) as table,
        ):
            yield lambda columns: table.write_batch(_batch(columns))
    else:
        raise InputError(f"{output}: the output's name ends in .parquet or .csv")


def _batch(columns: Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({n: to_arrow(c) for n, c in columns.items()})
