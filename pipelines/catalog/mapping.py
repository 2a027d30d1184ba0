"""The choice of the source column, and its unit, that supplies each quantity."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from astropy import units as u
from astropy.coordinates import Galactocentric

from pipelines.base.errors import InputError
from pipelines.catalog.frames import Stated, named
from pipelines.catalog.presets import Origin, Preset, list_presets, load_preset
from pipelines.catalog.schema import NAMES
from pipelines.catalog.sources import Source, describe_absence, expression_in, locate
from pipelines.catalog.units import INPUT_UNITS, kind_of, parse_unit

CANONICAL = (*NAMES, *INPUT_UNITS)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TIMES = re.compile(
    rf"(?:({_NUMBER})\s*\*\s*)?(?!\*)(.*?[^*\s])(?:\s*\*\s*({_NUMBER}))?"
)

Names = tuple[str, ...]
Mapped = dict[str, Origin | None]
"""Origin of each quantity mapped by the user; None for unused quantities."""


def parse_mappings(texts: Iterable[str]) -> Mapped:
    """Parse ``CANONICAL=COLUMN[:UNIT]``, or a number instead of a column.

    A column may have a numeric factor, ``extinction=0.42*av:mag``, or be an expression
    with a unit, ``parallax=plx+0.03:mas`` (`pipelines.catalog.filters.Expression`).
    ``CANONICAL=none`` excludes the quantity. Raises `InputError` if the form differs,
    or a canonical name is unknown or mapped twice.
    """
    mapped: Mapped = {}
    form = r"\s*(\w+)\s*=\s*(.*?[^:\s])(?:\s*:\s*([^:]*[^:\s]))?\s*"
    for text in texts:
        found = re.fullmatch(form, text)
        if found is None:
            raise InputError(f"--map {text}: expected CANONICAL=COLUMN[:UNIT]")
        canonical, column, unit = found.groups()
        if canonical not in CANONICAL:
            raise InputError(
                f"--map {text}: {canonical!r} is not a canonical column; expected one "
                f"of {', '.join(CANONICAL)}"
            )
        if canonical in mapped:
            raise InputError(f"--map {canonical}=... is given twice: keep one")
        factor = _TIMES.fullmatch(column)
        times = float((factor and (factor[1] or factor[3])) or 1)
        if not times or (times != 1 and canonical in NAMES):
            fault = "a factor needs a column of numbers, and is not zero"
            raise InputError(f"--map {text}: {fault}")
        is_constant = re.fullmatch(_NUMBER, column) is not None
        if is_constant and (not unit or canonical in NAMES):
            raise InputError(
                f"--map {text}: a constant needs a unit, e.g. --map "
                f"{canonical}={column}:{INPUT_UNITS.get(canonical, 'mag')}"
            )
        # Without validation: errors about unknown units name the file later.
        own: Any = {"value": float(column)} if is_constant else {"column": column}
        origin = Origin.model_construct(unit=unit, **own)
        mapped[canonical] = None if column == "none" else origin
    return mapped


def choose(
    source: Source,
    user: Mapped,
    preset: Preset | None,
    *,
    extinction: bool = True,
    distance: bool = True,
) -> dict[str, tuple[Origin, float]]:
    """Choose and `resolve` the origin of each quantity.

    The user's mappings take precedence over the preset. Without a preset, columns with
    canonical names are used too, if their units are known; with one, for the position
    alone, if the preset's columns of it are absent. Places of a query have no
    ``extinction``, and errors of their distances only if these are mapped, or the
    preset's and present; without ``distance`` they are directions.

    Raises `InputError` if a quantity is missing, given twice in different ways, or
    mapped but unused.
    """
    errors = {n for n in INPUT_UNITS if n.endswith(("_error", "_lower", "_upper"))}
    spare = set() if extinction else errors
    named = {n for n in CANONICAL if n in source.columns} - spare
    described = {n: Origin(column=n) for n in CANONICAL if n in named}
    systems = [("l", "b"), ("ra", "dec"), ("x", "y", "z")]
    if preset is not None:
        # A preset may well be for other columns of the position.
        own, places = preset.columns.items(), {*chain(*systems)}
        absent = {n for n, o in own if _is_absent(source, o)}
        kept = places if absent & places else set()
        described = {n: o for n, o in described.items() if n in kept}
        for name, origin in own:
            if name not in absent or not (origin.optional or name in places | spare):
                described[name] = origin
    every = {**described, **user}
    found = {n: settle(source, o) for n, o in every.items() if o is not None}

    def one_of(what: str, *alternatives: Names, needed: bool = True) -> Names:
        """Choose a complete alternative, the mapped one or else the first."""
        complete = [names for names in alternatives if set(names) <= set(found)]
        mapped = [names for names in complete if set(names) & set(user)]
        if len(mapped) > 1:
            rivals = "; ".join(", ".join(each) for each in mapped)
            raise InputError(f"more than one {what} is mapped: keep one of {rivals}")
        if complete or not needed:
            return next(iter(mapped or complete), ())
        nearest = max(alternatives, key=lambda names: len(set(names) & set(found)))
        missing = next(name for name in nearest if name not in found)
        fault = (
            f"{source.path} gives no {what}. It {describe_absence(source, missing)}. "
            f"Map a column, e.g. --map {missing}=COLUMN:{INPUT_UNITS[missing]}"
        )
        fitting = []
        for name in list_presets() if preset is None else []:
            origins = load_preset(name).columns.values()
            wanted = [o.column for o in origins if o.column and not o.optional]
            if {column.split("[")[0] for column in wanted} <= source.columns.keys():
                fitting.append(name)
        if fitting:
            fault += f". These columns are those of --preset {' or '.join(fitting)}"
        raise InputError(fault)

    def error_of(name: str) -> Names:
        """Choose the error of a chosen quantity, or bounds or offsets for it."""
        error = f"{name}_error"
        bounds, offsets = ((f"{n}_lower", f"{n}_upper") for n in (name, error))
        if preset is not None and name in user:
            # A preset's error belongs to the preset's own value only.
            for item in {error, *bounds, *offsets} - set(user):
                found.pop(item, None)
        what = f"{error} (or lower and upper bounds, or one for all stars: {error}=0.05"
        needed = name == "extinction"
        return one_of(f"{what}:mag)", (error,), bounds, offsets, needed=needed)

    def lack_units(names: Names) -> bool:
        origins = [found[name] for name in names if name in found]
        return not all(o.unit or _unit_in_file(source, o) for o in origins)

    # Columns with canonical names and known units take precedence.
    systems.sort(key=lack_units)
    names = [*one_of("position (l and b, ra and dec, or x, y and z)", *systems)]
    chosen: Names = ("distance",) if "x" in names else ()
    if distance and not chosen:
        precise = ("parallax", "parallax_error")
        chosen = one_of(
            "distance (or distance_modulus, or parallax with parallax_error)",
            ("distance",),
            precise if extinction else precise[:1],
            ("distance_modulus",),
        )
        names += [*chosen, *(error_of("distance") if "distance" in chosen else ())]
    own_errors = (f"{name}_error" for name in chosen if distance)
    names += [name for name in own_errors if name in found and name not in names]
    if extinction:
        names += [*one_of("extinction", ("extinction",)), *error_of("extinction")]
        names += [name for name in NAMES if name in found]
    for name, origin in user.items():
        if origin is not None and name not in names:
            raise InputError(
                f"--map {name}=... is of no use here: the table is made from "
                f"{', '.join(names)}. Drop it, or map its counterpart (error or bound)"
            )
    return {name: resolve(source, name, found[name]) for name in names}


def _is_absent(source: Source, origin: Origin) -> bool:
    """Return true for the plain name of a column that the source lacks."""
    name = origin.column or ""
    return name.isidentifier() and name not in source.columns


def frame_of(source: Source, origins: Mapping[str, Origin]) -> Stated | None:
    """Return the frame that a file states for the columns of a position, or None.

    Right ascensions of a name that ends in ``1950`` or the like are in FK4. Raises
    `InputError` if there are several frames, or one that cannot be transformed from.
    """

    def stated(names: str, whole: Stated | None = None) -> dict[str, Stated]:
        found = {}
        columns = [origins[name].column for name in names.split() if name in origins]
        for column in filter(None, columns):
            derived = expression_in(source, column)
            for each in derived.kinds if derived else (column,):
                one = source.frames.get(locate(source, each)[0], whole)
                found |= {one.text: one} if one else {}
        return found

    year = "ra" in origins and re.search(r"1[89][0-7]\d\b", str(origins["ra"].column))
    whole = source.frames.get("") or named("", year and f"B{year[0]}").get("")
    found = stated("ra dec", whole) | stated("l b x y z")
    text, one = next(iter(found.items()), ("", None))
    if len(found) > 1:
        fault = f"and in {', '.join([*found][1:])}: map columns of one frame"
    elif one is not None and one.frame is None:
        fault = "from which nothing is transformed: use astropy's SkyCoord first"
    elif (
        one is not None
        and isinstance(one.frame, Galactocentric)
        and text not in stated("x distance")
    ):
        fault = "so map the distance from the Galaxy's centre, which is beside them"
    else:
        return one
    raise InputError(f"{source.path}: the position is in the frame {text}, {fault}")


def settle(source: Source, origin: Origin) -> Origin:
    """Return an origin with factor and quotes apart from its column's name.

    It is an expression if no column has its name.
    """
    found = _TIMES.fullmatch(origin.column or "")
    if found is None or origin.column in source.columns:
        return origin
    quoted = re.fullmatch(r"`([^`]+)`|\"([^\"]+)\"", found[2])
    name = (quoted[1] or quoted[2]) if quoted else found[2]
    if name not in source.columns and expression_in(source, name) is not None:
        return origin
    times = float(found[1] or found[3] or 1) * origin.times
    return origin.model_copy(update={"column": name, "times": times})


def resolve(source: Source, canonical: str, origin: Origin) -> tuple[Origin, float]:
    """Return the origin with its unit, and the factor to the canonical unit.

    The unit is stated by the user or a preset, by the file, or at the end of the
    column's name, as in ``d_kpc``. Angles as text, in ``hms`` or ``dms``, are converted
    to degrees, and decadic logarithms, in ``dex(pc)`` or ``[pc]``, to their numbers,
    before the factor, which includes `Origin.times`.

    Raises `InputError` if no unit is known, the only one is not understood, units
    contradict each other, or the unit has other dimensions.
    """
    origin = settle(source, origin)
    if canonical in NAMES:
        return origin, 1.0
    column = origin.column or str(origin.value)
    target = u.Unit(INPUT_UNITS[canonical])
    stated, found = origin.unit, _unit_in_file(source, origin)
    derived = expression_in(source, column) if origin.column else None
    suffix = re.fullmatch(r".*_(kpc|pc|mas|mag|deg)", column)
    said = stated or found or (suffix[1] if suffix and not derived else "")
    known = origin.model_copy(update={"unit": said})
    if kind_of(said) in ("hms", "dms") and target == u.deg:
        return known, origin.times
    unit = parse_unit(said) if said else None
    hours = unit == u.hour and target == u.deg
    # In a file they may be whole hours, with the minutes beside them.
    unit = u.hourangle if hours and stated else unit
    linear: Any = unit.physical_unit if isinstance(unit, u.DexUnit) else unit
    in_file = parse_unit(found) if stated and found and stated != found else None
    name = written(source, origin)
    scale = "hourangle" if hours else "kpc" if target == u.pc else target
    example, hint = f"{column}:{scale}", "State it, e.g."
    if not said:
        fault = "no unit is given or in the file (hms or dms if it is sexagesimal text)"
    elif unit is None:
        fault = f"unit {said!r} is not understood"
    elif not unit.is_equivalent(target):
        fault = f"unit {said!r} is not a unit of {canonical}"
        example = f"({name}):{scale}"
        hint = "Map another column, or if the unit is wrong, put this one in brackets:"
    elif isinstance(linear, u.function.FunctionUnitBase) or not linear.to(target) > 0:
        # Steps of dex and dB would be negative numbers of magnitudes.
        fault = f"unit {said!r} is logarithmic, of which only dex(pc) is converted"
        hint, example = "Write it out, e.g.", f"10**{name}:{target}"
    elif linear is not unit and (
        origin.times != 1 or origin.value is not None or "error" in canonical
    ):
        fault = f"{said!r} is the unit of a column of values, without a factor"
        hint, example = "Write it out, e.g.", f"{origin.times:g}*10**{name}:{target}"
        if "error" in canonical:
            # To first order, with the column whose logarithm has this error.
            example = f"2.3026*{name}*10**LOGARITHM:{target}"
    elif in_file is not None and not (
        in_file.is_equivalent(unit) and abs(in_file.to(unit) - 1) < 1e-12
    ):
        fault, example = f"the file has {found!r} but {stated!r} was stated", name
        hint = f"With ({name}):{stated} the file is overruled; else leave the unit out:"
    else:
        return known, origin.times * float(np.real(linear.to(target)))
    without = "" if "extinction" in canonical else f", or none: --map {canonical}=none"
    raise InputError(
        f"{source.path}, column {column!r} for {canonical}: {fault}. {hint} "
        f"--map {shlex.quote(f'{canonical}={example}')}{without}"
    )


def written(source: Source, origin: Origin) -> str:
    """Return a column as an expression, without the origin's factor."""
    column = str(origin.column)
    plain = re.fullmatch(r"\w+", column) or expression_in(source, column)
    return column if plain else f"`{column}`"


def restated(source: Source, canonical: str, origin: Origin, unit: str) -> str:
    """Return a mapping with another unit, which overrules the one in the file."""
    times = "" if origin.times == 1 else f"{origin.times!r}*"
    text = f"{canonical}={times}({written(source, origin)}):{unit}"
    return f"--map {shlex.quote(text)}"


def _unit_in_file(source: Source, origin: Origin) -> str | None:
    if origin.column is None or expression_in(source, origin.column) is not None:
        return None
    return source.columns[locate(source, origin.column)[0]].unit
