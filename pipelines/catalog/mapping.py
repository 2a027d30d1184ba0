"""Which source column supplies which canonical quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.base.errors import InputError
from pipelines.catalog.presets import Preset
from pipelines.catalog.source import Source, describe_absence, locate
from pipelines.catalog.units import INPUT_UNITS, conversion_factor

CANONICAL = ("source_id", *INPUT_UNITS)
POSITIONS = (("l", "b"), ("ra", "dec"), ("x", "y", "z"))
USER, PRESET, NAME = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One canonical quantity's origin: a column, a constant, or (neither) ignored.

    ``origin`` ranks who says so: `USER` before `PRESET` before `NAME`, a column that
    bears the canonical name. ``factor`` leads to the canonical unit, once it is chosen.
    """

    canonical: str
    column: str | None = None
    value: float | None = None
    unit: str | None = None
    optional: bool = False
    origin: int = USER
    factor: float = 1.0

    def __str__(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.column or self.value}{unit}"

    @property
    def ignored(self) -> bool:
        """Whether the quantity is not to be read at all."""
        return self.column is None and self.value is None


def parse_mapping(text: str) -> Binding:
    """Parse ``CANONICAL=COLUMN[:UNIT]``, where a number stands for a constant.

    ``CANONICAL=none`` says that the quantity shall not be used.

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
            f"--map {text}: {canonical!r} is no canonical column; they are "
            f"{', '.join(CANONICAL)}"
        )
    if column == "none":
        return Binding(canonical=canonical)
    value = _constant(column)
    if value is None:
        return Binding(canonical=canonical, column=column, unit=unit or None)
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


Recipe = dict[str, Binding]
"""What is read from one source, by canonical name."""


def choose(
    source: Source,
    user: Mapping[str, Binding],
    preset: Preset | None,
    *,
    positions_only: bool,
) -> Recipe:
    """Decide where each quantity comes from.

    What the user maps goes before what the preset says. Without a preset a column
    that bears a canonical name is used too, if its unit is known.

    Raises
    ------
    InputError
        If something is missing, given twice in different ways, mapped but of no use,
        or without a unit.
    """
    choice = _Choice(source, _candidates(source, user, preset))
    names = choice.position()
    names += choice.distance(derived="x" in names)
    if not positions_only:
        names += choice.with_error("extinction", required=True)
    names += choice.present("source_id")
    _refuse_unused(user, names, positions_only)
    return {name: _settled(source, choice.candidates[name]) for name in names}


def _settled(source: Source, binding: Binding) -> Binding:
    """With the unit that is stated or found, and the factor from that."""
    found, factor = _unit_in_file(source, binding), 1.0
    if binding.canonical != "source_id":
        factor = conversion_factor(
            binding.canonical,
            binding.column or str(binding.value),
            stated=binding.unit,
            found=found,
            source=str(source.path),
        )
    return replace(binding, unit=binding.unit or found, factor=factor)


class _Choice:
    """The candidates for each quantity, and the choice among them."""

    def __init__(self, source: Source, candidates: dict[str, Binding]) -> None:
        self._source = source
        self.candidates = candidates

    def present(self, *names: str) -> list[str]:
        return [name for name in names if name in self.candidates]

    def position(self) -> list[str]:
        complete = [s for s in POSITIONS if len(self.present(*s)) == len(s)]
        if not complete:
            raise self._missing("position (l and b, ra and dec, or x, y and z)", "l")
        ranked = sorted(complete, key=self._rank)
        rivals = [s for s in ranked if self._rank(s) == self._rank(ranked[0])]
        if self._origin(*ranked[0]) == USER and len(rivals) > 1:
            raise InputError(
                "more than one position is mapped: keep one of "
                + "; ".join(", ".join(system) for system in rivals)
            )
        return list(ranked[0])

    def distance(self, *, derived: bool) -> list[str]:
        options = sorted(self.present("distance", "parallax"), key=self._origin)
        if derived and self._origin(*options) == USER:
            raise InputError("x, y and z already give the distance: map no other")
        if derived:
            return self.present("distance_error")
        if not options:
            raise self._missing("distance or parallax", "distance")
        if self._origin(options[-1]) == USER and len(options) > 1:
            raise InputError("both distance and parallax are mapped: keep one")
        if options[0] == "distance":
            return self.with_error("distance", required=False)
        if "parallax_error" not in self.candidates:
            raise self._missing(
                "parallax_error, which distances from parallaxes need", "parallax_error"
            )
        return ["parallax", "parallax_error"]

    def with_error(self, name: str, *, required: bool) -> list[str]:
        """Choose a quantity and its error, or the bounds that give the error."""
        if name not in self.candidates:
            raise self._missing(name, name)
        error, bounds = f"{name}_error", (f"{name}_lower", f"{name}_upper")
        # A preset's error belongs to its own value, not to another that is mapped.
        if self._origin(name) == USER:
            for item in self.present(error, *bounds):
                if self._origin(item) == PRESET:
                    del self.candidates[item]
        single, pair = self.present(error), self.present(*bounds)
        if len(pair) == 1:
            raise InputError(f"{pair[0]} is given without its counterpart")
        if self._origin(*single) == self._origin(*pair) == USER:
            raise InputError(
                f"both {error} and the bounds of {name} are mapped: keep one"
            )
        chosen = single if self._origin(*single) <= self._origin(*pair) else pair
        if required and not chosen:
            raise self._missing(
                f"{error} (or lower and upper bounds, or one error for all stars: "
                f"--map {error}=0.05:mag)",
                error,
            )
        return [name, *chosen]

    def _origin(self, *names: str) -> int:
        """The highest rank among candidates; beyond all ranks without any."""
        return min((self.candidates[name].origin for name in names), default=NAME + 1)

    def _rank(self, system: Sequence[str]) -> tuple[int, bool]:
        bindings = [self.candidates[name] for name in system]
        unknown = any(not (b.unit or _unit_in_file(self._source, b)) for b in bindings)
        return self._origin(*system), unknown

    def _missing(self, what: str, name: str) -> InputError:
        return InputError(
            f"{self._source.path} gives no {what}. It "
            f"{describe_absence(self._source, name)}. Map a column, e.g. --map "
            f"{name}=COLUMN:{INPUT_UNITS[name]}"
        )


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


def _unit_in_file(source: Source, binding: Binding) -> str | None:
    if binding.column is None:
        return None
    base, _ = locate(source, binding.column)
    return source.columns[base].unit


def _refuse_unused(
    user: Mapping[str, Binding], names: Sequence[str], positions_only: bool
) -> None:
    unused = [n for n, b in user.items() if n not in names and not b.ignored]
    if positions_only:
        unused = [name for name in unused if not name.startswith("extinction")]
    if unused:
        raise InputError(
            f"--map {unused[0]}=... is of no use here, since the table is made from "
            f"{', '.join(names)}: drop it"
        )


def _constant(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
