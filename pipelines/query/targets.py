"""Places from the rows of a table of any format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from astropy.coordinates import SkyCoord

from pipelines.base.errors import InputError
from pipelines.catalog.mapping import parse_mappings, resolve
from pipelines.catalog.presets import Origin, load_preset
from pipelines.catalog.sources import (
    Source,
    all_columns,
    describe_absence,
    open_source,
    read_columns,
)
from pipelines.catalog.tables import find_files
from pipelines.catalog.units import kind_of
from pipelines.maps.places import coordinates

_KNOWN = ("l", "b", "ra", "dec", "distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Coordinates of some rows, with all original columns.

    Coordinates are NaN if a value is missing.
    """

    coords: SkyCoord
    columns: dict[str, np.ndarray]


class TargetTable:
    """A table of places; iteration yields all rows in order, as `Targets`.

    Coordinates are ``l b`` or ``ra dec`` (ICRS), with ``distance`` if needed, under
    these names, a preset's or mapped names, CANONICAL=COLUMN[:UNIT]; units are given in
    the file, the preset or the mapping, and never guessed. ``columns`` describes the
    table's own columns by name; one with several values per row becomes several,
    NAME_0, NAME_1 and so on.

    Raises `InputError` if a column or a unit is missing, a latitude or a distance is
    out of range, or a file cannot be read.
    """

    def __init__(
        self,
        path: Path,
        mappings: Sequence[str] = (),
        *,
        preset: str | None = None,
        distance: bool = True,
    ) -> None:
        self._sources = [open_source(file) for file in find_files(path)]
        first = self._sources[0]
        self._origins = _origins(first, mappings, preset, distance)
        self.columns = {name: info for name, (_, info) in all_columns(first).items()}

    def __iter__(self) -> Iterator[Targets]:
        first = self._sources[0]
        for source in self._sources:
            if list(source.columns) != list(first.columns):
                raise InputError(
                    f"{source.path} has other columns than {first.path}: query tables "
                    "with different columns one by one"
                )
            yield from self._rows(source)

    def _rows(self, source: Source) -> Iterator[Targets]:
        found = {name: resolve(source, name, o) for name, o in self._origins.items()}
        places = {n: (str(o.column), kind_of(o.unit)) for n, (o, _) in found.items()}
        own = {name: request for name, (request, _) in all_columns(source).items()}
        for batch in read_columns(source, [*places.values(), *own.values()]):
            values = {n: found[n][1] * batch[place] for n, place in places.items()}
            coords = coordinates(values, str(source.path))
            columns = {name: batch[request] for name, request in own.items()}
            yield Targets(coords=coords, columns=columns)


def _origins(
    source: Source, mappings: Sequence[str], preset: str | None, distance: bool
) -> dict[str, Origin]:
    """Return the columns of one pair of angles and, if needed, of the distance."""
    mapped = parse_mappings(mappings)
    for name, origin in mapped.items():
        if name not in _KNOWN or (origin and origin.value is not None):
            raise InputError(
                f"--map {name}=...: expected a column for one of {', '.join(_KNOWN)}"
            )
    user: dict[str, Origin | None] = {}
    for name, item in ({} if preset is None else load_preset(preset).columns).items():
        present = item.column in source.columns or not item.optional
        if name in _KNOWN and item.column is not None and present:
            user[name] = item
    user |= mapped
    named = {n: Origin(column=n) for n in _KNOWN if n in source.columns}
    found = {n: o for n, o in {**named, **user}.items() if o is not None}
    pairs = [pair for pair in (("l", "b"), ("ra", "dec")) if set(pair) <= set(found)]
    pairs.sort(key=lambda pair: not set(pair) & set(user))
    for missing, what, example in (
        (not pairs, "l and b, or ra and dec", "l=COLUMN:deg"),
        (distance and "distance" not in found, "distance", "distance=COLUMN:pc"),
    ):
        if missing:
            absent = describe_absence(source, example.partition("=")[0])
            raise InputError(
                f"{source.path} gives no {what}: it {absent}; map the columns, e.g. "
                f"with --map {example}"
            )
    needed = (*pairs[0], "distance") if distance else pairs[0]
    return {name: found[name] for name in needed}
