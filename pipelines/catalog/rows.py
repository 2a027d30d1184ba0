"""Validation of the rows of one source, and conversion to canonical columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from astropy.coordinates import Galactocentric

from pipelines.base.errors import InputError
from pipelines.catalog.filters import RowFilter
from pipelines.catalog.frames import Stated, placed
from pipelines.catalog.presets import Origin
from pipelines.catalog.schema import NAMES
from pipelines.catalog.sources import Source, read_columns
from pipelines.catalog.units import INPUT_UNITS, kind_of

Columns = dict[str, np.ndarray]
"""Columns of shape ``(n,)`` by canonical name."""
Progress = Callable[[int], None] | None


# What people write for a missing number, of either sign: only nines, up to nine before
# the point and four behind it, and powers of ten from 1e9 on; in both precisions.
_NINES = [10.0**n - 10.0**-m for n in range(1, 10) for m in range(5)][1:]
_WRITTEN = np.array([*np.round(_NINES, 4), *(10.0**n for n in range(9, 39))])
_MARKS = np.union1d(_WRITTEN, _WRITTEN.astype(np.float32))


class Mark(NamedTuple):
    """A value of a quantity in a catalogue that may stand for a missing one."""

    catalogue: int
    name: str
    value: float


Suspects = dict[Mark, np.ndarray]
"""Rows by mark."""


@dataclass(slots=True)
class Tally:
    """Counts of rows read and dropped, each under its first reason."""

    rows_read: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    kept: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))
    """Mask of the remaining rows of the current batch, shape ``(n,)``."""
    angles: list[np.ndarray] = field(default_factory=list)
    """Least and largest longitude and latitude of the sources [deg], if any."""
    marks: Counter[Mark] = field(default_factory=Counter)
    near: Counter[tuple[int, str, float]] = field(default_factory=Counter)
    """Other values, by the nearest power of ten."""
    stated: Counter[str] = field(default_factory=Counter)
    """Kept rows by the frame that their file states."""
    bounded: Counter[str] = field(default_factory=Counter)
    """Rows with bounds, and in ``outside`` those whose value they do not enclose."""
    outside: Counter[str] = field(default_factory=Counter)

    def drop(self, bad: np.ndarray, reason: str, *, cut: bool = False) -> None:
        """Drop rows, shape ``(n,)``, that are faulty or fail a quality cut."""
        count = int((self.kept & bad).sum())
        if count:
            (self.cuts if cut else self.faults)[reason] += count
            self.kept &= ~bad

    def mark(self, values: Columns, catalogue: int, names: Iterable[str]) -> Suspects:
        """Count the marks of the named columns ``(n,)``, and return the rows of each.

        Two equal angles are a mark of the position; a single one may have any value.
        """
        found: Suspects = {}

        def note(name: str, rows: np.ndarray, held: np.ndarray) -> None:
            for value in np.unique(held):
                mark = Mark(catalogue, name, float(str(value)))
                found[mark] = rows[held == value]
                self.marks[mark] += len(found[mark])

        for first, second in (("ra", "dec"), ("l", "b")):
            if first in values:
                equal = self.kept & (values[first] == values[second])
                note("position", np.flatnonzero(equal), values[first][equal])
        for name in sorted(names):
            column, power = values[name], _power_of_ten(values[name])
            # This range holds the marks beside a power of ten.
            near = self.kept & (column / power > 0.89) & (column / power < 1.11)
            marked = near & np.isin(np.abs(column), _MARKS)
            for value, count in Counter(power[near & ~marked].tolist()).items():
                self.near[catalogue, name, value] += count
            # In single precision, since 99.99 is another number there.
            note(name, np.flatnonzero(marked), column[marked].astype(np.float32))
        return found

    def fill_values(self) -> list[Mark]:
        """Return the marks that occur more often than all other values near them.

        Around a measured value there are others, within 11% of its power of ten: 999 pc
        among stars to 2 kpc is a distance. All rows of a catalogue count, in any order
        and batches. Two equal angles are a mark of the position if several stars have
        them.
        """
        return [
            Mark(catalogue, name, value)
            for (catalogue, name, value), count in self.marks.items()
            if count > (name == "position")
            and (not value or count > self.near[catalogue, name, _power_of_ten(value)])
        ]


def _power_of_ten(values: Any) -> Any:
    """Return the nearest power of ten, with the sign of a value."""
    return np.copysign(10.0 ** np.rint(np.log10(np.abs(values))), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """A reader of one source.

    ``recipe`` holds the origin of each quantity, and ``factors`` convert to the units
    (and the band) of the table. ``filters`` are quality cuts and ``carried`` further
    columns, with factors, by name. ``survey`` names all rows of a source without such a
    column, if the table has one, and ``frame`` is the one that the file states.
    """

    source: Source
    recipe: Mapping[str, Origin]
    factors: dict[str, float]
    filters: Mapping[str, RowFilter]
    carried: Mapping[str, tuple[str, float]]
    min_parallax_snr: float
    catalogue: int
    survey: str | None = None
    frame: Stated | None = None

    def batches(
        self, tally: Tally, progress: Progress = None
    ) -> Iterator[tuple[np.ndarray, Columns, Suspects]]:
        """Yield numbers and canonical columns, shape ``(n,)``, of sound rows.

        All other rows are counted. Repeated identifiers and `Tally.fill_values` remain,
        as finding them needs all rows; numbers of rows with marks are the third item.
        Raises `InputError` if the source is truncated or a column is of a wrong type.
        """
        requests = {
            name: (o.column, "identifier" if name in NAMES else kind_of(o.unit))
            for name, o in self.recipe.items()
            if o.column is not None
        }
        if not requests:
            raise InputError("every quantity is a constant: map at least one column")
        carried = {name: (each[0], "kept") for name, each in self.carried.items()}
        cuts = [cut for each in self.filters.values() for cut in each.kinds.items()]
        first = 0
        wanted = [*requests.values(), *cuts, *carried.values()]
        for batch in read_columns(self.source, wanted):
            rows = len(next(iter(batch.values())))
            tally.rows_read += rows
            tally.kept = np.ones(rows, dtype=bool)
            for name, row_filter in self.filters.items():
                held = {each[0]: batch[each] for each in row_filter.kinds.items()}
                tally.drop(~row_filter.passes(held), name, cut=True)
            given = {name: batch[request] for name, request in requests.items()}
            named = {n: given.pop(n) for n in NAMES if n in given}
            if "survey" in named:
                tally.drop(np.ma.getmaskarray(named["survey"]), "survey missing")
            values = {
                name: given[name] if o.value is None else np.full(rows, o.value)
                for name, o in self.recipe.items()
                if name not in NAMES
            }
            with np.errstate(all="ignore"):
                for name, column in values.items():
                    tally.drop(np.isnan(column), f"{name} missing or not a number")
                    tally.drop(np.isinf(column), f"{name} infinite")
                if "x" in values:
                    # One coordinate may well be -99 pc; three equal ones are a mark.
                    x, y, z = (values[axis] for axis in "xyz")
                    marked = (x == y) & (x == z) & np.isin(np.abs(x), _MARKS)
                    tally.drop(marked, "position is a fill value like -999")
                # Angles and coordinates may have any value.
                names = given.keys() - {"l", "b", "ra", "dec", "x", "y", "z"}
                suspects = tally.mark(values, self.catalogue, names)
                values = {n: self.factors[n] * column for n, column in values.items()}
                check_quantities(tally, values, self.min_parallax_snr)
            kept = np.flatnonzero(tally.kept)
            if len(kept):
                # A star without an identifier has 0 or the empty text.
                found = {
                    n: np.ma.filled(c, 0 if c.dtype.kind == "i" else "")[kept]
                    for n, c in named.items()
                }
                if "survey" in found:
                    found["survey"] = found["survey"].astype(str)
                elif self.survey is not None:
                    found["survey"] = np.full(len(kept), self.survey)
                sound = {n: c[kept] for n, c in values.items()}
                found |= _canonical(sound, tally, self.frame)
                for name, (column, factor) in self.carried.items():
                    held = batch[column, "kept"][kept]
                    found[name] = held if factor == 1 else factor * held
                yield first + kept, found, {m: first + r for m, r in suspects.items()}
            first += rows
            if progress is not None:
                progress(rows)


def check_quantities(tally: Tally, values: Columns, min_parallax_snr: float) -> None:
    """Drop impossible rows, in canonical units; add errors and distances."""
    if "x" in values:
        values["distance"] = np.sqrt(sum(values[axis] ** 2 for axis in "xyz"))
    if "distance_modulus" in values:
        values["distance"] = 10 ** (1 + values["distance_modulus"] / 5)
    limits = {"b": 90, "dec": 90, "l": 360, "ra": 360}
    for name, limit in (limits | {"distance": 1e9, "extinction": 1e6}).items():
        if name in values:
            reason = f"|{name}| > {limit:g} {INPUT_UNITS[name]}"
            tally.drop(np.abs(values[name]) > limit, reason)
    for name in ("distance", "parallax"):
        if name in values:
            tally.drop(values[name] <= 0, f"{name} not positive")
    for name in ("distance", "extinction"):
        if f"{name}_lower" in values:
            lower, upper = values[f"{name}_lower"], values[f"{name}_upper"]
            outside = (values[name] < lower) | (values[name] > upper)
            tally.bounded[name] += int(tally.kept.sum())
            tally.outside[name] += int((tally.kept & outside).sum())
            tally.drop(lower > upper, f"{name}_lower > {name}_upper")
            values[f"{name}_error"] = (upper - lower) / 2
        if f"{name}_error_lower" in values:
            lower, upper = f"{name}_error_lower", f"{name}_error_upper"
            for side in (lower, upper):
                tally.drop(values[side] < 0, f"{side} negative")
            values[f"{name}_error"] = (values[lower] + values[upper]) / 2
    for name in ("parallax", "distance_modulus", "distance", "extinction"):
        if (name := f"{name}_error") in values:
            tally.drop(values[name] == 0, f"{name} zero")
            tally.drop(values[name] < 0, f"{name} negative")
    if "parallax" in values:
        parallax, error = values["parallax"], values["parallax_error"]
        reason = f"parallax below {min_parallax_snr:g} times its error"
        tally.drop(parallax < min_parallax_snr * error, reason, cut=True)
        values["distance"] = 1000 / parallax
        values["distance_error"] = 1000 * error / parallax**2
    if "distance_modulus_error" in values:
        relative = np.log(10) / 5 * values["distance_modulus_error"]
        values["distance_error"] = relative * values["distance"]
    if "distance_error" in values:
        tiny = values["distance_error"] < 1e-6 * values["distance"]
        tally.drop(tiny, "distance_error absurdly small")


def _canonical(values: Columns, tally: Tally, stated: Stated | None) -> Columns:
    """Return ``l, b`` [deg], from the stated frame or ICRS, and the other columns."""
    if "x" in values:
        x, y, z = (values[axis] for axis in "xyz")
        l = np.rad2deg(np.arctan2(y, x))  # noqa: E741
        b = np.rad2deg(np.arctan2(z, np.hypot(x, y)))
    else:
        l, b = (values[n] for n in (("ra", "dec") if "ra" in values else ("l", "b")))  # noqa: E741
        every = np.stack([*tally.angles, *np.transpose([l, b])])
        tally.angles = [every.min(axis=0), every.max(axis=0)]
    if "ra" in values or stated is not None:
        far = stated is not None and isinstance(stated.frame, Galactocentric)
        given = {n: c for n, c in values.items() if far or n != "distance"}
        galactic: Any = placed(given, stated and stated.frame).galactic
        sky = galactic.spherical
        l, b = sky.lon.deg, sky.lat.deg  # noqa: E741
        values |= {"distance": sky.distance.pc} if far else {}
    if stated is not None:
        tally.stated[stated.text] += len(values["distance"])
    names = ("distance", "extinction", "extinction_error", "distance_error")
    rest = {name: values[name] for name in names if name in values}
    return {"l": np.mod(np.asarray(l), 360.0), "b": np.asarray(b), **rest}
