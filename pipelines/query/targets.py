"""Coordinates from a table of any format, batch by batch, every row kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from astropy import units as u
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.catalog.mapping import Binding, parse_mappings
from pipelines.catalog.readers import describe_absence, open_source, read_columns
from pipelines.catalog.source import Source
from pipelines.catalog.units import conversion_factor

_ANGLES = (("l", "b"), ("ra", "dec"))
_KNOWN = ("source_id", "l", "b", "ra", "dec", "distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Some rows: coordinates, and identifiers where the table has them."""

    coords: SkyCoord
    source_id: np.ndarray | None


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
    bindings = _bindings(source, parse_mappings(mappings), distance=distance)
    factors = {
        name: conversion_factor(
            name,
            str(binding.column),
            stated=binding.unit,
            found=source.columns[str(binding.column)].unit,
            source=str(path),
        )
        for name, binding in bindings.items()
        if name != "source_id"
    }
    requests = {
        name: (str(b.column), "identifier" if name == "source_id" else "number")
        for name, b in bindings.items()
    }
    for batch in read_columns(source, requests):
        values = {name: batch[name] * factor for name, factor in factors.items()}
        yield Targets(coords=_coords(values, path), source_id=batch.get("source_id"))


def _bindings(
    source: Source, user: Mapping[str, Binding], *, distance: bool
) -> dict[str, Binding]:
    odd = [n for n, b in user.items() if n not in _KNOWN or b.value is not None]
    if odd:
        raise InputError(
            f"--map {odd[0]}=...: a query takes columns for {', '.join(_KNOWN)}"
        )
    named = {n: Binding(canonical=n, column=n) for n in _KNOWN if n in source.columns}
    found = {n: b for n, b in {**named, **user}.items() if not b.ignored}
    for binding in user.values():
        if binding.column is not None and binding.column not in source.columns:
            raise InputError(
                f"{source.path} {describe_absence(source, binding.column)}"
            )
    pairs = [pair for pair in _ANGLES if set(pair) <= set(found)]
    mapped = [pair for pair in pairs if set(pair) & set(user)]
    if not pairs:
        raise _missing(source, "l and b, or ra and dec", "l")
    if distance and "distance" not in found:
        raise _missing(source, "distance", "distance")
    names = [*(mapped or pairs)[0], *(["distance"] if distance else []), "source_id"]
    return {name: found[name] for name in names if name in found}


def _missing(source: Source, what: str, name: str) -> InputError:
    unit = "pc" if name == "distance" else "deg"
    return InputError(
        f"{source.path} gives no {what}: it {describe_absence(source, name)}; name the "
        f"columns, e.g. --map {name}=COLUMN:{unit}"
    )


def _coords(values: dict[str, np.ndarray], path: Path) -> SkyCoord:
    distance = values.get("distance")
    if distance is not None and (distance < 0).any():
        raise InputError(
            f"{path}: {int((distance < 0).sum())} distances are negative; leave the "
            "field empty where a distance is not known"
        )
    lat = values["b" if "b" in values else "dec"]
    if (np.abs(lat) > 90).any():
        raise InputError(
            f"{path}: {int((np.abs(lat) > 90).sum())} latitudes are beyond 90 deg: "
            "are these the columns and units that are meant?"
        )
    parts = {n: v * u.deg for n, v in values.items() if n != "distance"}
    if distance is not None:
        parts["distance"] = distance * u.pc
    return SkyCoord(frame="galactic" if "l" in values else "icrs", **parts)
