"""The choice of the source column that supplies each canonical quantity."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.catalog.presets import Preset
from pipelines.catalog.sources import Source, describe_absence, locate
from pipelines.catalog.units import INPUT_UNITS, parse_unit, sexagesimal

CANONICAL = ("source_id", *INPUT_UNITS)
POSITIONS = (("l", "b"), ("ra", "dec"), ("x", "y", "z"))
USER, PRESET, NAME = 0, 1, 2
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A unit that a column's name ends in.
_SUFFIX = re.compile(r".*_(kpc|pc|mas|mag|deg)$")
_PRODUCT = re.compile(rf"({_NUMBER})\s*\*\s*(.+)|(.+?)\s*\*\s*({_NUMBER})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One canonical quantity's origin: a column, a constant, or (neither) ignored.

    ``origin`` ranks who says so: `USER` before `PRESET` before `NAME`, a column that
    bears the canonical name. A column is multiplied by ``times``; ``factor``, which
    includes that, leads to the canonical unit, once it is chosen.
    """

    canonical: str
    column: str | None = None
    times: float = 1.0
    value: float | None = None
    unit: str | None = None
    optional: bool = False
    origin: int = USER
    factor: float = 1.0

    def __str__(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        times = f"{self.times:g}*" if self.times != 1 else ""
        return f"{times}{self.column or self.value}{unit}"

    @property
    def kind(self) -> str:
        """Kind that its column is read as (`pipelines.catalog.units.KINDS`)."""
        if self.canonical == "source_id":
            return "identifier"
        return sexagesimal(self.unit) or "number"

    @property
    def ignored(self) -> bool:
        """True if the quantity is not read at all."""
        return self.column is None and self.value is None


Recipe = dict[str, Binding]
"""Origins of the quantities of one source, by canonical name."""


def parse_mapping(text: str) -> Binding:
    """Parse ``CANONICAL=COLUMN[:UNIT]``, where a number stands for a constant.

    A column may be multiplied by one: ``extinction=0.42*av:mag``. ``CANONICAL=none``
    says that the quantity shall not be used.

    Raises
    ------
    InputError
        If the form is another or the canonical name unknown.
    """
    canonical, equals, origin = (part.strip() for part in text.partition("="))
    column, colon, unit = (part.strip() for part in origin.rpartition(":"))
    if not colon:
        column, unit = origin, ""
    if not equals or not column or (colon and not unit):
        raise InputError(f"--map {text}: expected CANONICAL=COLUMN[:UNIT]")
    if canonical not in CANONICAL:
        raise InputError(
            f"--map {text}: {canonical!r} is not a canonical column; these are "
            f"{', '.join(CANONICAL)}"
        )
    if column == "none":
        return Binding(canonical=canonical)
    value = _constant(column)
    if value is None:
        times = 1.0
        if found := _PRODUCT.fullmatch(column):
            times, column = float(found[1] or found[4]), found[2] or found[3]
            if canonical == "source_id" or not times:
                raise InputError(
                    f"--map {text}: {origin!r} cannot be the {canonical}: expected a "
                    "column of numbers, and a factor that is not zero"
                )
        return Binding(
            canonical=canonical, column=column, times=times, unit=unit or None
        )
    if not unit or canonical == "source_id":
        raise InputError(
            f"--map {text}: a constant needs a unit, e.g. "
            f"{canonical}={column}:{INPUT_UNITS.get(canonical, 'mag')}"
        )
    return Binding(canonical=canonical, value=value, unit=unit)


def parse_mappings(texts: Iterable[str]) -> dict[str, Binding]:
    """Parse several; one canonical name may be mapped once."""
    bindings: dict[str, Binding] = {}
    for text in texts:
        binding = parse_mapping(text)
        if binding.canonical in bindings:
            raise InputError(f"--map {binding.canonical}=... is given twice")
        bindings[binding.canonical] = binding
    return bindings


def choose(
    source: Source,
    user: Mapping[str, Binding],
    preset: Preset | None,
    *,
    positions_only: bool,
) -> Recipe:
    """Decide where each quantity comes from.

    The user's mappings go before the preset. Without a preset a column that bears a
    canonical name is used too, if its unit is known.

    Raises
    ------
    InputError
        If something is missing, given twice in different ways, mapped but of no use,
        or without a unit.
    """
    choice = _Choice(source, _candidates(source, user, preset))
    # Of columns that only bear the names, those whose units are known go first.
    systems = sorted(POSITIONS, key=lambda system: not choice.have_units(system))
    names = choice.one_of("position (l and b, ra and dec, or x, y and z)", *systems)
    if "x" in names:
        names += [n for n in ("distance_error",) if n in choice.candidates]
    else:
        what = "distance (or parallax with parallax_error)"
        pair = ("parallax", "parallax_error")
        chosen = choice.one_of(what, ("distance",), pair)
        names += chosen
        names += choice.error("distance") if chosen == ["distance"] else []
    if not positions_only:
        names += choice.one_of("extinction", ("extinction",))
        names += choice.error("extinction")
    names += ["source_id"] if "source_id" in choice.candidates else []
    unused = [n for n, b in user.items() if n not in names and not b.ignored]
    if positions_only:
        unused = [name for name in unused if not name.startswith("extinction")]
    if unused:
        raise InputError(
            f"--map {unused[0]}=... is of no use here, since the table is made from "
            f"{', '.join(names)}: drop it, or map its counterpart (a parallax needs an "
            "error, bounds come in pairs)"
        )
    return {name: settled(source, choice.candidates[name]) for name in names}


class _Choice:
    """The candidates for each quantity, and the choice among them."""

    def __init__(self, source: Source, candidates: dict[str, Binding]) -> None:
        self._source = source
        self.candidates = candidates

    def error(self, name: str) -> list[str]:
        """Choose the error of a chosen quantity, or the bounds that give it."""
        error, bounds = f"{name}_error", (f"{name}_lower", f"{name}_upper")
        # A preset's error belongs to its own value, not to another that is mapped.
        if self.candidates[name].origin == USER:
            for item in (error, *bounds):
                if item in self.candidates and self.candidates[item].origin == PRESET:
                    del self.candidates[item]
        what = f"{error} (or lower and upper bounds, or one for all stars: {error}=0.05"
        needed = name == "extinction"
        return self.one_of(f"{what}:mag)", (error,), bounds, needed=needed)

    def one_of(
        self, what: str, *alternatives: tuple[str, ...], needed: bool = True
    ) -> list[str]:
        """Choose the complete alternative that is first by origin, then by place."""
        complete = [a for a in alternatives if set(a) <= set(self.candidates)]
        mapped = [a for a in complete if self._origin(a) == USER]
        if len(mapped) > 1:
            rivals = "; ".join(", ".join(each) for each in mapped)
            raise InputError(f"more than one {what} is mapped: keep one of {rivals}")
        if complete:
            return list(min(complete, key=self._origin))
        if not needed:
            return []
        nearest = max(alternatives, key=lambda a: len(set(a) & set(self.candidates)))
        missing = next(name for name in nearest if name not in self.candidates)
        raise InputError(
            f"{self._source.path} gives no {what}. It "
            f"{describe_absence(self._source, missing)}. Map a column, e.g. --map "
            f"{missing}=COLUMN:{INPUT_UNITS[missing]}"
        )

    def _origin(self, names: Sequence[str]) -> int:
        return min(self.candidates[name].origin for name in names)

    def have_units(self, names: Sequence[str]) -> bool:
        bindings = [self.candidates[name] for name in names if name in self.candidates]
        return all(b.unit or _unit_in_file(self._source, b) for b in bindings)


def _candidates(
    source: Source, user: Mapping[str, Binding], preset: Preset | None
) -> dict[str, Binding]:
    there = source.columns
    if preset is None:
        names = [name for name in CANONICAL if name in there]
        found = {n: Binding(canonical=n, column=n, origin=NAME) for n in names}
    else:
        found = {
            name: Binding(canonical=name, origin=PRESET, **dict(item))
            for name, item in preset.columns.items()
            if not item.optional or item.column in there
        }
    return {
        n: binding for n, binding in {**found, **user}.items() if not binding.ignored
    }


def settled(source: Source, binding: Binding) -> Binding:
    """Return the binding with its unit and the factor to the canonical unit.

    The unit is the one that the user or a preset states, that of the file, or that
    which the column's name ends in, as in ``d_kpc``. Angles as text, in ``hms`` or
    ``dms``, are read as degrees.

    Raises
    ------
    InputError
        If no unit is known, the only one is not understood, they contradict each
        other, or the unit measures something else.
    """
    canonical = binding.canonical
    if canonical == "source_id":
        return binding
    column = binding.column or str(binding.value)
    target = u.Unit(INPUT_UNITS[canonical])
    suffix = _SUFFIX.fullmatch(column)
    stated, found = binding.unit, _unit_in_file(source, binding)
    found = found or (suffix[1] if suffix and not stated else None)
    said = stated or found or ""
    if sexagesimal(said) and target == u.deg:
        return replace(binding, unit=said, factor=binding.times)
    example = "kpc" if target == u.pc else target
    remedy = f"--map {canonical}={column}:{example}"
    unit = parse_unit(said) if said else None
    in_file = parse_unit(found) if stated and found else None
    if not said:
        fault = (
            f"no unit is given or in the file; say it, e.g. {remedy} (hms or dms if it "
            f"is sexagesimal text), or leave the column out: --map {canonical}=none"
        )
    elif unit is None:
        fault = f"unit {said!r} is not understood; say it, e.g. {remedy}"
    elif not unit.is_equivalent(target):
        fault = (
            f"unit {said!r} is not a unit of {canonical}, which is in {target}; map "
            f"another column or another unit: {remedy}"
        )
    elif in_file is not None and not (
        in_file.is_equivalent(unit) and abs(in_file.to(unit) - 1) < 1e-12
    ):
        fault = (
            f"the file says {found!r} but {stated!r} was stated; leave the unit out "
            f"(--map {canonical}={column}) or correct the file"
        )
    else:
        factor = binding.times * float(np.real(unit.to(target)))
        return replace(binding, unit=said, factor=factor)
    raise InputError(f"{source.path}, column {column!r} for {canonical}: {fault}")


def _unit_in_file(source: Source, binding: Binding) -> str | None:
    if binding.column is None:
        return None
    base, _ = locate(source, binding.column)
    return source.columns[base].unit


def _constant(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
