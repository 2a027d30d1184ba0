"""Which source column supplies which canonical quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipelines.base.errors import InputError
from pipelines.catalog.presets import Preset
from pipelines.catalog.readers import describe_absence, locate
from pipelines.catalog.source import Source
from pipelines.catalog.units import INPUT_UNITS, conversion_factor

CANONICAL = ("source_id", *INPUT_UNITS)
POSITIONS = (("l", "b"), ("ra", "dec"), ("x", "y", "z"))
USER, PRESET, NAME = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One canonical quantity's origin: a column, a constant, or (neither) ignored.

    ``origin`` ranks who says so: `USER` before `PRESET` before `NAME`, a column that
    bears the canonical name.
    """

    canonical: str
    column: str | None = None
    value: float | None = None
    unit: str | None = None
    optional: bool = False
    origin: int = USER

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
    if not equals or not origin:
        raise InputError(f"--map {text}: expected CANONICAL=COLUMN[:UNIT]")
    if canonical not in CANONICAL:
        raise InputError(
            f"--map {text}: {canonical!r} is no canonical column; they are "
            f"{', '.join(CANONICAL)}"
        )
    column, colon, unit = (part.strip() for part in origin.rpartition(":"))
    if not colon:
        column, unit = origin, ""
    if not column or (colon and not unit):
        raise InputError(f"--map {text}: expected CANONICAL=COLUMN[:UNIT]")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is read from one source, and the factors to canonical units."""

    bindings: dict[str, Binding]
    factors: dict[str, float]

    def describe(self) -> dict[str, str]:
        """Say for each canonical quantity where it comes from."""
        text = {}
        for name, binding in self.bindings.items():
            unit = f" [{binding.unit}]" if binding.unit else ""
            text[name] = f"{binding.column or binding.value}{unit}"
        return text


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
    bindings = {n: _with_unit(source, choice.candidates[n]) for n in names}
    factors = {n: _factor(source, b) for n, b in bindings.items() if n != "source_id"}
    return Recipe(bindings=bindings, factors=factors)


class _Choice:
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
        first = ranked[0]
        rivals = [s for s in ranked if self._rank(s) == self._rank(first)]
        if self._rank(first)[0] == USER and len(rivals) > 1:
            raise InputError(
                "more than one position is mapped: keep one of "
                + "; ".join(", ".join(system) for system in rivals)
            )
        return list(first)

    def distance(self, *, derived: bool) -> list[str]:
        options = self.present("distance", "parallax")
        if derived and any(self.candidates[name].origin == USER for name in options):
            raise InputError("x, y and z already give the distance: map no other")
        if derived:
            return self.present("distance_error")
        if not options:
            raise self._missing("distance or parallax", "distance")
        name = min(options, key=lambda n: self.candidates[n].origin)
        other = [n for n in options if n != name]
        if other and self.candidates[other[0]].origin == USER:
            raise InputError("both distance and parallax are mapped: keep one")
        if name == "parallax" and "parallax_error" not in self.candidates:
            raise self._missing(
                "parallax_error, which distances from parallaxes need", "parallax_error"
            )
        if name == "parallax":
            return ["parallax", "parallax_error"]
        return self.with_error("distance", required=False)

    def with_error(self, name: str, *, required: bool) -> list[str]:
        """Choose a quantity and its error, or the bounds that give the error."""
        if name not in self.candidates:
            raise self._missing(name, name)
        error, bounds = f"{name}_error", (f"{name}_lower", f"{name}_upper")
        # A preset's error belongs to its own value, not to another that is mapped.
        if self.candidates[name].origin == USER:
            for item in self.present(error, *bounds):
                if self.candidates[item].origin == PRESET:
                    del self.candidates[item]
        single, pair = self.present(error), self.present(*bounds)
        if len(pair) == 1:
            raise InputError(f"{pair[0]} is given without its counterpart")
        ranks = [
            min((self.candidates[n].origin for n in s), default=9)
            for s in (single, pair)
        ]
        if ranks == [USER, USER]:
            raise InputError(
                f"both {error} and the bounds of {name} are mapped: keep one"
            )
        chosen = single if ranks[0] <= ranks[1] else pair
        if required and not chosen:
            raise self._missing(
                f"{error} (or lower and upper bounds, or one error for all stars: "
                f"--map {error}=0.05:mag)",
                error,
            )
        return [name, *chosen]

    def _origin(self, names: Sequence[str]) -> int:
        return min((self.candidates[name].origin for name in names), default=NAME + 1)

    def _rank(self, system: Sequence[str]) -> tuple[int, bool]:
        bindings = [self.candidates[name] for name in system]
        unknown = any(not (b.unit or _unit_in_file(self._source, b)) for b in bindings)
        return min(b.origin for b in bindings), unknown

    def _missing(self, what: str, name: str) -> InputError:
        return InputError(
            f"{self._source.path} gives no {what}. It "
            f"{describe_absence(self._source, name)}. Map a column, e.g. --map "
            f"{name}=COLUMN:{INPUT_UNITS[name]}"
        )


def _candidates(
    source: Source, user: Mapping[str, Binding], preset: Preset | None
) -> dict[str, Binding]:
    found: dict[str, Binding] = {}
    if preset is None:
        for name in CANONICAL:
            if name in source.columns:
                found[name] = Binding(canonical=name, column=name, origin=NAME)
    else:
        for name, item in preset.columns.items():
            if item.optional and item.column not in source.columns:
                continue
            found[name] = Binding(
                canonical=name,
                column=item.column,
                value=item.value,
                unit=item.unit,
                optional=item.optional,
                origin=PRESET,
            )
    found |= user
    return {name: binding for name, binding in found.items() if not binding.ignored}


def _unit_in_file(source: Source, binding: Binding) -> str | None:
    if binding.column is None:
        return None
    base, _ = locate(source, binding.column)
    return source.columns[base].unit


def _with_unit(source: Source, binding: Binding) -> Binding:
    return replace(binding, unit=binding.unit or _unit_in_file(source, binding))


def _factor(source: Source, binding: Binding) -> float:
    return conversion_factor(
        binding.canonical,
        binding.column or str(binding.value),
        stated=binding.unit,
        found=_unit_in_file(source, binding),
        source=str(source.path),
    )


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
