"""The staging of sound rows in a DuckDB database.

DuckDB finds repeated identifiers, computes quantiles and sorts. Beyond `MEMORY` it
spills to a folder on disk. Every query of rows has a total order, by file and row, so
results do not depend on the number of threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import healpy
import numpy as np
import pyarrow as pa

from pipelines.base.errors import InputError
from pipelines.catalog.rows import Columns, Mark, Suspects
from pipelines.catalog.schema import CANONICAL_UNITS, COLUMNS
from pipelines.catalog.tables import ROWS_PER_BATCH, to_arrow

MEMORY = 512
"""MiB for one thread; every further thread adds a quarter."""
DEEPEST = 29
"""HEALPix order of the sorting, 0.4 milliarcseconds."""
SMALLEST_ERROR = 1e-5
"""Smallest extinction error, relative to the typical extinction or error of all rows:
one of millions would outweigh all others."""
UNMATCHED = (
    "(source_id IS NULL OR lower(CAST(source_id AS VARCHAR)) IN ('0', '-1', '-99', "
    "'-999', '-9999', '-9223372036854775808', '', 'nan', 'none', 'null', 'na', "
    "'n/a', '-', '--'))"
)
"""SQL condition of rows without an identifier: what catalogues write instead."""


class Repeats(NamedTuple):
    """Numbers of rows with an identifier that another row keeps."""

    within: int
    """Repeats in one catalogue."""
    across: int
    """Objects of an earlier catalogue."""
    pairs: dict[tuple[int, int], int]
    """Objects shared by two catalogues, by their numbers."""


class Staging:
    """The rows of all sources, with canonical and carried columns.

    ``folder`` holds the database: DuckDB keeps 3 bytes of every row of a table without
    a file in memory, and could not sort 5·10⁷ rows in 512 MiB. Columns that are not
    canonical are named ``kept6, kept7, ...`` because SQL ignores case. Further columns
    are the numbers of catalogue, file and row, and the HEALPix pixel (NESTED, order
    `DEEPEST`, Galactic).
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.schema: pa.Schema = pa.schema([])
        self.widened: dict[str, str] = {}
        self._connection = duckdb.connect(
            str(folder / "stars.duckdb"),
            config={
                "memory_limit": f"{MEMORY * (3 + threads) // 4}MiB",
                "temp_directory": str(folder),
                "threads": threads,
                "preserve_insertion_order": False,
            },
        )
        self._run("SET enable_external_access = false")
        self._run("CREATE TABLE marks (file INT, row BIGINT, mark VARCHAR)")
        # Disable the bar on standard output. A notebook without ipywidgets refuses the
        # setting.
        if self._run("SELECT current_setting('enable_progress_bar')") == [(True,)]:
            self._run("SET enable_progress_bar = false")

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._connection.close()
        if isinstance(error, duckdb.Error):
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"DuckDB could not sort the stars: {reason}. Nothing was written; free "
                "memory or disk space beside the output, or use fewer --workers"
            ) from error

    def add(
        self,
        rows: np.ndarray,
        columns: Columns,
        *,
        file: int,
        catalogue: int,
        suspects: Suspects,
    ) -> None:
        """Append columns, shape ``(n,)``, of the numbered rows of a file.

        Columns that not every file has are null elsewhere. Different types become the
        wider one, or text, which is exact.
        """
        table = pa.table({name: to_arrow(column) for name, column in columns.items()})
        before = self.schema
        kinds: dict[str, Any] = dict(zip(before.names, before.types))
        for name, kind in zip(table.column_names, table.schema.types):
            known = wide = kinds.setdefault(name, kind)
            pair = [pa.schema([(name, each)]) for each in (known, kind)]
            try:
                wide = pa.unify_schemas(pair, promote_options="permissive").types[0]
                table[name].cast(wide)
                if pa.types.is_integer(known) and pa.types.is_floating(wide):
                    column = self._names[before.names.index(name)]
                    if self.aggregate(f"max(abs({column}))") > 2**53:
                        wide = pa.string()
            except pa.ArrowException:
                wide = pa.string()
            if wide != known:
                self.widened[name] = f"{known} and {kind} become {wide}"
            kinds[name] = wide
        self.schema = pa.schema(list(kinds.items()))
        table = table.cast(pa.schema([(n, kinds[n]) for n in table.column_names]))
        place = (columns["l"], columns["b"])
        pixel = healpy.ang2pix(2**DEEPEST, *place, nest=True, lonlat=True)
        names = dict(zip(self.schema.names, self._names))
        own: dict[str, Any] = {names[n]: table[n] for n in table.column_names}
        own |= {"catalogue": np.full(len(rows), catalogue, np.int32)}
        own |= {"file": np.full(len(rows), file, np.int32), "row": rows, "pixel": pixel}
        self._connection.register("batch", pa.table(own))
        into = "INSERT INTO stars BY NAME FROM batch"
        if self.schema != before:
            both = "FROM stars UNION ALL BY NAME " if before.names else ""
            into = f"CREATE OR REPLACE TABLE stars AS {both}FROM batch"
        self._run(into)
        self._connection.unregister("batch")
        for mark, found in suspects.items():
            self._connection.register("batch", pa.table({"row": found}))
            self._run(f"INSERT INTO marks SELECT {file}, row, $${mark}$$ FROM batch")
            self._connection.unregister("batch")

    def drop_fill_values(
        self, marks: Iterable[Mark], catalogues: Sequence[str]
    ) -> Counter[str]:
        """Drop the suspects of marks, then ends of columns, and count rows by reason.

        An end is a value of several rows apart from all others. The gap beside it must
        be wider than a fifth of their range and thrice that of their outermost tenth;
        fewer than 20 distinct others are steps. Raises `InputError` if the gap is not
        wider than the whole range, as the value may then be measured.
        """
        dropped: Counter[str] = Counter()
        if not self.schema.names:
            return dropped

        def drop(name: str, value: float, rows: str) -> int:
            count = self._run(f"DELETE FROM stars WHERE {rows}")[0][0]
            if count:
                dropped[f"{name} is a fill value ({value:g})"] += count
            return count

        for mark in marks:
            marked = f"SELECT file, row FROM marks WHERE mark = $${mark}$$"
            drop(mark.name, mark.value, f"(file, row) IN ({marked})")
        measured = ("distance", "distance_error", "extinction", "extinction_error")
        measured = [name for name in measured if name in self.schema.names]
        found = 1
        while found:
            found = 0
            numbers = range(len(catalogues))
            for number, name, sign in product(numbers, measured, (1, -1)):
                own = f"""FROM (SELECT {sign} * {name} AS x FROM stars
                    WHERE catalogue = {number} AND {name} IS NOT NULL)"""
                value, rows, least, most = self._run(
                    f"""SELECT any_value(low), count(*) FILTER (x = low),
                        min(x) FILTER (x > low), max(x) FILTER (x > low)
                    {own}, (SELECT min(x) AS low {own})"""
                )[0]
                # One or two equal values may be a coincidence.
                if rows < 3 or least is None:
                    continue
                if (gap := least - value) <= (most - least) / 5:
                    continue
                tenth, distinct = self._run(
                    "SELECT approx_quantile(x, 0.1), approx_count_distinct(x) "
                    f"{own} WHERE x > {value!r}"
                )[0]
                if distinct < 20 or gap <= 3 * (tenth - least):
                    continue
                value *= sign
                if gap <= most - least:
                    low, high = sorted((sign * least, sign * most))
                    raise InputError(
                        f"{rows:,} rows of {catalogues[number]} have {name} = "
                        f"{value:g} {CANONICAL_UNITS[name]}, apart from all others, "
                        f"{low:.4g} to {high:.4g}: if this stands for a missing value, "
                        "drop it by --where 'COLUMN != VALUE', else pass --any-range"
                    )
                where = f"catalogue = {number} AND {name} = {value!r}"
                found += drop(name, value, where)
        return dropped

    def drop_tiny_errors(self) -> int:
        """Drop rows with absurdly small extinction errors, and return their number."""
        if not self.schema.names:
            return 0
        sizes = "greatest(abs(extinction), extinction_error)"
        (typical,) = self.quantiles(sizes, (50,))
        least = SMALLEST_ERROR * typical
        return self._run(f"DELETE FROM stars WHERE extinction_error < {least!r}")[0][0]

    def drop_repeats(self, *, across: bool) -> Repeats:
        """Drop repeated rows of an identifier in a catalogue, or in all if ``across``.

        The row of the earliest catalogue, and there of the smallest extinction error,
        remains, in any order of the rows. Rows without one (`UNMATCHED`) repeat none.
        """
        if "source_id" not in self.schema.names:
            return Repeats(0, 0, {})
        # A source may hold measurements of one object by several surveys.
        own = "catalogue, survey" if "survey" in self.schema.names else "catalogue"
        measured = ("extinction_error", *CANONICAL_UNITS)
        best = ", ".join(n for n in measured if n in self.schema.names) + ", file, row"
        # Only rows of repeated identifiers, which are few, are sorted.
        self._run(
            f"""CREATE TEMP TABLE repeats AS
            SELECT rowid AS place, catalogue, source_id,
                row_number() OVER (
                    PARTITION BY source_id, {own} ORDER BY {best}) > 1 AS within,
                row_number() OVER (
                    PARTITION BY source_id ORDER BY catalogue, {best}) > 1 AS again
            FROM stars WHERE source_id IN (
                SELECT source_id FROM stars GROUP BY source_id
                HAVING count(*) > 1 AND NOT {UNMATCHED})"""
        )
        within, others = self._run(
            "SELECT count(*) FILTER (within), count(*) FILTER (again AND NOT within) "
            "FROM repeats"
        )[0]
        pairs = self._run(
            """SELECT a.catalogue, b.catalogue, count(*)
            FROM repeats a JOIN repeats b
                ON a.source_id = b.source_id AND a.catalogue < b.catalogue
            WHERE NOT a.within AND NOT b.within GROUP BY ALL ORDER BY ALL"""
        )
        chosen = f"SELECT place FROM repeats WHERE {'again' if across else 'within'}"
        self._run(f"DELETE FROM stars WHERE rowid IN ({chosen})")
        return Repeats(within, others, {(a, b): count for a, b, count in pairs})

    def count(self) -> dict[int, int]:
        """Return the number of rows by catalogue, without empty ones."""
        query = "SELECT catalogue, count(*) FROM stars GROUP BY ALL ORDER BY ALL"
        return dict(self._run(query)) if self.schema.names else {}

    def halves(self, name: str, catalogue: int) -> tuple[Any, ...]:
        """Return the number of rows above the middle of a column's range, and ends.

        They are those of the values below the middle, and of those above it.
        """
        return self._run(
            f"""WITH own AS (SELECT {name} AS x FROM stars
                WHERE catalogue = {catalogue} AND {name} IS NOT NULL),
            ends AS (SELECT (min(x) + max(x)) / 2 AS mid FROM own)
            SELECT count(*) FILTER (x > mid), min(x), max(x) FILTER (x <= mid),
                min(x) FILTER (x > mid), max(x) FROM own, ends"""
        )[0]

    def gaps(self) -> dict[str, int]:
        """Return the number of rows of files without a column, by its name."""
        rows = {
            name: "(SELECT count(*) AS n FROM stars GROUP BY file "
            f"HAVING count({column}) = 0)"
            for name, column in zip(self.schema.names, self._names)
        }
        found = {n: self.aggregate("coalesce(sum(n), 0)", q) for n, q in rows.items()}
        return {name: int(count) for name, count in found.items() if count}

    def aggregate(self, expression: str, rows: str = "stars") -> float:
        """Return an SQL aggregate of the table ``stars``, or of rows selected there."""
        return self._run(f"SELECT {expression} FROM {rows}")[0][0]

    def quantiles(self, name: str, percents: tuple[int, ...]) -> tuple[float, ...]:
        """Return the k-th smallest of the n values, ``k = ⌈percent · n / 100⌉``.

        They are exact: the values are sorted, on disk beyond `MEMORY`.
        """
        total = sum(self.count().values())
        places = [max(-(-percent * total // 100), 1) for percent in percents]
        found = self._run(
            f"""SELECT place, value FROM (
                SELECT {name} AS value, row_number() OVER (ORDER BY {name}) AS place
                FROM stars) WHERE place IN {tuple(places)} ORDER BY place"""
        )
        return tuple(dict(found)[place] for place in places)

    def partitions(self, stars: int) -> Iterator[pa.Table]:
        """Yield all rows in the order of the sky, about ``stars`` at a time.

        Rows of a pixel are in the order of the sources; pixels are never divided.
        """
        rows, pixels = self.schema.empty_table(), np.empty(0, np.int64)
        for table, pixel in self.sorted("pixel, file, row"):
            rows = pa.concat_tables([rows, table])
            pixels = np.append(pixels, pixel)
            while len(rows) > stars:
                ends = 1 + np.flatnonzero(np.diff(pixels))
                if not ends.size:
                    break
                # The last end within the limit, or else the first one.
                end = int(ends[max(np.searchsorted(ends, stars, side="right") - 1, 0)])
                yield rows.slice(0, end)
                rows, pixels = rows.slice(end), pixels[end:]
        if len(rows):
            yield rows

    def sorted(self, order: str) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yield all rows and their pixels, shape ``(n,)``, in a total order.

        ``order`` names some of ``pixel``, ``file`` and ``row``.
        """
        names = ", ".join([*self._names, "pixel"])
        if "source_id" in self.schema.names:
            # A star without an identifier has 0 or the empty text.
            text = pa.types.is_string(self.schema.field("source_id").type)
            nothing = "''" if text else "0"
            names = names.replace("source_id", f"coalesce(source_id, {nothing})", 1)
        found = self._connection.sql(f"SELECT {names} FROM stars ORDER BY {order}")
        for batch in found.to_arrow_reader(ROWS_PER_BATCH):
            *columns, pixel = batch.columns
            table = pa.table(columns, names=self.schema.names)
            yield table.cast(self.schema), pixel.to_numpy()

    @property
    def _names(self) -> list[str]:
        names = enumerate(self.schema.names)
        return [name if name in COLUMNS else f"kept{n}" for n, name in names]

    def _run(self, query: str) -> list[tuple[Any, ...]]:
        # Fetch all rows: DuckDB refuses other work before.
        return self._connection.execute(query).fetchall()
