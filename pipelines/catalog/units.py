"""Units of source columns: stated or read, never guessed."""

from __future__ import annotations

import re
import warnings

import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError

_NAMES = {
    "deg": "l b ra dec",
    "pc": "x y z distance distance_error distance_lower distance_upper",
    "mas": "parallax parallax_error",
    "mag": "extinction extinction_error extinction_lower extinction_upper",
}
INPUT_UNITS = {name: unit for unit, text in _NAMES.items() for name in text.split()}
"""Of every canonical quantity that a source may give."""
EXAMPLES = {"deg": "deg", "pc": "kpc", "mas": "mas", "mag": "mag"}

# Units of angles as text, by how their kinds are called in
# `pipelines.catalog.conversions`; quoted ones are those of the CDS.
_SEXAGESIMAL = {
    "hms": ("hms", "h:m:s", '"h:m:s"'),
    "dms": ("dms", "d:m:s", '"d:m:s"'),
}
# A unit that a column's name ends in.
_SUFFIX = re.compile(r".*_(kpc|pc|mas|mag|deg)$")


def sexagesimal(unit: str | None) -> str | None:
    """``hms`` or ``dms`` where that is what a unit says, else None."""
    said = [kind for kind, names in _SEXAGESIMAL.items() if unit in names]
    return said[0] if said else None


def parse_unit(text: str) -> u.UnitBase | None:
    """Return the unit that ``text`` names, or None if no standard knows it."""
    for standard in (None, "fits", "vounit", "cds"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return u.Unit(text.strip(), format=standard)
        except (ValueError, TypeError):
            continue
    return None


def conversion_factor(
    canonical: str, column: str, *, stated: str | None, found: str | None, source: str
) -> tuple[str, float]:
    """Return a column's unit, and what brings it to its canonical unit.

    ``stated`` is the unit given by the user or a preset, ``found`` that of the file;
    without either it is the one that the column's name ends in, as in ``d_kpc``. Angles
    as text, in ``hms`` or ``dms``, are read as degrees.

    Raises
    ------
    InputError
        If neither is there, the only one is not understood, they contradict each
        other, or the unit measures something else.
    """
    target = u.Unit(INPUT_UNITS[canonical])
    suffix = _SUFFIX.fullmatch(column)
    found = found or (suffix[1] if suffix and not stated else None)
    said = stated or found or ""
    if sexagesimal(said) and target == u.deg:
        return said, 1.0
    remedy = f"--map {canonical}={column}:{EXAMPLES[INPUT_UNITS[canonical]]}"
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
    elif in_file is not None and not _same(in_file, unit):
        fault = (
            f"the file says {found!r} but {stated!r} was stated; leave the unit out "
            f"(--map {canonical}={column}) or correct the file"
        )
    else:
        return said, float(np.real(unit.to(target)))
    raise InputError(f"{source}, column {column!r} for {canonical}: {fault}")


def _same(a: u.UnitBase, b: u.UnitBase) -> bool:
    return bool(a.is_equivalent(b) and abs(a.to(b) - 1) < 1e-12)
