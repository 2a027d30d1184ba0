"""Places from the rows of a table of any format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from astropy.coordinates import Galactic, SkyCoord

from pipelines.base.errors import InputError
from pipelines.catalog.mapping import choose, frame_of, parse_mappings
from pipelines.catalog.presets import Origin, load_preset
from pipelines.catalog.rows import Tally, check_quantities
from pipelines.catalog.sources import Source, all_columns, open_source, read_columns
from pipelines.catalog.tables import find_files
from pipelines.catalog.units import kind_of
from pipelines.maps.places import coordinates

_is_error = re.compile("_(error|lower|upper)$").search


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Coordinates of some rows, with all original columns.

    Coordinates and ``errors`` of distances [pc], if there are any, are NaN if a value
    is missing.
    """

    coords: SkyCoord
    columns: dict[str, np.ndarray]
    errors: np.ndarray | None = None


class TargetTable:
    """A table of places; iteration yields all rows in order, as `Targets`.

    Coordinates are ``l b``, ``ra dec`` or ``x y z``, with ``distance``,
    ``parallax`` or ``distance_modulus`` if needed, and errors as for ``ingest``, under
    these names, a preset's or mapped names, CANONICAL=COLUMN[:UNIT]; units are given in
    the file, the preset or the mapping, and never guessed. They are in the frame that
    the file states, or else ICRS and Galactic. ``columns`` describes the
    table's own columns by name; one with several values per row becomes several,
    NAME_0, NAME_1 and so on. ``errors`` are the names of errors of distances.

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
        self._mapped = {
            name: origin
            for name, origin in parse_mappings(mappings).items()
            # Directions need no distance.
            if distance or not name.startswith(("distance", "parallax"))
        }
        self._preset = None if preset is None else load_preset(preset)
        self._distance = distance
        first = self._sources[0]
        self.errors = list(filter(_is_error, self._chosen(first)))
        self.columns = {name: info for name, (_, info) in all_columns(first).items()}

    def _chosen(self, source: Source) -> dict[str, tuple[Origin, float]]:
        needs = {"extinction": False, "distance": self._distance}
        return choose(source, self._mapped, self._preset, **needs)

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
        chosen = self._chosen(source)
        places = {
            name: (str(origin.column), kind_of(origin.unit))
            for name, (origin, _) in chosen.items()
            if origin.column is not None
        }
        stated = frame_of(
            source, {name: origin for name, (origin, _) in chosen.items()}
        )
        own = {name: request for name, (request, _) in all_columns(source).items()}
        for batch in read_columns(source, [*places.values(), *own.values()]):
            columns = {name: batch[request] for name, request in own.items()}
            rows = len(next(iter(columns.values())))
            values = {
                name: batch[places[name]] if name in places else np.full(rows, o.value)
                for name, (o, _) in chosen.items()
            }
            values = {name: chosen[name][1] * column for name, column in values.items()}
            frame = stated and stated.frame
            coords, errors = _located(values, str(source.path), frame)
            yield Targets(coords=coords, columns=columns, errors=errors)


def _located(
    values: dict[str, np.ndarray], source: str, frame: Any
) -> tuple[SkyCoord, np.ndarray | None]:
    """Return coordinates, and errors of distances [pc] if there are any.

    Both are those of `check_quantities`. A parallax that is not positive is no
    distance.
    """
    first, has_errors = next(iter(values.values())), any(map(_is_error, values))
    if "parallax" in values:
        values.setdefault("parallax_error", np.zeros_like(first))
    with np.errstate(all="ignore"):
        check_quantities(Tally(kept=np.ones(len(first), dtype=bool)), values, 0.0)
    # Rows without a distance have no answer, negative errors a wrong one. Bounds that
    # are interchanged make the error of the distance negative.
    for name in (name for name in values if "_error" in name):
        if count := int(((values[name] < 0) & (values["distance"] > 0)).sum()):
            raise InputError(
                f"{source}, {count} rows: {name} negative, or bounds interchanged: "
                "leave unknown errors empty"
            )
    if "parallax" in values:
        values["distance"][~(values["parallax"] > 0)] = np.nan
    angles = ("l", "b") if "l" in values else ("ra", "dec")
    names = ("x", "y", "z") if "x" in values else (*angles, "distance")
    located = {n: values[n] for n in names if n in values}
    errors = values["distance_error"] if has_errors else None
    coords = coordinates(located, source, frame)
    if errors is not None and frame is not None:
        # They are along sight lines from the Sun.
        coords = coords.transform_to(Galactic())
    return coords, errors
