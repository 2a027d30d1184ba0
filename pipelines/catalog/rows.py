"""Validation of the rows of one source, and conversion to canonical columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter
from pipelines.catalog.presets import Origin
from pipelines.catalog.schema import NAMES
from pipelines.catalog.sources import Source, read_columns
from pipelines.catalog.units import sexagesimal

_SENTINELS = (-99.0, -999.0, -9999.0, -99999.0)
_LIMITS = {"b": 90, "dec": 90, "l": 360, "ra": 360}
_TINY_DISTANCE_ERROR = 1e-6
"""Smallest relative distance error."""

Columns = dict[str, np.ndarray]
"""Columns of shape ``(n,)`` by canonical name."""
Progress = Callable[[int], None] | None


@dataclass(slots=True)
class Tally:
    """Counts of rows read and dropped, each under its first reason.

    ``cuts`` are quality cuts, ``faults`` all other reasons. ``kept`` is the mask of
    remaining rows of the current batch, shape ``(n,)``. ``largest_angles`` are the
    sources' longitude and latitude [deg], −1 if absent.
    """

    rows_read: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))
    largest_angles: np.ndarray = field(default_factory=lambda: np.full(2, -1.0))

    def drop(self, bad: np.ndarray, reason: str, *, cut: bool = False) -> None:
        """Drop rows, shape ``(n,)``, that are faulty or fail a quality cut."""
        count = int((self.kept & bad).sum())
        if count:
            (self.cuts if cut else self.faults)[reason] += count
            self.kept &= ~bad


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """A reader of one source.

    ``recipe`` holds the origin of each quantity, and ``factors`` convert to the units
    (and the band) of the table. ``filters`` are quality cuts by name, ``carried``
    further columns of the source by name in the output, and ``catalogue`` is the number
    of its catalogue. ``survey`` names all rows of a source without such a column, if
    the table has one.
    """

    source: Source
    recipe: Mapping[str, Origin]
    factors: dict[str, float]
    filters: Mapping[str, RowFilter]
    carried: Mapping[str, str]
    min_parallax_snr: float
    catalogue: int
    survey: str | None = None

    def batches(
        self, tally: Tally, progress: Progress = None
    ) -> Iterator[tuple[np.ndarray, Columns]]:
        """Yield numbers and canonical columns, shape ``(n,)``, of sound rows.

        All other rows are counted. Repeated identifiers remain, as finding them needs
        the rows of all sources. ``progress`` receives the number of rows after each
        batch.

        Raises
        ------
        InputError
            If the source is truncated or a column has values of a wrong type.
        """
        columns = {n: o.column for n, o in self.recipe.items() if o.column is not None}
        kinds = {n: sexagesimal(o.unit) or "number" for n, o in self.recipe.items()}
        kinds["source_id"] = kinds["survey"] = "identifier"
        requests = [(column, kinds[name]) for name, column in columns.items()]
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        for row_filter in self.filters.values():
            requests += row_filter.kinds.items()
        requests += [(column, "any") for column in self.carried.values()]
        first = 0
        for batch in read_columns(self.source, requests):
            rows = len(next(iter(batch.values())))
            tally.rows_read += rows
            tally.kept = np.ones(rows, dtype=bool)
            for name, row_filter in self.filters.items():
                wanted = row_filter.kinds.items()
                found = {column: batch[column, kind] for column, kind in wanted}
                tally.drop(~row_filter.passes(found), name, cut=True)
            given = {n: batch[column, kinds[n]] for n, column in columns.items()}
            named = {n: given.pop(n) for n in NAMES if n in given}
            for name, column in named.items():
                tally.drop(np.ma.getmaskarray(column), f"{name} missing")
            values = {
                name: given[name] if o.value is None else np.full(rows, o.value)
                for name, o in self.recipe.items()
                if name not in NAMES
            }
            with np.errstate(all="ignore"):
                _check_values(tally, values)
                values = {n: self.factors[n] * column for n, column in values.items()}
                _check_quantities(tally, values, self.min_parallax_snr)
            kept = np.flatnonzero(tally.kept)
            if len(kept):
                found = _canonical({n: c[kept] for n, c in values.items()}, tally)
                names = {n: np.ma.getdata(c)[kept] for n, c in named.items()}
                if "survey" in names:
                    names["survey"] = names["survey"].astype(str)
                elif self.survey is not None:
                    names["survey"] = np.full(len(kept), self.survey)
                found = {**names, **found}
                for name, column in self.carried.items():
                    found[name] = batch[column, "any"][kept]
                yield first + kept, found
            first += rows
            if progress is not None:
                progress(rows)


def _check_values(tally: Tally, values: Columns) -> None:
    """Drop rows with a missing, infinite or sentinel value, in the file's units."""
    for name, column in values.items():
        tally.drop(np.isnan(column), f"{name} missing or not a number")
        tally.drop(np.isinf(column), f"{name} infinite")
        if name not in ("x", "y", "z"):
            tally.drop(np.isin(column, _SENTINELS), f"{name} is a sentinel like -999")
    if "x" in values:
        # One coordinate may well be -99 pc; three equal ones are a sentinel.
        alike = (values["x"] == values["y"]) & (values["x"] == values["z"])
        marked = alike & np.isin(values["x"], _SENTINELS)
        tally.drop(marked, "position is a sentinel like -999")


def _check_quantities(tally: Tally, values: Columns, min_parallax_snr: float) -> None:
    """Drop impossible rows, in canonical units; add errors and distances."""
    if "x" in values:
        values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
    for name, limit in _LIMITS.items():
        if name in values:
            tally.drop(np.abs(values[name]) > limit, f"|{name}| > {limit} deg")
    for name in ("distance", "parallax"):
        if name in values:
            tally.drop(values[name] <= 0, f"{name} not positive")
    for name in ("distance", "extinction"):
        if f"{name}_lower" in values:
            lower, upper = values[f"{name}_lower"], values[f"{name}_upper"]
            tally.drop(lower > upper, f"{name}_lower > {name}_upper")
            values[f"{name}_error"] = (upper - lower) / 2
    for name in ("parallax_error", "distance_error", "extinction_error"):
        if name in values:
            tally.drop(values[name] == 0, f"{name} zero")
            tally.drop(values[name] < 0, f"{name} negative")
    if "parallax" in values:
        parallax, error = values["parallax"], values["parallax_error"]
        reason = f"parallax below {min_parallax_snr:g} times its error"
        tally.drop(parallax < min_parallax_snr * error, reason, cut=True)
        values["distance"] = 1000 / parallax
        values["distance_error"] = 1000 * error / parallax**2
    if "distance_error" in values:
        tiny = values["distance_error"] < _TINY_DISTANCE_ERROR * values["distance"]
        tally.drop(tiny, "distance_error absurdly small")


def _canonical(values: Columns, tally: Tally) -> Columns:
    """Return ``l, b`` [deg], ``distance`` [pc] and all other columns, float64.

    Equatorial coordinates are taken as ICRS. ``tally`` receives the largest angles.
    """
    if "x" in values:
        x, y, z = (values[axis] for axis in "xyz")
        l = np.rad2deg(np.arctan2(y, x))  # noqa: E741
        b = np.rad2deg(np.arctan2(z, np.hypot(x, y)))
    else:
        l, b = (values[n] for n in (("ra", "dec") if "ra" in values else ("l", "b")))  # noqa: E741
        largest = np.abs([l, b]).max(axis=1)
        tally.largest_angles = np.maximum(tally.largest_angles, largest)
    if "ra" in values:
        galactic: Any = SkyCoord(ra=l * u.deg, dec=b * u.deg).galactic
        l, b = galactic.l.deg, galactic.b.deg  # noqa: E741
    names = ("distance", "extinction", "extinction_error", "distance_error")
    rest = {name: values[name] for name in names if name in values}
    return {"l": np.mod(np.asarray(l), 360.0), "b": np.asarray(b), **rest}
