"""Rows of one source: validated, and turned into canonical columns."""

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
from pipelines.catalog.mapping import Recipe
from pipelines.catalog.sources import Source, read_columns

_SENTINELS = (-99.0, -999.0, -9999.0, -99999.0)
_LIMITS = {"b": 90, "dec": 90, "l": 360, "ra": 360}
_TINY_EXTINCTION_ERROR = 1e-5
"""Least extinction error, per typical extinction or error of the batch."""
_TINY_DISTANCE_ERROR = 1e-6
"""Least distance error, per distance."""

Columns = dict[str, np.ndarray]
"""Canonical name to a column of shape ``(n,)``."""
Progress = Callable[[int], None] | None


@dataclass(slots=True)
class Tally:
    """Rows read and dropped, each counted under the first reason that drops it.

    ``filtered`` rows did not pass a quality cut by name; the ``faults`` are judged
    among the others. ``largest_angles`` are longitude and latitude [deg] as the sources
    have them, −1 if they have none; ``identifier_kind`` is text, integers or nothing.
    """

    rows_read: int = 0
    filtered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    largest_angles: np.ndarray = field(default_factory=lambda: np.full(2, -1.0))
    identifier_kind: str = ""


@dataclass(slots=True)
class _Mask:
    """The rows of a batch that are still ``kept``, shape ``(n,)``."""

    kept: np.ndarray
    tally: Tally

    def drop(self, bad: np.ndarray, reason: str, *, cut: bool = False) -> None:
        """Drop faulty rows, shape ``(n,)``, or sound ones that fail a quality cut."""
        count = int((self.kept & bad).sum())
        if count:
            (self.tally.cuts if cut else self.tally.faults)[reason] += count
            self.kept &= ~bad


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """A reader of one source, and of the rows that are kept.

    ``filters`` are quality cuts by name, ``carried`` further columns of the source by
    their names in the output, and ``catalogue`` is the number of the one it belongs to.
    """

    source: Source
    recipe: Recipe
    filters: Mapping[str, RowFilter]
    carried: Mapping[str, str]
    min_parallax_snr: float
    catalogue: int = 0

    def batches(
        self, tally: Tally, progress: Progress = None
    ) -> Iterator[tuple[np.ndarray, Columns]]:
        """Yield numbers and canonical columns, shape ``(n,)``, of sound rows.

        All other rows are counted. Repeated identifiers stay: they can be found among
        the rows of all sources only. ``progress`` receives the number of rows after
        each batch.

        Raises
        ------
        InputError
            If the source breaks off or a column holds what it must not.
        """
        requests = {
            name: (binding.column, binding.kind)
            for name, binding in self.recipe.items()
            if binding.column is not None
        }
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        for row_filter in self.filters.values():
            for column, kind in row_filter.kinds.items():
                requests[f"{kind} {column}"] = (column, kind)
        for name, column in self.carried.items():
            requests[f"keep {name}"] = (column, "any")
        first = 0
        for batch in read_columns(self.source, requests):
            rows = len(next(iter(batch.values())))
            kept, columns = self._validated(batch, rows, tally)
            if len(kept):
                yield first + kept, columns
            first += rows
            if progress is not None:
                progress(rows)

    def _validated(
        self, batch: Columns, rows: int, tally: Tally
    ) -> tuple[np.ndarray, Columns]:
        tally.rows_read += rows
        mask = _Mask(np.ones(rows, dtype=bool), tally)
        for name, row_filter in self.filters.items():
            columns = {c: batch[f"{kind} {c}"] for c, kind in row_filter.kinds.items()}
            mask.drop(~row_filter.passes(columns), name, cut=True)
        tally.filtered += int((~mask.kept).sum())
        identifiers = batch.get("source_id")
        if identifiers is not None and rows:
            kind = "text" if identifiers.dtype == object else "integers"
            if tally.identifier_kind not in ("", kind):
                raise InputError(
                    f"{self.source.path}: source_id is {kind} here but "
                    f"{tally.identifier_kind} before: make them alike, or leave them "
                    "out with --map source_id=none"
                )
            tally.identifier_kind = kind
            mask.drop(np.ma.getmaskarray(identifiers), "source_id missing")
        values = {
            name: batch[name] if b.value is None else np.full(rows, b.value)
            for name, b in self.recipe.items()
            if name != "source_id"
        }
        with np.errstate(all="ignore"):
            _check_values(mask, values)
            for name, column in values.items():
                values[name] = column * self.recipe[name].factor
            _check_quantities(mask, values, self.min_parallax_snr)
        kept = np.flatnonzero(mask.kept)
        if not len(kept):
            return kept, {}
        values = {name: column[kept] for name, column in values.items()}
        for axis, names in enumerate((("l", "ra"), ("b", "dec"))):
            for angle in (values[name] for name in names if name in values):
                largest = max(tally.largest_angles[axis], np.abs(angle).max())
                tally.largest_angles[axis] = largest
        columns = _canonical(values)
        if identifiers is not None:
            columns = {"source_id": np.ma.getdata(identifiers)[kept], **columns}
        return kept, columns | {n: batch[f"keep {n}"][kept] for n in self.carried}


def _check_values(mask: _Mask, values: Columns) -> None:
    """Drop rows with a missing, infinite or sentinel value, in the file's units."""
    for name, column in values.items():
        mask.drop(np.isnan(column), f"{name} missing or not a number")
        mask.drop(np.isinf(column), f"{name} infinite")
        if name not in ("x", "y", "z"):
            mask.drop(np.isin(column, _SENTINELS), f"{name} is a sentinel like -999")
    if "x" in values:
        # One coordinate may well be -99 pc; all three alike are a mark.
        alike = (values["x"] == values["y"]) & (values["x"] == values["z"])
        marked = alike & np.isin(values["x"], _SENTINELS)
        mask.drop(marked, "position is a sentinel like -999")


def _check_quantities(mask: _Mask, values: Columns, min_parallax_snr: float) -> None:
    """Drop impossible rows, in canonical units; add errors and distances."""
    if "x" in values:
        values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
    for name, limit in _LIMITS.items():
        if name in values:
            mask.drop(np.abs(values[name]) > limit, f"|{name}| > {limit} deg")
    for name in ("distance", "parallax"):
        if name in values:
            mask.drop(values[name] <= 0, f"{name} not positive")
    for name in ("distance", "extinction"):
        if f"{name}_lower" in values:
            lower, upper = values[f"{name}_lower"], values[f"{name}_upper"]
            mask.drop(lower > upper, f"{name}_lower > {name}_upper")
            values[f"{name}_error"] = (upper - lower) / 2
    for name in ("parallax_error", "distance_error", "extinction_error"):
        if name in values:
            mask.drop(values[name] == 0, f"{name} zero")
            mask.drop(values[name] < 0, f"{name} negative")
    if "parallax" in values:
        parallax, error = values["parallax"], values["parallax_error"]
        reason = f"parallax below {min_parallax_snr:g} times its error"
        mask.drop(parallax < min_parallax_snr * error, reason, cut=True)
        values["distance"] = 1000 / parallax
        values["distance_error"] = 1000 * error / parallax**2
    if "distance_error" in values:
        tiny = values["distance_error"] < _TINY_DISTANCE_ERROR * values["distance"]
        mask.drop(tiny, "distance_error absurdly small")
    if "extinction_error" in values and mask.kept.any():
        error = values["extinction_error"]
        size = np.maximum(np.abs(values["extinction"]), error)[mask.kept]
        tiny = error < _TINY_EXTINCTION_ERROR * np.median(size)
        mask.drop(tiny, "extinction_error absurdly small")


def _canonical(values: Columns) -> Columns:
    """Return ``l, b`` [deg], ``distance`` [pc] and what else there is, float64.

    Equatorial coordinates are taken as ICRS.
    """
    if "ra" in values:
        icrs = SkyCoord(ra=values["ra"] * u.deg, dec=values["dec"] * u.deg)
        galactic: Any = icrs.galactic
        l, b = galactic.l.deg, galactic.b.deg  # noqa: E741
    elif "x" in values:
        x, y, z = (values[axis] for axis in "xyz")
        l = np.rad2deg(np.arctan2(y, x))  # noqa: E741
        b = np.rad2deg(np.arctan2(z, np.hypot(x, y)))
    else:
        l, b = values["l"], values["b"]  # noqa: E741
    names = ("distance", "extinction", "extinction_error", "distance_error")
    rest = {name: values[name] for name in names if name in values}
    return {"l": np.mod(np.asarray(l), 360.0), "b": np.asarray(b), **rest}
