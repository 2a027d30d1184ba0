"""Coordinates from numbers, and from a table of any format: every row kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.catalog.mapping import Binding, parse_mappings
from pipelines.catalog.readers import describe_absence, open_source, read_columns
from pipelines.catalog.source import Source, locate
from pipelines.catalog.units import conversion_factor

_ANGLES = (("l", "b"), ("ra", "dec"))
_KNOWN = ("source_id", "l", "b", "ra", "dec", "distance")

Targets = tuple[SkyCoord, np.ndarray | None]
"""Some rows: coordinates, and identifiers where the table has them."""


def read_targets(
    path: Path, mappings: Sequence[str] = (), *, distance: bool = True
) -> Iterator[Targets]:
    """Yield the rows of a table in order.

    Columns are ``l b`` or ``ra dec`` (ICRS), with ``distance`` unless none is needed,
    and maybe ``source_id``, under these names or as mapped, CANONICAL=COLUMN[:UNIT];
    a unit is in the file or in the mapping, and never guessed.

    Raises
    ------
    InputError
        If a column or a unit is missing, or the file cannot be read.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist")
    source = open_source(path)
    requests, factors = {}, {}
    for name, binding in _bindings(source, parse_mappings(mappings), distance).items():
        column = str(binding.column)
        found = source.columns[locate(source, column)[0]].unit
        requests[name] = (column, "identifier" if name == "source_id" else "number")
        if name != "source_id":
            factors[name] = conversion_factor(
                name, column, stated=binding.unit, found=found, source=str(path)
            )
    for batch in read_columns(source, requests):
        values = {name: batch[name] * factor for name, factor in factors.items()}
        yield coordinates(values, str(path)), batch.get("source_id")


def _bindings(
    source: Source, user: Mapping[str, Binding], distance: bool
) -> dict[str, Binding]:
    """The columns to read: one pair of angles, and what else is needed."""
    odd = [n for n, b in user.items() if n not in _KNOWN or b.value is not None]
    if odd:
        raise InputError(
            f"--map {odd[0]}=...: a query takes columns for {', '.join(_KNOWN)}"
        )
    named = {n: Binding(canonical=n, column=n) for n in _KNOWN if n in source.columns}
    found = {n: b for n, b in {**named, **user}.items() if not b.ignored}
    pairs = [pair for pair in _ANGLES if set(pair) <= set(found)]
    pairs.sort(key=lambda pair: not set(pair) & set(user))
    for missing, what, example in (
        (not pairs, "l and b, or ra and dec", "l=COLUMN:deg"),
        (distance and "distance" not in found, "distance", "distance=COLUMN:pc"),
    ):
        if missing:
            absent = describe_absence(source, example.partition("=")[0])
            raise InputError(
                f"{source.path} gives no {what}: it {absent}; name the columns, e.g. "
                f"--map {example}"
            )
    names = [*pairs[0], *(["distance"] if distance else []), "source_id"]
    return {name: found[name] for name in names if name in found}


def coordinates(values: Mapping[str, np.ndarray], source: str) -> SkyCoord:
    """Coordinates of ``l b`` or ``ra dec`` [deg] and maybe ``distance`` [pc].

    Raises
    ------
    InputError
        If a latitude or a distance is out of range.
    """
    parts = {n: v * u.deg for n, v in values.items() if n != "distance"}
    frame = "galactic" if "l" in values else "icrs"
    latitude = np.abs(values["b" if "b" in values else "dec"])
    if (latitude > 90).any():
        raise InputError(
            f"{source}: latitudes lie between -90 and 90 deg, "
            f"{int((latitude > 90).sum())} do not: check columns and units"
        )
    if "distance" in values:
        negative = values["distance"] < 0
        if negative.any():
            raise InputError(
                f"{source}: {int(negative.sum())} distances are negative; leave out "
                "those that are not known"
            )
        parts["distance"] = values["distance"] * u.pc
    return SkyCoord(frame=frame, **parts)
